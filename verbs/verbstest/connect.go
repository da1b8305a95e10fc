package verbstest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"polder/verbs"
)

var connectTests = []test{
	{"private data travels both ways", testPrivateData},
	{"a rejection shows its reason, and the queue pair can try again", testReject},
	{"a request is answered once", testAnsweredOnce},
	{"a connected queue pair cannot be connected again", testConnectTwice},
	{"Connect gives up with its context", testConnectCancelled},
	{"Accept gives up with its context", testAcceptCancelled},
	{"closing the listener ends Accept", testListenerClose},
	{"Conn.Close errors every queue pair on both sides", testConnClose},
	{"Device.Close disconnects its peers", testDeviceClose},
	{"closing one queue pair leaves the others", testQPClose},
	{"failing one queue pair leaves the others", testQPFail},
	{"a closed connection connects nothing", testConnectAfterClose},
	{"a device can dial the same listener many times", testManyConns},
	{"everything can be closed twice", testCloseTwice},
	{"what is in use cannot be closed", testBusy},
}

func testPrivateData(t *testing.T, p Pair) {
	c, s := newSide(t, p.Client), newSide(t, p.Server)
	conn, err := p.Dial(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 100, verbs.MaxPrivateData} {
		question, answer := make([]byte, n), make([]byte, verbs.MaxPrivateData-n)
		fill(question, 1)
		fill(answer, 2)
		heard := make(chan []byte, 1)
		go func() {
			req, err := p.Listener.Accept(patient(t))
			if err != nil {
				t.Error(err)
				close(heard)
				return
			}
			heard <- bytes.Clone(req.Private())
			if err := req.Accept(s.newQP(), answer); err != nil {
				t.Error(err)
			}
		}()
		got, err := conn.Connect(patient(t), c.newQP(), question)
		if err != nil {
			t.Fatal(err)
		}
		wantBytes(t, "request", <-heard, question)
		wantBytes(t, "reply", got, answer)
	}
	if _, err := conn.Connect(patient(t), c.newQP(), make([]byte, verbs.MaxPrivateData+1)); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("too much private data: got %v, want ErrInvalid", err)
	}
}

