package softdev

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"polder/verbs"
	"polder/verbs/softnic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

// end is a device with one of everything.
type end struct {
	t    testing.TB
	dev  *Device
	pd   verbs.PD
	cq   verbs.CQ
	qp   verbs.QP
	mr   verbs.MR
	mem  []byte
	link softnic.Link
	wire *wire
}

func newEnd(t testing.TB, cfg softnic.Config, g *Group, cq verbs.CQInit) *end {
	t.Helper()
	e := &end{t: t, mem: make([]byte, 1<<20)}
	var err error
	if e.dev, err = New(cfg, g); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.dev.Close() })
	if e.pd, err = e.dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if cq.Depth == 0 {
		cq.Depth = 256
	}
	if e.cq, err = e.dev.CreateCQ(cq); err != nil {
		t.Fatal(err)
	}
	if e.mr, err = e.pd.RegMR(e.mem, allAccess); err != nil {
		t.Fatal(err)
	}
	e.qp = e.newQP(verbs.QPInit{})
	return e
}

func (e *end) newQP(init verbs.QPInit) verbs.QP {
	e.t.Helper()
	init.SendCQ, init.RecvCQ = e.cq, e.cq
	if init.SendDepth == 0 {
		init.SendDepth, init.RecvDepth = 64, 64
	}
	qp, err := e.pd.CreateQP(init)
	if err != nil {
		e.t.Fatal(err)
	}
	return qp
}

// loop connects the end's queue pair to itself.
func (e *end) loop() *end {
	e.t.Helper()
	if err := e.dev.ConnectLoopback(e.qp, e.qp); err != nil {
		e.t.Fatal(err)
	}
	return e
}

// wire is a driver with a bounded buffer, which the test empties.
type wire struct {
	mu      sync.Mutex
	frames  [][]byte // guarded by mu
	room    int
	flushes atomic.Int32
	dev     *Device // the sender's
}

func (w *wire) Send(p *softnic.Packet) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frames = append(w.frames, append(p.AppendHeader(nil), p.Payload...))
}

func (w *wire) Ready() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.frames) < w.room
}

func (w *wire) Flush() {
	if !w.dev.g.mu.TryLock() {
		panic("BUG: Flush is called with the lock held")
	}
	w.dev.g.mu.Unlock()
	w.flushes.Add(1)
}

// move delivers what the wire holds to the other end.
func (w *wire) move(t testing.TB, to *Device, link softnic.Link) {
	w.mu.Lock()
	frames := w.frames
	w.frames = nil
	w.mu.Unlock()
	var p softnic.Packet
	to.Deliver(link, func() (*softnic.Packet, bool) {
		if len(frames) == 0 {
			return nil, false
		}
		if err := p.Decode(frames[0]); err != nil {
			t.Fatal(err)
		}
		frames = frames[1:]
		return &p, true
	})
}

