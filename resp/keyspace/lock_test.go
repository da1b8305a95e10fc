package keyspace

import (
	"fmt"
	"slices"
	"testing"
)

// Commands that locked the same stripes in different orders would wait for each
// other for ever.
func TestACommandLocksEachStripeOnceInOrder(t *testing.T) {
	sp := newSpace(t)
	a := access(sp)
	defer a.Settle()
	for _, n := range []int{3000, 2, 1} { // what one command has locked is nothing to the next
		var want []uint32
		for i := range n {
			key := fmt.Appendf(nil, "key%d", i/2) // every second time the same
			a.Want(key)
			want = append(want, sp.stripeOf(key))
		}
		slices.Sort(want)
		want = slices.Compact(want)
		a.LockWanted(true, nil)
		if !slices.Equal(a.held, want) {
			t.Errorf("%d keys: got %d stripes, %v..., want %d: %v...", n, len(a.held), a.held[:min(len(a.held), 8)], len(want), want[:min(len(want), 8)])
		}
		a.Unlock()
	}
}
