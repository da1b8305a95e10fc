package verbstest

import (
	"encoding/binary"
	"testing"

	"polder/verbs"
)

var chainTests = []test{
	{"WAIT suspends the queue until the CQ has counted up", testWaitWR},
	{"ENABLE lets a managed queue run, exactly so far", testEnable},
	{"a request can rewrite the next one", testRewrite},
	{"a peer's WRITE can rewrite a posted request", testRemoteRewrite},
}

func needChains(t *testing.T, p Pair) bool {
	for _, dev := range []verbs.Device{p.Client, p.Server} {
		if !dev.Attr().WaitEnable {
			t.Logf("%s has no WAIT and ENABLE", dev.Attr().Name)
			return false
		}
	}
	return true
}

func testWaitWR(t *testing.T, p Pair) {
	if !needChains(t, p) {
		return
	}
	r := newRig(t, p)
	counted := r.c.newCQ(16)
	bump, bumpS := r.c.newQPWith(verbs.QPInit{SendCQ: counted}), r.s.newQP()
	r.join(bump, bumpS)
	fill(r.c.buf[:8], 9)
	r.c.post(
		verbs.SendWR{ID: 1, Op: verbs.OpWait, CQN: counted.Num(), Count: 3},
		r.remote(verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: r.c.at(0, 8)}, 0))
	for i := range 3 {
		if n := r.c.cq.Poll(make([]verbs.WC, 1)); n != 0 {
			t.Fatalf("the queue went on after %d of 3 completions", i)
		}
		wantBytes(t, "before the WAIT ends", r.s.buf[:8], make([]byte, 8))
		r.c.postTo(bump, r.remote(verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: r.c.at(64, 8)}, 64))
		poll(t, counted, 1)
	}
	if wc := poll(t, r.c.cq, 1)[0]; wc.ID != 2 || wc.Status != passes {
		t.Fatalf("got %+v, want the WRITE", wc)
	}
	wantBytes(t, "after the WAIT", r.s.buf[:8], r.c.buf[:8])
	// A count that has been reached long ago does not suspend.
	r.c.post(verbs.SendWR{Op: verbs.OpWait, CQN: counted.Num(), Count: 1})
	r.c.must(verbs.SendWR{Op: verbs.OpNop})
	// Nor does one below 0.
	r.c.post(verbs.SendWR{Op: verbs.OpWait, CQN: counted.Num(), Count: 1<<64 - 1})
	r.c.must(verbs.SendWR{Op: verbs.OpNop})
}

func testEnable(t *testing.T, p Pair) {
	if !needChains(t, p) {
		return
	}
	r := newRig(t, p)
	managed := r.c.newQPWith(verbs.QPInit{Managed: true})
	r.join(managed, r.s.newQP())
	const n = 6
	for i := range n {
		fill(r.c.buf[8*i:8*i+8], uint64(i))
		r.c.postTo(managed, r.remote(verbs.SendWR{ID: uint64(10 + i), Op: verbs.OpWrite,
			Flags: verbs.SendSignaled, SGL: r.c.at(8*i, 8)}, 8*i))
	}
	r.c.must(verbs.SendWR{Op: verbs.OpNop})
	for done, upTo := 0, 1; done < n; upTo += 2 {
		upTo = min(upTo, n)
		wantBytes(t, "not enabled", r.s.buf[8*done:8*n], make([]byte, 8*(n-done)))
		r.c.post(verbs.SendWR{Op: verbs.OpEnable, QPN: managed.Num(), Count: uint64(upTo)})
		for ; done < upTo; done++ {
			if wc := poll(t, r.c.cq, 1)[0]; wc.ID != uint64(10+done) || wc.Status != passes {
				t.Fatalf("got %+v, want ID %d to succeed", wc, 10+done)
			}
		}
		wantBytes(t, "enabled", r.s.buf[:8*done], r.c.buf[:8*done])
	}
}

// ringQP makes a queue pair on each side whose send queue on one of them lies
// in memory that the test can see.
func ringQP(s *side, managed bool) (verbs.QP, verbs.MR) {
	s.t.Helper()
	ring := s.reg(make([]byte, sideDepth*verbs.WQESize), allAccess)
	return s.newQPWith(verbs.QPInit{SendRing: ring, Managed: managed}), ring
}

// testRewrite fetches an address and then reads there: the fetch lands in the
// next request's address field, a pointer chase without the CPU.
func testRewrite(t *testing.T, p Pair) {
	if !needChains(t, p) {
		return
	}
	r := newRig(t, p)
	managed, ring := ringQP(r.c, true)
	r.join(managed, r.s.newQP())
	fill(r.s.buf[5000:5100], 1)
	binary.LittleEndian.PutUint64(r.s.buf[:8], r.s.mr.Addr()+5000)
	next := verbs.SGE{Addr: ring.Addr() + verbs.WQESize*2 + verbs.WQEAddr, Length: 8, LKey: ring.LKey()}
	r.c.postTo(managed,
		r.remote(verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{next}}, 0),
		// The fetched address must be there before the READ is looked at.
		verbs.SendWR{ID: 2, Op: verbs.OpWait, CQN: r.c.cq.Num(), Count: 1},
		r.remote(verbs.SendWR{ID: 3, Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: r.c.at(0, 100)}, 0))
	r.c.post(verbs.SendWR{Op: verbs.OpEnable, QPN: managed.Num(), Count: 3})
	for i, wc := range poll(t, r.c.cq, 2) {
		if wc.ID != uint64(1+2*i) || wc.Status != passes {
			t.Fatalf("got %+v, want ID %d to succeed", wc, 1+2*i)
		}
	}
	wantBytes(t, "found behind the pointer", r.c.buf[:100], r.s.buf[5000:5100])
}

// testRemoteRewrite fills in the operands of a request that waits in the
// peer's managed queue, and lets it run: an RPC that no CPU serves.
func testRemoteRewrite(t *testing.T, p Pair) {
	if !needChains(t, p) {
		return
	}
	r := newRig(t, p)
	managed, ring := ringQP(r.s, true)
	r.join(r.c.newQP(), managed)
	// The server's chain: write 8 bytes of its memory to wherever the client
	// says, once the client's SEND has arrived.
	scq := r.s.rcq
	r.s.recv(verbs.RecvWR{SGL: r.s.at(0, 8)})
	r.s.postTo(managed,
		verbs.SendWR{Op: verbs.OpWait, CQN: scq.Num(), Count: 1},
		verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: r.s.at(64, 8), RKey: r.c.mr.RKey()})
	r.s.post(verbs.SendWR{Op: verbs.OpEnable, QPN: managed.Num(), Count: 2})
	fill(r.s.buf[64:72], 3)
	binary.LittleEndian.PutUint64(r.c.buf[:8], r.c.mr.Addr()+4096)
	r.c.post(
		verbs.SendWR{Op: verbs.OpWrite, SGL: r.c.at(0, 8), RKey: ring.RKey(),
			RemoteAddr: ring.Addr() + verbs.WQESize + verbs.WQEAddr},
		verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: r.c.at(0, 8)})
	if wc := poll(t, r.c.cq, 1)[0]; wc.Status != passes {
		t.Fatal(wc.Status)
	}
	if wc := poll(t, r.s.cq, 1)[0]; wc.ID != 2 || wc.Status != passes {
		t.Fatalf("got %+v, want the chain's WRITE to succeed", wc)
	}
	wantBytes(t, "written by the chain", r.c.buf[4096:4104], r.s.buf[64:72])
}
