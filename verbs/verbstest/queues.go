package verbstest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"polder/verbs"
)

var queueTests = []test{
	{"an unconnected queue pair sends nothing", testUnconnected},
	{"only signaled requests complete", testSignaled},
	{"completions come in the order of the requests", testOrder},
	{"a batch that does not fit is refused whole", testQueueFull},
	{"a full queue empties again and again", testQueueReuse},
	{"a failure flushes what follows", testFlush},
	{"a CQ that overruns errors its queue pairs", testOverrun},
	{"Wait wakes when there is something to poll", testWait},
	{"Wait gives up with its context, and when the CQ is closed", testWaitEnds},
	{"handlers are called", testHandler},
	{"wrong arguments are refused", testInvalid},
}

func testUnconnected(t *testing.T, p Pair) {
	s := newSide(t, p.Client)
	if st := s.qp.State(); st != verbs.StateReset && st != verbs.StateInit {
		t.Errorf("a new queue pair is in %v", st)
	}
	if err := s.qp.PostSend(verbs.SendWR{Op: verbs.OpNop}); !errors.Is(err, verbs.ErrBadState) {
		t.Errorf("got %v, want ErrBadState", err)
	}
}

func testSignaled(t *testing.T, p Pair) {
	r := newRig(t, p)
	var wrs []verbs.SendWR
	for i := range 30 {
		wr := r.remote(verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, SGL: r.c.at(8*i, 8)}, 8*i)
		if i%3 == 2 {
			wr.Flags = verbs.SendSignaled
		}
		wrs = append(wrs, wr)
	}
	r.c.post(wrs...)
	for i, wc := range poll(t, r.c.cq, 10) {
		want := verbs.WC{ID: uint64(3*i + 2), Op: verbs.OpWrite, QPN: r.c.qp.Num()}
		if wc.ByteLen = 0; wc != want { // ByteLen of a WRITE is unspecified
			t.Errorf("got %+v, want %+v", wc, want)
		}
	}
	if n := r.c.cq.Poll(make([]verbs.WC, 4)); n != 0 {
		t.Errorf("%d more completions came", n)
	}
}

func testOrder(t *testing.T, p Pair) {
	r := newRig(t, p)
	ops := []verbs.Opcode{verbs.OpRead, verbs.OpWrite, verbs.OpNop, verbs.OpFetchAdd, verbs.OpWrite, verbs.OpCmpSwap}
	for round := range 10 {
		var wrs []verbs.SendWR
		for i := range sideDepth {
			op := ops[(i+round)%len(ops)]
			wr := verbs.SendWR{ID: uint64(i), Op: op, Flags: verbs.SendSignaled}
			switch op {
			case verbs.OpRead, verbs.OpWrite:
				wr.SGL = r.c.at(0, 1+97*i)
				wr = r.remote(wr, 0)
			case verbs.OpFetchAdd, verbs.OpCmpSwap:
				wr.SGL = r.c.at(0, 8)
				wr = r.remote(wr, 8)
			}
			wrs = append(wrs, wr)
		}
		r.c.post(wrs...)
		for i, wc := range poll(t, r.c.cq, sideDepth) {
			if wc.ID != uint64(i) || wc.Status != verbs.StatusSuccess || wc.Op != wrs[i].Op {
				t.Fatalf("round %d, completion %d: got %+v, want %v to succeed", round, i, wc, wrs[i].Op)
			}
		}
	}
}

func testQueueFull(t *testing.T, p Pair) {
	r := newRig(t, p)
	wrs := make([]verbs.SendWR, sideDepth+1)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Op: verbs.OpNop, Flags: verbs.SendSignaled}
	}
	if err := r.c.qp.PostSend(wrs...); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("PostSend: got %v, want ErrQueueFull", err)
	}
	if n := r.c.cq.Poll(make([]verbs.WC, 1)); n != 0 {
		t.Error("part of the refused batch was executed")
	}
	r.c.post(wrs[:sideDepth]...)
	poll(t, r.c.cq, sideDepth)

	recvs := make([]verbs.RecvWR, sideDepth)
	for i := range recvs {
		recvs[i] = verbs.RecvWR{ID: uint64(i), SGL: r.s.at(i, 1)}
	}
	r.s.recv(recvs[:sideDepth-1]...)
	if err := r.s.qp.PostRecv(recvs[:2]...); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("PostRecv: got %v, want ErrQueueFull", err)
	}
	r.s.recv(recvs[sideDepth-1])
	for i := range sideDepth {
		r.c.must(verbs.SendWR{Op: verbs.OpSend, SGL: r.c.at(0, 1)})
		if wc := poll(t, r.s.rcq, 1)[0]; wc.ID != uint64(i) {
			t.Fatalf("got receive %d, want %d", wc.ID, i)
		}
	}
}

