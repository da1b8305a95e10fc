package resp

import (
	"fmt"
	"slices"
	"testing"
)

// Commands that locked the same stripes in different orders would wait for each
// other for ever.
func TestACommandLocksEachStripeOnceInOrder(t *testing.T) {
	s := newTestSession(t)
	defer s.close()
	for _, n := range []int{3000, 2, 1} { // what one command has locked is nothing to the next
		args := [][]byte{[]byte("DEL")}
		var want []uint32
		for i := range n {
			key := fmt.Appendf(nil, "key%d", i/2) // every second time the same
			args = append(args, key)
			want = append(want, s.srv.stripeOf(key))
		}
		slices.Sort(want)
		want = slices.Compact(want)
		cmd, err := s.srv.table.lookup(args)
		if err != nil {
			t.Fatal(err)
		}
		s.lock(cmd, args)
		if !slices.Equal(s.held, want) {
			t.Errorf("%d keys: got %d stripes, %v..., want %d: %v...", n, len(s.held), s.held[:min(len(s.held), 8)], len(want), want[:min(len(want), 8)])
		}
		s.unlock()
	}
}
