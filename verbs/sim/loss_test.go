package sim

import (
	"encoding/binary"
	"testing"
	"time"

	"polder/verbs"
)

// TestAReadWhoseAnswerIsLostIsExecutedAgain posts a READ of a word and, when it has
// long been executed, a CMP_SWAP of the word. The READ must be from before unless
// its answer was lost; a fence waits for the second answer.
func TestAReadWhoseAnswerIsLostIsExecutedAgain(t *testing.T) {
	const timeout = 20 * time.Microsecond
	for _, c := range []struct {
		name  string
		oneIn int
		flags verbs.SendFlags
		read  uint64
	}{
		{"nothing is lost", 0, 0, 1},
		{"each answer is lost once", 1, 0, 2},
		{"and the CMP_SWAP has a fence", 1, verbs.SendFence, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Testbed())
			r.w.Lose(Loss{OneIn: c.oneIn, Timeout: timeout})
			qp, _ := r.join(t, r.client.cq)
			word := r.server.mr.Bytes()[:8]
			binary.NativeEndian.PutUint64(word, 1)
			read, swap := r.request(verbs.OpRead, 8), r.request(verbs.OpCmpSwap, 8)
			swap.Flags |= c.flags
			swap.SGL[0].Addr += 8
			swap.Compare, swap.Swap = 1, 2
			r.w.Go("one", func(p *Proc) error {
				if err := qp.PostSend(read); err != nil {
					return err
				}
				p.Sleep(5 * time.Microsecond)
				if err := qp.PostSend(swap); err != nil {
					return err
				}
				p.Sleep(10 * timeout)
				return nil
			})
			if err := r.w.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			var wcs [3]verbs.WC
			if n := r.client.cq.Poll(wcs[:]); n != 2 || wcs[0].Err() != nil || wcs[1].Err() != nil {
				t.Fatalf("got %d completions %v, want 2 of success", n, wcs[:n])
			}
			mem := r.client.mr.Bytes()
			if got := binary.NativeEndian.Uint64(mem); got != c.read {
				t.Errorf("the READ brought %d, want %d", got, c.read)
			}
			if got := binary.NativeEndian.Uint64(mem[8:]); got != 1 {
				t.Errorf("the CMP_SWAP found %d, want 1: it is executed once", got)
			}
			if got := binary.NativeEndian.Uint64(word); got != 2 {
				t.Errorf("the word is %d, want 2", got)
			}
		})
	}
}