// newWired returns two devices with locks of their own, joined by wires of so
// much room.
func newWired(t testing.TB, room int) (a, b *end) {
	t.Helper()
	a = newEnd(t, softnic.Config{MTU: 1024}, nil, verbs.CQInit{})
	b = newEnd(t, softnic.Config{MTU: 1024}, nil, verbs.CQInit{})
	for _, e := range []*end{a, b} {
		e.wire = &wire{room: room, dev: e.dev}
		var err error
		if e.link, err = e.dev.AddLink(e.wire); err != nil {
			t.Fatal(err)
		}
	}
	replied := false
	if err := b.dev.ConnectQP(b.qp, b.link, a.qp.Num(), func() { replied = true }); err != nil || !replied {
		t.Fatal(err, replied)
	}
	if err := a.dev.ConnectQP(a.qp, a.link, b.qp.Num(), nil); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// settle moves packets both ways until there are none, and returns the most
// that a wire ever held.
func settle(t testing.TB, a, b *end) (most int) {
	for {
		moved := false
		for _, e := range [][2]*end{{a, b}, {b, a}} {
			e[0].wire.mu.Lock()
			n := len(e[0].wire.frames)
			e[0].wire.mu.Unlock()
			most = max(most, n)
			if n > 0 {
				moved = true
				e[0].wire.move(t, e[1].dev, e[1].link)
			}
			e[0].dev.Resume(e[0].link)
		}
		if !moved {
			return most
		}
	}
}

// TestBoundedWire: a driver with little room carries everything and never
// holds more than it said.
func TestBoundedWire(t *testing.T) {
	for _, room := range []int{1, 2, 7} {
		a, b := newWired(t, room)
		for i := range a.mem {
			a.mem[i] = byte(i * 5)
		}
		var wrs []verbs.SendWR
		for i := range 10 {
			op := []verbs.Opcode{verbs.OpWrite, verbs.OpRead}[i%2]
			off := uint64(i/2) * 20_000
			wrs = append(wrs, verbs.SendWR{ID: uint64(i), Op: op, Flags: verbs.SendSignaled | verbs.SendFence,
				SGL:        []verbs.SGE{{Addr: a.mr.Addr() + off + uint64(i%2)<<19, Length: 20_000, LKey: a.mr.LKey()}},
				RemoteAddr: b.mr.Addr() + off, RKey: b.mr.RKey()})
		}
		if err := a.qp.PostSend(wrs...); err != nil {
			t.Fatal(err)
		}
		if most := settle(t, a, b); most > room {
			t.Errorf("a wire with room for %d packets held %d", room, most)
		}
		wcs := make([]verbs.WC, 16)
		if n := a.cq.Poll(wcs); n != len(wrs) {
			t.Fatalf("room %d: got %d completions, want %d", room, n, len(wrs))
		}
		for i := range 100_000 {
			if got, want := a.mem[1<<19+i], byte(i*5); got != want {
				t.Fatalf("room %d: byte %d came back as %d, want %d", room, i, got, want)
			}
		}
		if a.wire.flushes.Load() == 0 {
			t.Error("nothing was flushed")
		}
	}
}

func TestOneFlushPerPost(t *testing.T) {
	a, b := newWired(t, 1000)
	wrs := make([]verbs.SendWR, 32)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Op: verbs.OpFetchAdd, SGL: []verbs.SGE{{Addr: a.mr.Addr(), Length: 8, LKey: a.mr.LKey()}},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), Swap: 1}
	}
	before := a.wire.flushes.Load()
	if err := a.qp.PostSend(wrs...); err != nil {
		t.Fatal(err)
	}
	if got := a.wire.flushes.Load() - before; got != 1 {
		t.Errorf("got %d flushes for one PostSend, want 1", got)
	}
	settle(t, a, b)
}

func TestRemoveLink(t *testing.T) {
	a, b := newWired(t, 1)
	var events []verbs.AsyncEvent
	extra := a.newQP(verbs.QPInit{OnEvent: func(e verbs.AsyncEvent) { events = append(events, e) }})
	if err := a.dev.ConnectQP(extra, a.link, b.qp.Num(), nil); err != nil {
		t.Fatal(err)
	}
	a.dev.RemoveLink(a.link)
	a.dev.RemoveLink(a.link)
	if len(events) != 2 || events[1].Type != verbs.EventDisconnected || events[1].QPN != extra.Num() {
		t.Errorf("got the events %v", events)
	}
	if a.qp.State() != verbs.StateError {
		t.Errorf("the QP is in %v", a.qp.State())
	}
	held := len(a.wire.frames)
	a.dev.Resume(a.link)
	a.dev.Disconnect(a.link, 5)
	if got := len(a.wire.frames); got != held {
		t.Errorf("%d packets were sent on a removed link", got-held)
	}
	if err := a.dev.ConnectQP(a.newQP(verbs.QPInit{}), a.link, 1, nil); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("connecting over a removed link: got %v, want ErrClosed", err)
	}
	again, err := a.dev.AddLink(a.wire)
	if err != nil || again == a.link {
		t.Errorf("the next link is %d again (%v)", again, err)
	}
}

// TestDisconnect: an abandoned connection is news to the peer's queue pair.
func TestDisconnect(t *testing.T) {
	a, b := newWired(t, 10)
	a.dev.Disconnect(a.link, b.qp.Num())
	settle(t, a, b)
	if b.qp.State() != verbs.StateError {
		t.Errorf("the QP is in %v", b.qp.State())
	}
}

func TestHandlersRunUnlocked(t *testing.T) {
	var e *end
	calls := 0
	e = newEnd(t, softnic.Config{}, nil, verbs.CQInit{Handler: func(cq verbs.CQ) {
		calls++
		wcs := make([]verbs.WC, 64)
		if n := cq.Poll(wcs); n == 32 { // the whole batch, and then one more from here
			if err := e.qp.PostSend(verbs.SendWR{Flags: verbs.SendSignaled}); err != nil {
				t.Error(err)
			}
		}
	}})
	e.loop()
	wrs := make([]verbs.SendWR, 32)
	for i := range wrs {
		wrs[i].Flags = verbs.SendSignaled
	}
	if err := e.qp.PostSend(wrs...); err != nil {
		t.Fatal(err)
	}
	if calls != 2 {
		t.Errorf("the handler was called %d times for two batches", calls)
	}
}