func testQueueReuse(t *testing.T, p Pair) {
	r := newRig(t, p)
	const total = 20 * sideDepth
	posted, done := 0, 0
	wcs := make([]verbs.WC, 16)
	for done < total {
		// A driver that executes while it posts never has a full queue:
		// its completions have to be polled in time.
		for posted < total && posted-done < 4*sideDepth {
			wr := r.remote(verbs.SendWR{ID: uint64(posted), Op: verbs.OpFetchAdd, SGL: r.c.at(0, 8), Swap: 1}, 0)
			// Unsignaled requests give their places back too.
			if posted%4 == 3 {
				wr.Flags = verbs.SendSignaled
			}
			err := r.c.qp.PostSend(wr)
			if errors.Is(err, verbs.ErrQueueFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			posted++
		}
		if err := r.c.cq.Wait(patient(t)); err != nil {
			t.Fatal(err)
		}
		for _, wc := range wcs[:r.c.cq.Poll(wcs)] {
			if wc.Status != verbs.StatusSuccess || wc.ID != uint64(done+3) {
				t.Fatalf("got %+v, want ID %d to succeed", wc, done+3)
			}
			done += 4
		}
	}
	if got := uint64(total); le64(r.s.buf) != got {
		t.Errorf("the sum is %d, want %d", le64(r.s.buf), got)
	}
}

func testFlush(t *testing.T, p Pair) {
	r := newRig(t, p)
	r.c.recv(verbs.RecvWR{ID: 50, SGL: r.c.at(0, 8)}, verbs.RecvWR{ID: 51, SGL: r.c.at(0, 8)})
	good := r.remote(verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: r.c.at(0, 8)}, 0)
	bad := good
	bad.ID, bad.RKey = 2, good.RKey^1
	after := r.remote(verbs.SendWR{ID: 3, Op: verbs.OpWrite, SGL: r.c.at(8, 8)}, 8)
	fill(r.c.buf[:16], 5)
	r.c.post(good, bad, after, verbs.SendWR{ID: 4, Op: verbs.OpNop})
	wcs := poll(t, r.c.cq, 3)
	for i, want := range []verbs.Status{verbs.StatusRemAccessErr, verbs.StatusWRFlushErr, verbs.StatusWRFlushErr} {
		if wcs[i].ID != uint64(i+2) || wcs[i].Status != want {
			t.Errorf("completion %d: got %+v, want ID %d, %v", i, wcs[i], i+2, want)
		}
	}
	wantState(t, r.c.qp, verbs.StateError)
	r.s.event(verbs.EventQPAccessErr, r.s.qp)
	wantState(t, r.s.qp, verbs.StateError)
	wantBytes(t, "written before the failure", r.s.buf[:8], r.c.buf[:8])
	wantBytes(t, "not written after it", r.s.buf[8:16], make([]byte, 8))
	for i, wc := range poll(t, r.c.rcq, 2) {
		if wc.ID != uint64(50+i) || wc.Status != verbs.StatusWRFlushErr {
			t.Errorf("receive %d: got %+v, want it flushed", i, wc)
		}
	}
	// Posting goes on, and everything is flushed.
	for i := range 3 * sideDepth {
		if wc := r.c.do(verbs.SendWR{ID: uint64(i), Op: verbs.OpNop}); wc.Status != verbs.StatusWRFlushErr {
			t.Fatalf("got %v, want %v", wc.Status, verbs.StatusWRFlushErr)
		}
	}
	r.c.recv(verbs.RecvWR{ID: 60, SGL: r.c.at(0, 8)})
	if wc := poll(t, r.c.rcq, 1)[0]; wc.ID != 60 || wc.Status != verbs.StatusWRFlushErr {
		t.Errorf("receive: got %+v, want it flushed", wc)
	}
}