func testReject(t *testing.T, p Pair) {
	r := newRig(t, p)
	qp := r.c.newQP()
	answered := make(chan error, 1)
	go func() {
		req, err := p.Listener.Accept(patient(t))
		if err == nil {
			err = req.Reject("no room at the inn")
		}
		answered <- err
	}()
	_, err := r.conn.Connect(patient(t), qp, nil)
	var reject *verbs.RejectError
	if !errors.As(err, &reject) || reject.Reason != "no room at the inn" {
		t.Fatalf("got %v, want a RejectError with the reason", err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if st := qp.State(); st == verbs.StateRTS || st == verbs.StateError {
		t.Fatalf("the rejected queue pair is in %v", st)
	}
	r.join(qp, r.s.newQP())
	r.c.mustOn(qp, r.remote(verbs.SendWR{Op: verbs.OpRead, SGL: r.c.at(0, 8)}, 0))
}

func testAnsweredOnce(t *testing.T, p Pair) {
	c, s := newSide(t, p.Client), newSide(t, p.Server)
	conn, err := p.Dial(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	another := s.newQP()
	go func() {
		req, err := p.Listener.Accept(patient(t))
		if err != nil {
			answered <- err
			return
		}
		err = req.Accept(s.qp, nil)
		for _, again := range []error{req.Accept(another, nil), req.Reject("changed my mind")} {
			if !errors.Is(again, verbs.ErrInvalid) && !errors.Is(again, verbs.ErrBadState) {
				t.Errorf("second answer: got %v, want ErrInvalid or ErrBadState", again)
			}
		}
		answered <- err
	}()
	if _, err := conn.Connect(patient(t), c.qp, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	wantState(t, c.qp, verbs.StateRTS)
	wantState(t, s.qp, verbs.StateRTS)
}

func testConnectTwice(t *testing.T, p Pair) {
	r := newRig(t, p)
	if _, err := r.conn.Connect(patient(t), r.c.qp, nil); !errors.Is(err, verbs.ErrBadState) {
		t.Errorf("got %v, want ErrBadState", err)
	}
	wantState(t, r.c.qp, verbs.StateRTS)
}

func testConnectCancelled(t *testing.T, p Pair) {
	c := newSide(t, p.Client)
	conn, err := p.Dial(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	arrived := make(chan verbs.ConnRequest, 1)
	go func() {
		defer cancel()
		req, err := p.Listener.Accept(patient(t))
		if err != nil {
			t.Error(err)
		}
		arrived <- req
	}()
	if _, err := conn.Connect(ctx, c.qp, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if req := <-arrived; req != nil {
		// Whatever the answer does, it must not connect the queue pair that
		// gave up, and must not hurt the connection.
		_ = req.Reject("too late")
	}
	r := &rig{t: t, pair: p, conn: conn, c: c, s: newSide(t, p.Server)}
	r.join(c.newQP(), r.s.qp)
}

func testAcceptCancelled(t *testing.T, p Pair) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.Listener.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func testListenerClose(t *testing.T, p Pair) {
	r := newRig(t, p)
	ended := make(chan error, 1)
	go func() {
		_, err := p.Listener.Accept(context.Background())
		ended <- err
	}()
	if err := p.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Accept: got %v, want ErrClosed", err)
	}
	if _, err := p.Listener.Accept(patient(t)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Accept after Close: got %v, want ErrClosed", err)
	}
	if err := p.Listener.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if conn, err := p.Dial(patient(t)); err == nil {
		conn.Close()
		t.Error("a closed listener could be dialled")
	}
	if _, err := r.conn.Connect(patient(t), r.c.newQP(), nil); err == nil {
		t.Error("a queue pair was connected after the listener was closed")
	}
}

// wantDown checks that both ends of r's connection have gone, whichever way.
func (r *rig) wantDown() {
	r.t.Helper()
	for _, conn := range []verbs.Conn{r.conn, r.back} {
		select {
		case <-conn.Done():
		case <-patient(r.t).Done():
			r.t.Fatal("the connection's Done is not closed")
		}
		if conn.Err() == nil {
			r.t.Error("Done is closed, and Err is nil")
		}
	}
	r.c.event(verbs.EventDisconnected, r.c.qp)
	r.s.event(verbs.EventDisconnected, r.s.qp)
	wantState(r.t, r.c.qp, verbs.StateError)
	wantState(r.t, r.s.qp, verbs.StateError)
}

// testQPFail makes a queue pair fail: what was posted is flushed, and the peer is told.
func testQPFail(t *testing.T, p Pair) {
	r := newRig(t, p)
	cqp, sqp := r.joinMore()
	r.s.recv(verbs.RecvWR{ID: 71, SGL: r.s.at(0, 8)})
	for range 2 {
		if err := r.s.qp.Fail(); err != nil {
			t.Fatal(err)
		}
	}
	wantState(t, r.s.qp, verbs.StateError)
	if wc := poll(t, r.s.rcq, 1)[0]; wc.ID != 71 || wc.Status != verbs.StatusWRFlushErr {
		t.Errorf("the posted receive gave %+v, want it flushed", wc)
	}
	r.c.event(verbs.EventDisconnected, r.c.qp)
	wantState(t, r.c.qp, verbs.StateError)
	for _, qp := range []verbs.QP{cqp, sqp} {
		wantState(t, qp, verbs.StateRTS)
	}
	if err := sqp.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sqp.Fail(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("failing a queue pair that is closed: got %v, want %v", err, verbs.ErrClosed)
	}
}

func testConnClose(t *testing.T, p Pair) {
	r := newRig(t, p)
	cqp, sqp := r.joinMore()
	select {
	case <-r.conn.Done():
		t.Fatalf("Done is closed on a living connection: %v", r.conn.Err())
	default:
	}
	if err := r.conn.Err(); err != nil {
		t.Fatalf("Err of a living connection: %v", err)
	}
	r.c.recv(verbs.RecvWR{ID: 70, SGL: r.c.at(0, 8)})
	r.s.recv(verbs.RecvWR{ID: 71, SGL: r.s.at(0, 8)})
	if err := r.conn.Close(); err != nil {
		t.Fatal(err)
	}
	r.wantDown()
	if err := r.conn.Err(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Err after Close: got %v, want ErrClosed", err)
	}
	wantState(t, cqp, verbs.StateError)
	r.s.event(verbs.EventDisconnected, sqp)
	for i, s := range []*side{r.c, r.s} {
		wc := poll(t, s.rcq, 1)[0]
		if wc.ID != uint64(70+i) || wc.Status != verbs.StatusWRFlushErr {
			t.Errorf("the posted receive gave %+v, want it flushed", wc)
		}
		// What is posted from now on is flushed too.
		if wc := s.do(verbs.SendWR{ID: 80, Op: verbs.OpNop}); wc.Status != verbs.StatusWRFlushErr {
			t.Errorf("a request posted in the error state: got %v, want %v", wc.Status, verbs.StatusWRFlushErr)
		}
	}
}

func testDeviceClose(t *testing.T, p Pair) {
	r := newRig(t, p)
	if err := p.Server.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.conn.Done():
	case <-patient(t).Done():
		t.Fatal("the client does not notice that the server's device is closed")
	}
	r.c.event(verbs.EventDisconnected, r.c.qp)
	wantState(t, r.c.qp, verbs.StateError)
	if _, err := p.Server.AllocPD(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("AllocPD on a closed device: got %v, want ErrClosed", err)
	}
	if _, err := p.Server.CreateCQ(verbs.CQInit{Depth: 4}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("CreateCQ on a closed device: got %v, want ErrClosed", err)
	}
	if err := r.s.qp.PostSend(verbs.SendWR{Op: verbs.OpNop}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("PostSend on a closed device: got %v, want ErrClosed", err)
	}
	if err := r.s.cq.Wait(patient(t)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Wait on a closed device: got %v, want ErrClosed", err)
	}
}

func testQPClose(t *testing.T, p Pair) {
	r := newRig(t, p)
	cqp, sqp := r.joinMore()
	if err := sqp.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sqp.PostSend(verbs.SendWR{Op: verbs.OpNop}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("PostSend on a closed queue pair: got %v, want ErrClosed", err)
	}
	// Its peer's requests fail, sooner or later but without hanging.
	wc := r.c.doOn(cqp, r.remote(verbs.SendWR{Op: verbs.OpRead, SGL: r.c.at(0, 8)}, 0))
	if wc.Status == verbs.StatusSuccess {
		t.Error("a READ through a closed queue pair succeeded")
	}
	wantState(t, cqp, verbs.StateError)
	r.c.must(r.remote(verbs.SendWR{Op: verbs.OpRead, SGL: r.c.at(0, 8)}, 0))
}

func testConnectAfterClose(t *testing.T, p Pair) {
	r := newRig(t, p)
	r.conn.Close()
	if _, err := r.conn.Connect(patient(t), r.c.newQP(), nil); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func testManyConns(t *testing.T, p Pair) {
	r := newRig(t, p)
	var conns []verbs.Conn
	var qps []verbs.QP
	for range 8 {
		conn, err := p.Dial(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		more := &rig{t: t, pair: p, conn: conn, c: r.c, s: r.s}
		cqp := r.c.newQP()
		more.join(cqp, r.s.newQP())
		for _, other := range append(conns, r.back) {
			if other == more.back {
				t.Error("two connections have the same server end")
			}
		}
		conns, qps = append(conns, more.back), append(qps, cqp)
		if conn.LocalAddr() == "" || conn.RemoteAddr() == "" {
			t.Error("a connection has no addresses for logs")
		}
	}
	for i, qp := range qps {
		r.c.mustOn(qp, r.remote(verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, SGL: r.c.at(8*i, 8)}, 8*i))
	}
	if !strings.Contains(p.Listener.Addr(), r.conn.RemoteAddr()) && r.conn.RemoteAddr() != p.Listener.Addr() {
		t.Errorf("the client's connection names its peer %q, the listener calls itself %q",
			r.conn.RemoteAddr(), p.Listener.Addr())
	}
}

func testCloseTwice(t *testing.T, p Pair) {
	r := newRig(t, p)
	closers := []interface{ Close() error }{r.c.qp, r.s.qp, r.conn, r.back}
	for _, s := range []*side{r.c, r.s} {
		closers = append(closers, s.cq, s.rcq)
	}
	for range 2 {
		for _, c := range closers {
			if err := c.Close(); err != nil {
				t.Errorf("cannot close %T: %v", c, err)
			}
		}
	}
	for _, s := range []*side{r.c, r.s} {
		if err := s.mr.Deregister(); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := s.pd.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for range 2 {
		for _, c := range []interface{ Close() error }{p.Listener, p.Client, p.Server} {
			if err := c.Close(); err != nil {
				t.Errorf("cannot close %T: %v", c, err)
			}
		}
	}
}

func testBusy(t *testing.T, p Pair) {
	s := newSide(t, p.Server)
	if err := s.cq.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("closing a CQ that a queue pair uses: got %v, want ErrBusy", err)
	}
	if err := s.pd.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("closing a domain with a queue pair and memory: got %v, want ErrBusy", err)
	}
	if err := s.qp.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.pd.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("closing a domain with memory: got %v, want ErrBusy", err)
	}
	if err := s.mr.Deregister(); err != nil {
		t.Fatal(err)
	}
	mw, err := s.pd.AllocMW(verbs.MWType1)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.pd.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("closing a domain with a window: got %v, want ErrBusy", err)
	}
	if err := mw.Dealloc(); err != nil {
		t.Fatal(err)
	}
	if err := s.pd.Close(); err != nil {
		t.Errorf("closing an empty domain: %v", err)
	}
	if err := s.cq.Close(); err != nil {
		t.Errorf("closing an unused CQ: %v", err)
	}
}