// TestWait: every waiter gets its completion, whoever is woken first.
func TestWait(t *testing.T) {
	e := newEnd(t, softnic.Config{}, nil, verbs.CQInit{}).loop()
	const waiters, each = 8, 100
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got atomic.Int32
	for range waiters {
		wg.Go(func() {
			var wc [1]verbs.WC
			for got.Load() < waiters*each {
				if err := e.cq.Wait(ctx); err != nil {
					return
				}
				if e.cq.Poll(wc[:]) == 1 && got.Add(1) == waiters*each {
					cancel()
				}
			}
		})
	}
	for range waiters * each {
		for errors.Is(e.qp.PostSend(verbs.SendWR{Flags: verbs.SendSignaled}), verbs.ErrQueueFull) {
		}
		for int32(e.backlog()) > 200 {
		}
	}
	wg.Wait()
	if n := got.Load(); n != waiters*each {
		t.Errorf("got %d completions, want %d", n, waiters*each)
	}
}

func (e *end) backlog() int {
	e.dev.g.mu.Lock()
	defer e.dev.g.mu.Unlock()
	return e.dev.nic.CQLen(e.cq.Num())
}

func TestWaitEnds(t *testing.T) {
	e := newEnd(t, softnic.Config{}, nil, verbs.CQInit{})
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() { errs <- e.cq.Wait(ctx) }()
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	cq, err := e.dev.CreateCQ(verbs.CQInit{Depth: 1})
	if err != nil {
		t.Fatal(err)
	}
	go func() { errs <- cq.Wait(t.Context()) }()
	if err := cq.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("CQ closed: got %v, want ErrClosed", err)
	}
	go func() { errs <- e.cq.Wait(t.Context()) }()
	e.dev.Close()
	if err := <-errs; !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("device closed: got %v, want ErrClosed", err)
	}
}

// TestEndlessChain: a chain that never waits leaves the device usable, and
// ends with it; goleak finds its goroutine otherwise.
func TestEndlessChain(t *testing.T) {
	g := NewGroup()
	e, other := newEnd(t, softnic.Config{}, g, verbs.CQInit{}), newEnd(t, softnic.Config{}, g, verbs.CQInit{}).loop()
	ring, err := e.pd.RegMR(make([]byte, 2*verbs.WQESize), allAccess)
	if err != nil {
		t.Fatal(err)
	}
	qp := e.newQP(verbs.QPInit{Managed: true, SendRing: ring, SendDepth: 2})
	if err := e.dev.ConnectLoopback(qp, qp); err != nil {
		t.Fatal(err)
	}
	if err := qp.EnableSend(1<<64 - 1); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := other.qp.PostSend(verbs.SendWR{Flags: verbs.SendSignaled}); err != nil {
			t.Fatal(err)
		}
		if err := other.cq.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		other.cq.Poll(make([]verbs.WC, 1))
	}
	if e.dev.Counters().WorkRequests == 0 {
		t.Error("the chain does not run")
	}
}

func TestOwnership(t *testing.T) {
	a, b := newEnd(t, softnic.Config{}, nil, verbs.CQInit{}), newEnd(t, softnic.Config{}, nil, verbs.CQInit{})
	invalid := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", what, err)
		}
	}
	_, err := a.pd.CreateQP(verbs.QPInit{SendCQ: b.cq, RecvCQ: a.cq, SendDepth: 1})
	invalid("another device's CQ", err)
	_, err = a.pd.CreateQP(verbs.QPInit{})
	invalid("no CQ", err)
	_, err = a.pd.CreateQP(verbs.QPInit{SendCQ: a.cq, RecvCQ: a.cq, SendDepth: 1, SendRing: b.mr})
	invalid("another device's ring", err)
	_, err = a.pd.CreateQP(verbs.QPInit{SendCQ: a.cq, RecvCQ: a.cq, SendDepth: 1 << 20})
	invalid("too deep", err)
	_, err = a.pd.CreateQP(verbs.QPInit{SendCQ: a.cq, RecvCQ: a.cq, Managed: true})
	invalid("managed and empty", err)
	_, err = a.pd.CreateQP(verbs.QPInit{SendCQ: a.cq, RecvCQ: a.cq, SendDepth: 1 << 15, SendRing: a.mr})
	invalid("ring too small", err)
	invalid("another device's QP", a.dev.ConnectLoopback(a.qp, b.qp))
	_, err = a.dev.QPNum(b.qp)
	invalid("number of another device's QP", err)
	_, err = a.pd.RegMR(nil, 0)
	invalid("no memory", err)
	_, err = a.pd.RegMR(a.mem, verbs.AccessRemoteWrite)
	invalid("remote write without local", err)
	_, err = a.pd.RegMR(a.mem[1:], allAccess)
	invalid("unaligned for atomics", err)
	_, err = a.pd.AllocMW(9)
	invalid("window type", err)
	_, err = a.dev.CreateCQ(verbs.CQInit{})
	invalid("CQ of depth 0", err)
	_, err = New(softnic.Config{MTU: 1}, nil)
	invalid("MTU", err)
}