func testOverrun(t *testing.T, p Pair) {
	r := newRig(t, p)
	small := r.c.newCQ(4)
	cqp, sqp := r.c.newQPWith(verbs.QPInit{SendCQ: small}), r.s.newQP()
	r.join(cqp, sqp)
	// A device may give the CQ more room than was asked for, but not for all of
	// this.
	for i := range 4 * sideDepth {
		err := cqp.PostSend(verbs.SendWR{ID: uint64(i), Op: verbs.OpNop, Flags: verbs.SendSignaled})
		if errors.Is(err, verbs.ErrQueueFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	deadline := patient(t)
	for cqp.State() != verbs.StateError {
		select {
		case <-r.c.events:
		case <-deadline.Done():
			t.Fatalf("the queue pair is in %v after its CQ overran", cqp.State())
		}
	}
	wantState(t, r.c.qp, verbs.StateRTS)
	r.c.must(verbs.SendWR{Op: verbs.OpNop})
}

func testWait(t *testing.T, p Pair) {
	r := newRig(t, p)
	woken := make(chan error)
	for range 20 {
		go func() { woken <- r.s.rcq.Wait(patient(t)) }()
		r.s.recv(verbs.RecvWR{SGL: r.s.at(0, 8)})
		r.c.must(verbs.SendWR{Op: verbs.OpSend, SGL: r.c.at(0, 8)})
		if err := <-woken; err != nil {
			t.Fatal(err)
		}
		if err := r.s.rcq.Wait(patient(t)); err != nil {
			t.Fatalf("Wait with a completion to poll: %v", err)
		}
		if n := r.s.rcq.Poll(make([]verbs.WC, 2)); n != 1 {
			t.Fatalf("polled %d completions, want 1", n)
		}
	}
}

func testWaitEnds(t *testing.T, p Pair) {
	s := newSide(t, p.Client)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.cq.Wait(ctx) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	cq := s.newCQ(4)
	go func() { ended <- cq.Wait(context.Background()) }()
	if err := cq.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func testHandler(t *testing.T, p Pair) {
	r := newRig(t, p)
	const total, inCQ = 200, 8
	room := make(chan struct{}, inCQ) // a place in the CQ
	var polled atomic.Int64
	done := make(chan struct{})
	// The handler polls: it runs with no lock held.
	cq, err := p.Client.CreateCQ(verbs.CQInit{Depth: inCQ, Handler: func(cq verbs.CQ) {
		var wcs [3]verbs.WC
		for n := cq.Poll(wcs[:]); n > 0; n = cq.Poll(wcs[:]) {
			if polled.Add(int64(n)) == total {
				close(done)
			}
			for range n {
				<-room
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	cqp := r.c.newQPWith(verbs.QPInit{SendCQ: cq})
	r.join(cqp, r.s.newQP())
	patience := patient(t)
	for range total {
		select {
		case room <- struct{}{}:
		case <-patience.Done():
			t.Fatalf("the handler saw %d completions and no more", polled.Load())
		}
		r.c.postTo(cqp, r.remote(verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: r.c.at(0, 8)}, 0))
	}
	select {
	case <-done:
	case <-patience.Done():
		t.Fatalf("the handler saw %d completions, want %d", polled.Load(), total)
	}
}

func testInvalid(t *testing.T, p Pair) {
	c, s := newSide(t, p.Client), newSide(t, p.Server)
	attr := p.Client.Attr()
	for name, init := range map[string]verbs.QPInit{
		"no CQs":              {SendDepth: 1, RecvDepth: 1},
		"another device's CQ": {SendCQ: s.cq, RecvCQ: c.rcq, SendDepth: 1, RecvDepth: 1},
		"too deep":            {SendCQ: c.cq, RecvCQ: c.rcq, SendDepth: attr.MaxQPDepth + 1, RecvDepth: 1},
		"negative depth":      {SendCQ: c.cq, RecvCQ: c.rcq, SendDepth: -1, RecvDepth: 1},
		"another device's MR": {SendCQ: c.cq, RecvCQ: c.rcq, SendDepth: 4, RecvDepth: 1, SendRing: s.mr},
	} {
		if _, err := c.pd.CreateQP(init); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	if _, err := p.Client.CreateCQ(verbs.CQInit{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a CQ of no depth: got %v, want ErrInvalid", err)
	}
	if _, err := c.pd.RegMR(make([]byte, 8), verbs.AccessRemoteWrite); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("remote write without local write: got %v, want ErrInvalid", err)
	}
	if _, err := c.pd.RegMR(make([]byte, 8), 0x80); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("undefined access: got %v, want ErrInvalid", err)
	}
	if _, err := c.pd.RegMR(nil, 0); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("no memory: got %v, want ErrInvalid", err)
	}
	if _, err := c.pd.AllocMW(3); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a window of type 3: got %v, want ErrInvalid", err)
	}
	conn, err := p.Dial(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Connect(patient(t), s.qp, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("connecting another device's queue pair: got %v, want ErrInvalid", err)
	}
}
