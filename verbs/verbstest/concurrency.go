package verbstest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"polder/verbs"
)

var concurrencyTests = []test{
	{"many queue pairs share a connection", testManyQPs},
	{"many goroutines post to one queue pair", testSharedQP},
	{"atomics of many clients add up, the host's included", testAtomicSum},
	{"both ends flood each other with large messages", testFlood},
	{"queue pairs come and go beside traffic", testChurn},
	{"the connection is closed under load", testCloseUnderLoad},
	{"a device is closed under load", testDeviceCloseUnderLoad},
	{"windows are bound and invalidated under load", testWindowChurn},
}

// all runs f n times at once and reports the errors.
func all(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func testManyQPs(t *testing.T, p Pair) {
	r := newRig(t, p)
	const qps, rounds, slice = 48, 20, 1024
	type lane struct {
		qp verbs.QP
		cq verbs.CQ
	}
	lanes := make([]lane, qps)
	for i := range lanes {
		cq := r.c.newCQ(sideDepth)
		lanes[i] = lane{r.c.newQPWith(verbs.QPInit{SendCQ: cq, SendDepth: 8}), cq}
		r.join(lanes[i].qp, r.s.newQP())
	}
	all(t, qps, func(i int) error {
		off := i * 2 * slice
		mine, back := r.c.buf[off:off+slice], r.c.buf[off+slice:off+2*slice]
		for round := range rounds {
			fill(mine, uint64(i*1000+round))
			err := lanes[i].qp.PostSend(
				r.remote(verbs.SendWR{Op: verbs.OpWrite, SGL: r.c.at(off, slice)}, off),
				r.remote(verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: r.c.at(off+slice, slice)}, off))
			if err != nil {
				return err
			}
			wcs, err := pollAll(lanes[i].cq, 1)
			if err != nil {
				return err
			}
			if wcs[0].Status != passes || !bytes.Equal(mine, back) {
				return fmt.Errorf("lane %d, round %d: %+v, or other bytes came back", i, round, wcs[0])
			}
		}
		return nil
	})
}

func testSharedQP(t *testing.T, p Pair) {
	r := newRig(t, p)
	const posters, each = 8, 150
	seen := make(map[uint64]bool)
	var posting sync.WaitGroup
	errs := make(chan error, posters)
	var room = make(chan struct{}, sideDepth) // a place in the queue
	for g := range posters {
		posting.Go(func() {
			for i := range each {
				room <- struct{}{}
				wr := r.remote(verbs.SendWR{ID: uint64(g*each + i), Op: verbs.OpFetchAdd,
					Flags: verbs.SendSignaled, SGL: r.c.at(8*g, 8), Swap: 1}, 0)
				if err := r.c.qp.PostSend(wr); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for range posters * each {
		wc := poll(t, r.c.cq, 1)[0]
		<-room
		if wc.Status != passes || seen[wc.ID] {
			t.Fatalf("got %+v (seen before: %v)", wc, seen[wc.ID])
		}
		seen[wc.ID] = true
	}
	posting.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	if got := le64(r.s.buf); got != posters*each {
		t.Errorf("the sum is %d, want %d", got, posters*each)
	}
}

func testAtomicSum(t *testing.T, p Pair) {
	r := newRig(t, p)
	const clients, each = 4, 300
	workers := 2 * clients // the host as much as the clients
	if !p.Server.Attr().HostAtomics {
		workers = clients
	}
	off := int(-r.s.mr.Addr() & 7)
	word := atomicWord(r.s.buf[off : off+8])
	qps, cqs := make([]verbs.QP, clients), make([]verbs.CQ, clients)
	for i := range qps {
		cqs[i] = r.c.newCQ(16)
		qps[i] = r.c.newQPWith(verbs.QPInit{SendCQ: cqs[i]})
		r.join(qps[i], r.s.newQP())
	}
	all(t, workers, func(i int) error {
		for range each {
			if i >= clients { // the host
				word.Add(1)
				continue
			}
			err := qps[i].PostSend(r.remote(verbs.SendWR{Op: verbs.OpFetchAdd, Flags: verbs.SendSignaled,
				SGL: r.c.at(8*i, 8), Swap: 1}, off))
			if err != nil {
				return err
			}
			wcs, err := pollAll(cqs[i], 1)
			if err != nil {
				return err
			}
			if err := wcs[0].Err(); err != nil {
				return err
			}
		}
		return nil
	})
	if got := word.Load(); got != uint64(workers*each) {
		t.Errorf("the sum is %d, want %d", got, workers*each)
	}
}

// testFlood has both ends READ and WRITE large messages with full queues, so
// that each has more to send than the other takes at once.
func testFlood(t *testing.T, p Pair) {
	r := newRig(t, p)
	const size, lanes, rounds, depth = 1 << 20, 2, 2, 4
	type flood struct {
		from, to *side
		qp       verbs.QP
		cq       verbs.CQ
		src, dst verbs.MR // of from
		far      verbs.MR // of to
	}
	var floods []flood
	for range lanes {
		cq, sq := r.c.newCQ(64), r.s.newCQ(64)
		cqp, sqp := r.c.newQPWith(verbs.QPInit{SendCQ: cq}), r.s.newQPWith(verbs.QPInit{SendCQ: sq})
		r.join(cqp, sqp)
		for _, f := range []flood{{from: r.c, to: r.s, qp: cqp, cq: cq}, {from: r.s, to: r.c, qp: sqp, cq: sq}} {
			f.src = f.from.reg(make([]byte, size), allAccess)
			f.dst = f.from.reg(make([]byte, size), allAccess)
			f.far = f.to.reg(make([]byte, size), allAccess)
			fill(f.src.Bytes(), uint64(len(floods)))
			floods = append(floods, f)
		}
	}
	all(t, len(floods), func(i int) error {
		f := floods[i]
		whole := func(mr verbs.MR) []verbs.SGE {
			return []verbs.SGE{{Addr: mr.Addr(), Length: size, LKey: mr.LKey()}}
		}
		for round := range rounds {
			clear(f.dst.Bytes())
			var wrs []verbs.SendWR
			for range depth {
				wrs = append(wrs,
					verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: whole(f.src), RemoteAddr: f.far.Addr(), RKey: f.far.RKey()},
					verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: whole(f.dst), RemoteAddr: f.far.Addr(), RKey: f.far.RKey()})
			}
			if err := f.qp.PostSend(wrs...); err != nil {
				return err
			}
			wcs, err := pollAll(f.cq, len(wrs))
			if err != nil {
				return err
			}
			for _, wc := range wcs {
				if err := wc.Err(); err != nil {
					return err
				}
			}
			if !bytes.Equal(f.src.Bytes(), f.dst.Bytes()) {
				return fmt.Errorf("flood %d, round %d: other bytes came back", i, round)
			}
		}
		return nil
	})
}

func testChurn(t *testing.T, p Pair) {
	r := newRig(t, p)
	stop := make(chan struct{})
	traffic := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				traffic <- nil
				return
			default:
			}
			err := r.c.qp.PostSend(r.remote(verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: r.c.at(0, 64)}, 0))
			var wcs []verbs.WC
			if err == nil {
				wcs, err = pollAll(r.c.cq, 1)
			}
			if err == nil {
				err = wcs[0].Err()
			}
			if err != nil {
				traffic <- err
				return
			}
		}
	}()
	cq := r.c.newCQ(64)
	for i := range 60 {
		cqp, sqp := r.c.newQPWith(verbs.QPInit{SendCQ: cq}), r.s.newQP()
		r.join(cqp, sqp)
		for range 3 {
			if err := cqp.PostSend(r.remote(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: r.c.at(100, 5000)}, 10_000)); err != nil {
				t.Fatal(err)
			}
		}
		if i%2 == 0 {
			poll(t, cq, 3)
		}
		// Half of the time requests are on their way: they give no completion,
		// unless they had given it before.
		if i%3 == 0 {
			cqp, sqp = sqp, cqp
		}
		r.close(cqp, sqp)
		for cq.Poll(make([]verbs.WC, 8)) > 0 {
		}
	}
	close(stop)
	if err := <-traffic; err != nil {
		t.Errorf("the traffic beside it: %v", err)
	}
}