// TestBusyObjects: nothing goes while something else needs it, and everything
// goes twice.
func TestBusyObjects(t *testing.T) {
	e := newEnd(t, softnic.Config{}, nil, verbs.CQInit{})
	ring, err := e.pd.RegMR(make([]byte, 64*verbs.WQESize), allAccess)
	if err != nil {
		t.Fatal(err)
	}
	qp := e.newQP(verbs.QPInit{SendRing: ring})
	mw, err := e.pd.AllocMW(verbs.MWType2B)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{"ring": ring.Deregister, "CQ": e.cq.Close, "PD": e.pd.Close} {
		if err := f(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("%s: got %v, want ErrBusy", name, err)
		}
	}
	for range 2 {
		for i, f := range []func() error{qp.Close, e.qp.Close, mw.Dealloc, ring.Deregister, e.mr.Deregister, e.cq.Close, e.pd.Close} {
			if err := f(); err != nil {
				t.Errorf("step %d: %v", i, err)
			}
		}
	}
	closed := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s: got %v, want ErrClosed", what, err)
		}
	}
	closed("PostSend", e.qp.PostSend(verbs.SendWR{}))
	closed("PostRecv", e.qp.PostRecv(verbs.RecvWR{}))
	closed("EnableSend", e.qp.EnableSend(1))
	closed("ConnectLoopback", e.dev.ConnectLoopback(e.qp, e.qp))
	closed("Wait", e.cq.Wait(t.Context()))
	_, err = e.pd.AllocMW(verbs.MWType1)
	closed("AllocMW", err)
	hooked := 0
	e.dev.OnClose(func() { hooked++ })
	e.dev.OnClose(func() { hooked += 100 })()
	for range 2 {
		if err := e.dev.Close(); err != nil {
			t.Error(err)
		}
	}
	e.dev.OnClose(func() { hooked += 10 })
	if hooked != 11 {
		t.Errorf("hooks ran: got %d, want 11", hooked)
	}
	_, err = e.dev.AllocPD()
	closed("AllocPD", err)
	_, err = e.dev.CreateCQ(verbs.CQInit{Depth: 1})
	closed("CreateCQ", err)
	_, err = e.dev.AddLink(&wire{})
	closed("AddLink", err)
	if n := e.cq.Poll(make([]verbs.WC, 1)); n != 0 {
		t.Errorf("Poll of a closed device: %d", n)
	}
	select {
	case <-e.dev.Done():
	default:
		t.Error("Done is not closed")
	}
}

func TestWindowKeyFollowsTheBind(t *testing.T) {
	e := newEnd(t, softnic.Config{}, nil, verbs.CQInit{}).loop()
	mr, err := e.pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite|verbs.AccessMWBind)
	if err != nil {
		t.Fatal(err)
	}
	mw, err := e.pd.AllocMW(verbs.MWType1)
	if err != nil {
		t.Fatal(err)
	}
	want := verbs.MakeRKey(mw.RKey().Index(), 0x77)
	err = e.qp.PostSend(verbs.SendWR{Op: verbs.OpBindMW, Flags: verbs.SendSignaled, RKey: want, BindLKey: mr.LKey(),
		RemoteAddr: mr.Addr(), BindLength: 64, BindAccess: verbs.AccessRemoteRead})
	if err != nil {
		t.Fatal(err)
	}
	var wc [1]verbs.WC
	if n := e.cq.Poll(wc[:]); n != 1 || wc[0].Err() != nil {
		t.Fatal(fmt.Sprint(n, wc))
	}
	if got := mw.RKey(); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
