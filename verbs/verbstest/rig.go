// Package verbstest is the conformance suite of verbs drivers: what every
// driver must do, tested through the interfaces of package verbs alone.
//
// [Run] is the suite. [Replay] runs a random script and returns a transcript
// that must be the same over every driver.
package verbstest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"polder/verbs"
)

// Pair is two devices of one driver that can reach each other.
type Pair struct {
	Client, Server verbs.Device
	// Listener is the server's.
	Listener verbs.Listener
	// Dial connects the client to Listener.
	Dial func(ctx context.Context) (verbs.Conn, error)
}

// Run runs the suite. NewPair makes a new pair of devices each time, and
// registers with t.Cleanup what has to be closed.
func Run(t *testing.T, newPair func(t *testing.T) Pair) {
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"Connect", connectTests},
		{"Data", dataTests},
		{"Queues", queueTests},
		{"Protection", protectionTests},
		{"Windows", windowTests},
		{"Chains", chainTests},
		{"Concurrency", concurrencyTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.tests {
				t.Run(c.name, func(t *testing.T) { c.run(t, newPair(t)) })
			}
		})
	}
}

type test struct {
	name string
	run  func(t *testing.T, p Pair)
}

// patience is how long the suite waits for what must happen. Nothing is timed
// against it: it turns a hang into a failure.
const patience = time.Minute

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// side is one end's objects: a domain, memory and a queue pair.
type side struct {
	t      *testing.T
	dev    verbs.Device
	pd     verbs.PD
	cq     verbs.CQ // of the send queue
	rcq    verbs.CQ // of the receive queue
	qp     verbs.QP
	mr     verbs.MR
	buf    []byte // mr's memory
	events chan verbs.AsyncEvent
}

const (
	sideBuf   = 256 << 10
	sideDepth = 64
)

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite |
	verbs.AccessRemoteAtomic | verbs.AccessMWBind

func newSide(t *testing.T, dev verbs.Device) *side {
	t.Helper()
	s := &side{t: t, dev: dev, buf: make([]byte, sideBuf), events: make(chan verbs.AsyncEvent, 1024)}
	var err error
	if s.pd, err = dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	s.cq = s.newCQ(4 * sideDepth)
	s.rcq = s.newCQ(4 * sideDepth)
	s.mr = s.reg(s.buf, allAccess)
	s.qp = s.newQP()
	return s
}

func (s *side) newCQ(depth int) verbs.CQ {
	s.t.Helper()
	cq, err := s.dev.CreateCQ(verbs.CQInit{Depth: depth})
	if err != nil {
		s.t.Fatal(err)
	}
	return cq
}

func (s *side) reg(buf []byte, access verbs.Access) verbs.MR {
	s.t.Helper()
	mr, err := s.pd.RegMR(buf, access)
	if err != nil {
		s.t.Fatal(err)
	}
	return mr
}

// newQP makes another queue pair with the side's queues and event channel.
func (s *side) newQP() verbs.QP {
	s.t.Helper()
	return s.newQPWith(verbs.QPInit{})
}

// newQPWith makes a queue pair, with the side's own for what init leaves out.
func (s *side) newQPWith(init verbs.QPInit) verbs.QP {
	s.t.Helper()
	if init.SendCQ == nil {
		init.SendCQ = s.cq
	}
	if init.RecvCQ == nil {
		init.RecvCQ = s.rcq
	}
	if init.SendDepth == 0 {
		init.SendDepth = sideDepth
	}
	if init.RecvDepth == 0 {
		init.RecvDepth = sideDepth
	}
	if init.OnEvent == nil {
		init.OnEvent = func(e verbs.AsyncEvent) { s.events <- e }
	}
	qp, err := s.pd.CreateQP(init)
	if err != nil {
		s.t.Fatal(err)
	}
	return qp
}

// sge names length bytes at off of the side's memory.
func (s *side) sge(off, length int) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr() + uint64(off), Length: uint32(length), LKey: s.mr.LKey()}
}

// at names length bytes at off of the side's memory as a request's SGL.
func (s *side) at(off, length int) []verbs.SGE { return []verbs.SGE{s.sge(off, length)} }

func (s *side) post(wrs ...verbs.SendWR) {
	s.t.Helper()
	s.postTo(s.qp, wrs...)
}

func (s *side) postTo(qp verbs.QP, wrs ...verbs.SendWR) {
	s.t.Helper()
	if err := qp.PostSend(wrs...); err != nil {
		s.t.Fatalf("cannot post: %v", err)
	}
}

func (s *side) recv(wrs ...verbs.RecvWR) {
	s.t.Helper()
	if err := s.qp.PostRecv(wrs...); err != nil {
		s.t.Fatalf("cannot post a receive: %v", err)
	}
}