// load keeps n queue pairs of the client's busy until they fail, and returns
// a function that waits until all have.
func (r *rig) load(n int) (wait func()) {
	r.t.Helper()
	var wg sync.WaitGroup
	started := make(chan struct{}, n)
	for i := range n {
		cq := r.c.newCQ(64)
		qp := r.c.newQPWith(verbs.QPInit{SendCQ: cq})
		r.join(qp, r.s.newQP())
		wg.Go(func() {
			announce := sync.OnceFunc(func() { started <- struct{}{} })
			defer announce()
			for {
				for k := range 8 {
					op := []verbs.Opcode{verbs.OpRead, verbs.OpWrite}[k%2]
					err := qp.PostSend(r.remote(verbs.SendWR{Op: op, Flags: verbs.SendSignaled, SGL: r.c.at(i*20_000, 9000)}, i*20_000))
					if errors.Is(err, verbs.ErrClosed) {
						return
					}
					if err != nil {
						r.t.Error(err)
						return
					}
				}
				wcs, err := pollAll(cq, 8)
				if errors.Is(err, verbs.ErrClosed) {
					return
				}
				if err != nil {
					r.t.Error(err)
					return
				}
				for _, wc := range wcs {
					if wc.Status != passes {
						return
					}
				}
				announce()
			}
		})
	}
	for range n {
		<-started
	}
	return wg.Wait
}

func testCloseUnderLoad(t *testing.T, p Pair) {
	for _, end := range []string{"client", "server"} {
		r := newRig(t, p)
		wait := r.load(4)
		conn := r.conn
		if end == "server" {
			conn = r.back
		}
		all(t, 3, func(int) error { return conn.Close() })
		wait()
		r.wantDown()
	}
}

func testDeviceCloseUnderLoad(t *testing.T, p Pair) {
	r := newRig(t, p)
	wait := r.load(4)
	all(t, 2, func(i int) error { return []verbs.Device{p.Server, p.Client}[i].Close() })
	wait()
}

func testWindowChurn(t *testing.T, p Pair) {
	r := newRig(t, p)
	wait := r.load(2)
	cqp, sqp := r.joinMore()
	for i := range 200 {
		mw := r.s.newMW(verbs.MWType2B)
		r.s.mustOn(sqp, r.s.bind(mw, uint8(i), 0, 4096, windowAccess))
		r.through("bound", cqp, verbs.OpWrite, mw.RKey(), 0, 4096, passes)
		r.s.mustOn(sqp, verbs.SendWR{Op: verbs.OpLocalInv, RKey: mw.RKey()})
		if err := mw.Dealloc(); err != nil {
			t.Fatal(err)
		}
	}
	r.conn.Close()
	wait()
}
