package softnic

import (
	"encoding/binary"
	"fmt"
	"testing"

	"polder/verbs"
)

// TestAPrefetchedEntryIsExecutedAsItWas rewrites one entry after it was enabled, and
// one before that: only with Config.Prefetch is the first one too late. The queue
// goes round three times.
func TestAPrefetchedEntryIsExecutedAsItWas(t *testing.T) {
	for _, prefetch := range []bool{false, true} {
		n := newNode(t, Config{Prefetch: prefetch})
		ring := make([]byte, 2*verbs.WQESize)
		mr := n.reg(ring, allAccess)
		q := n.loopback(QPConfig{SendDepth: 2, ManagedSend: true, SendRing: mr.Key})
		id := func(entry int, v uint64) { binary.LittleEndian.PutUint64(ring[entry*verbs.WQESize+verbs.WQEID:], v) }
		enable := func(to uint64) {
			if err := n.nic.EnableSend(q, to); err != nil {
				t.Fatal(err)
			}
		}
		nop := verbs.SendWR{Op: verbs.OpNop, Flags: verbs.SendSignaled}
		n.post(q, nop, nop)
		for round := range uint64(3) {
			v := 10 * round
			id(0, v+1)
			enable(2*round + 1)
			id(0, v+2)
			id(1, v+3)
			enable(2*round + 2)
			n.run()
			want := fmt.Sprint(v+2, v+3)
			if prefetch {
				want = fmt.Sprint(v+1, v+3)
			}
			var got []any
			for _, wc := range n.poll(n.cq) {
				got = append(got, wc.ID)
			}
			if fmt.Sprint(got...) != want {
				t.Errorf("prefetching %t, round %d: entries %v were executed, want %s", prefetch, round, got, want)
			}
		}
	}
}