// poll waits for n completions.
func poll(t *testing.T, cq verbs.CQ, n int) []verbs.WC {
	t.Helper()
	wcs, err := pollAll(cq, n)
	if err != nil {
		t.Fatal(err)
	}
	return wcs
}

// pollAll is poll for goroutines that must not call t.Fatal.
func pollAll(cq verbs.CQ, n int) ([]verbs.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	wcs := make([]verbs.WC, n)
	for got := 0; got < n; {
		k := cq.Poll(wcs[got:])
		if got += k; k > 0 {
			continue
		}
		if err := cq.Wait(ctx); err != nil {
			return nil, fmt.Errorf("after %d of %d completions (%v): %w", got, n, wcs[:got], err)
		}
	}
	return wcs, nil
}

// do posts one signaled request and returns its completion.
func (s *side) do(wr verbs.SendWR) verbs.WC {
	s.t.Helper()
	return s.doOn(s.qp, wr)
}

func (s *side) doOn(qp verbs.QP, wr verbs.SendWR) verbs.WC {
	s.t.Helper()
	wr.Flags |= verbs.SendSignaled
	s.postTo(qp, wr)
	wc := poll(s.t, s.cq, 1)[0]
	if wc.ID != wr.ID || wc.QPN != qp.Num() {
		s.t.Fatalf("got the completion %+v, want ID %d of QP %d", wc, wr.ID, qp.Num())
	}
	return wc
}

// must posts one request, which must succeed.
func (s *side) must(wr verbs.SendWR) verbs.WC {
	s.t.Helper()
	return s.mustOn(s.qp, wr)
}

func (s *side) mustOn(qp verbs.QP, wr verbs.SendWR) verbs.WC {
	s.t.Helper()
	wc := s.doOn(qp, wr)
	if wc.Status != verbs.StatusSuccess {
		s.t.Fatalf("%v: got %v, want success", wr.Op, wc.Status)
	}
	if wc.Op != wr.Op {
		s.t.Fatalf("the completion says %v, want %v", wc.Op, wr.Op)
	}
	return wc
}

// event waits for an event of the given type and queue pair, and passes over
// others.
func (s *side) event(typ verbs.EventType, qp verbs.QP) {
	s.t.Helper()
	deadline := time.After(patience)
	var seen []verbs.AsyncEvent
	for {
		select {
		case e := <-s.events:
			if e.Type == typ && e.QPN == qp.Num() {
				return
			}
			seen = append(seen, e)
		case <-deadline:
			s.t.Fatalf("no event %q of QP %d; these came: %v", typ, qp.Num(), seen)
		}
	}
}

// wantState checks a queue pair's state.
func wantState(t *testing.T, qp verbs.QP, want verbs.State) {
	t.Helper()
	if got := qp.State(); got != want {
		t.Fatalf("QP %d is in %v, want %v", qp.Num(), got, want)
	}
}

// rig is two sides with a connected queue pair each.
type rig struct {
	t    *testing.T
	pair Pair
	conn verbs.Conn // the client's
	back verbs.Conn // the server's end of it
	c, s *side
}

func newRig(t *testing.T, p Pair) *rig {
	t.Helper()
	r := &rig{t: t, pair: p, c: newSide(t, p.Client), s: newSide(t, p.Server)}
	var err error
	if r.conn, err = p.Dial(patient(t)); err != nil {
		t.Fatal(err)
	}
	r.join(r.c.qp, r.s.qp)
	return r
}

// join connects a queue pair of the client's to one of the server's.
func (r *rig) join(cqp, sqp verbs.QP) {
	r.t.Helper()
	if err := r.tryJoin(cqp, sqp); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) tryJoin(cqp, sqp verbs.QP) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		req, err := r.pair.Listener.Accept(ctx)
		if err == nil {
			r.back = req.Conn()
			err = req.Accept(sqp, nil)
		}
		accepted <- err
	}()
	_, err := r.conn.Connect(ctx, cqp, nil)
	if err != nil {
		cancel()
	}
	if acceptErr := <-accepted; err == nil {
		err = acceptErr
	}
	return err
}

// joinMore makes and connects another queue pair on each side.
func (r *rig) joinMore() (cqp, sqp verbs.QP) {
	r.t.Helper()
	cqp, sqp = r.c.newQP(), r.s.newQP()
	r.join(cqp, sqp)
	return cqp, sqp
}

// remote aims wr at off of the server's memory.
func (r *rig) remote(wr verbs.SendWR, off int) verbs.SendWR {
	wr.RemoteAddr, wr.RKey = r.s.mr.Addr()+uint64(off), r.s.mr.RKey()
	return wr
}

// fill puts a pattern into b that depends on seed.
func fill(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
}

// wantBytes checks memory.
func wantBytes(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %d bytes, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
		}
	}
}
