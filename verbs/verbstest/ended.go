package verbstest

import (
	"bytes"
	"fmt"
	"testing"

	"polder/verbs"
)

// testEndedWritesNoMore closes the server's queue pair under a client that writes without a pause: what is in the
// memory when Close has returned stays there, whatever the client has posted and goes on to post. Fencing rests on
// it.
func testEndedWritesNoMore(t *testing.T, p Pair) {
	r := newRig(t, p)
	const size, patterns, flying = 16 << 10, 8, 16
	for k := range patterns {
		fill(r.c.buf[k*size:(k+1)*size], uint64(k))
	}
	for round := range 8 {
		cq := r.c.newCQ(2 * flying)
		cqp, sqp := r.c.newQPWith(verbs.QPInit{SendCQ: cq, SendDepth: 2 * flying}), r.s.newQP()
		r.join(cqp, sqp)
		begun, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- r.c.flood(cq, cqp, r, size, patterns, flying, 1+round, begun) }()
		select {
		case <-begun:
		case err := <-ended:
			t.Fatalf("round %d: the writer ended early: %v", round, err)
		}
		r.close(sqp)
		then := bytes.Clone(r.s.buf[:size])
		if err := <-ended; err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		// Whatever was under way has arrived when something behind it has.
		r.c.must(r.remote(verbs.SendWR{ID: 2, Op: verbs.OpRead, SGL: r.c.at(patterns*size, 8)}, sideBuf/2))
		if !bytes.Equal(r.s.buf[:size], then) {
			t.Fatalf("round %d: memory has changed after the queue pair was closed", round)
		}
		r.close(cqp)
	}
}

// flood writes patterns to the start of the server's memory over qp until that fails. It closes begun when n
// WRITEs are done, and returns nil if the end is one that a closed peer makes.
func (s *side) flood(cq verbs.CQ, qp verbs.QP, r *rig, size, patterns, flying, n int, begun chan<- struct{}) error {
	done, posted := 0, 0
	for {
		for ; posted-done < flying; posted++ {
			wr := r.remote(verbs.SendWR{ID: uint64(posted), Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: s.at(posted%patterns*size, size)}, 0)
			if err := qp.PostSend(wr); err != nil {
				return fmt.Errorf("cannot post a WRITE: %w", err)
			}
		}
		wcs, err := pollAll(cq, 1)
		if err != nil {
			return err
		}
		if st := wcs[0].Status; st == verbs.StatusRetryExcErr || st == verbs.StatusWRFlushErr {
			return nil
		} else if st != verbs.StatusSuccess {
			return fmt.Errorf("a WRITE ended with %v, want that of a peer that is gone", st)
		}
		if done++; done == n {
			close(begun)
		}
	}
}
