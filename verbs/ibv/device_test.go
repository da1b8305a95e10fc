//go:build ibverbs

package ibv

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"polder/verbs"
)

const windowAccess = verbs.AccessRemoteRead | verbs.AccessRemoteWrite

// bench is a device with memory and connected queue pairs, to itself.
type bench struct {
	t   *testing.T
	dev verbs.Device
	pd  verbs.PD
	cq  verbs.CQ
	mr  verbs.MR
}

const benchDepth = 64

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, dev: newDevice(t)}
	var err error
	if b.pd, err = b.dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if b.cq, err = b.dev.CreateCQ(verbs.CQInit{Depth: 8 * benchDepth}); err != nil {
		t.Fatal(err)
	}
	b.mr, err = b.pd.RegMR(make([]byte, 1<<16), windowAccess|verbs.AccessLocalWrite|verbs.AccessMWBind)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pair makes two queue pairs that are connected to each other.
func (b *bench) pair() (near, far verbs.QP) {
	b.t.Helper()
	for _, qp := range []*verbs.QP{&near, &far} {
		var err error
		*qp, err = b.pd.CreateQP(verbs.QPInit{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: benchDepth, RecvDepth: 1})
		if err != nil {
			b.t.Fatal(err)
		}
	}
	if err := b.dev.ConnectLoopback(near, far); err != nil {
		b.t.Fatal(err)
	}
	return near, far
}

// do posts a request and returns how it ended.
func (b *bench) do(qp verbs.QP, wr verbs.SendWR) verbs.Status {
	b.t.Helper()
	wr.Flags |= verbs.SendSignaled
	if err := qp.PostSend(wr); err != nil {
		b.t.Fatal(err)
	}
	var wc [1]verbs.WC
	for b.cq.Poll(wc[:]) == 0 {
		if err := b.cq.Wait(patient(b.t)); err != nil {
			b.t.Fatal(err)
		}
	}
	return wc[0].Status
}

func (b *bench) must(qp verbs.QP, wr verbs.SendWR) {
	b.t.Helper()
	if s := b.do(qp, wr); s != verbs.StatusSuccess {
		b.t.Fatalf("%v: %v", wr.Op, s)
	}
}

// window makes a window of type 2B and binds it to qp.
func (b *bench) window(by, qp verbs.QP) verbs.MW {
	b.t.Helper()
	mw, err := b.pd.AllocMW(verbs.MWType2B)
	if err != nil {
		b.t.Fatal(err)
	}
	b.bind(mw, by, qp)
	return mw
}

func (b *bench) bind(mw verbs.MW, by, qp verbs.QP) {
	b.t.Helper()
	b.must(by, verbs.SendWR{Op: verbs.OpBindMW, RKey: verbs.MakeRKey(mw.RKey().Index(), mw.RKey().Key()+1),
		BindLKey: b.mr.LKey(), RemoteAddr: b.mr.Addr(), BindLength: 4096, BindAccess: windowAccess, QPN: qp.Num()})
}

func (b *bench) read(qp verbs.QP, key verbs.RKey) verbs.Status {
	b.t.Helper()
	return b.do(qp, verbs.SendWR{Op: verbs.OpRead, RemoteAddr: b.mr.Addr(), RKey: key,
		SGL: []verbs.SGE{{Addr: b.mr.Addr() + 8192, Length: 8, LKey: b.mr.LKey()}}})
}

// A queue pair with bound windows is closed at once, and takes their bindings
// with it.
func TestIBVAQueuePairWithBoundWindowsIsClosed(t *testing.T) {
	b := newBench(t)
	near, far := b.pair()
	binder, _ := b.pair()
	var mws []verbs.MW
	for range 8 {
		mws = append(mws, b.window(binder, far))
	}
	if s := b.read(near, mws[0].RKey()); s != verbs.StatusSuccess {
		t.Fatalf("a READ through a window: %v", s)
	}
	if err := b.mr.Deregister(); !errors.Is(err, verbs.ErrBusy) {
		t.Fatalf("a region with bound windows: got %v, want ErrBusy", err)
	}
	old := mws[0].RKey()
	closed := make(chan error, 1)
	go func() { closed <- far.Close() }()
	// Soft-RoCE would take 51 seconds.
	select {
	case err := <-closed:
		if err != nil {
			t.Fatal(err)
		}
	case <-patient(t).Done():
		t.Fatal("closing a queue pair with bound windows hangs")
	}
	near2, far2 := b.pair()
	b.bind(mws[0], binder, far2) // unbound, so it can be bound again
	if s := b.read(near2, mws[0].RKey()); s != verbs.StatusSuccess {
		t.Errorf("bound again: %v", s)
	}
	near3, _ := b.pair()
	if s := b.read(near3, old); s != verbs.StatusRemAccessErr {
		t.Errorf("the key from before: got %v, want %v", s, verbs.StatusRemAccessErr)
	}
	if err := mws[0].Dealloc(); err != nil {
		t.Fatal(err)
	}
	if err := b.mr.Deregister(); err != nil {
		t.Errorf("windows of the closed queue pair hold their region: %v", err)
	}
}

// A window is taken from a queue pair that has failed, and executes nothing
// any more.
func TestIBVAWindowOfAFailedQueuePairIsInvalidated(t *testing.T) {
	b := newBench(t)
	near, far := b.pair()
	binder, _ := b.pair()
	mw := b.window(binder, far)
	key := mw.RKey()
	if s := b.read(near, key^0x80); s != verbs.StatusRemAccessErr {
		t.Fatalf("a wrong key: got %v", s)
	}
	b.must(binder, verbs.SendWR{Op: verbs.OpLocalInv, Flags: verbs.SendAnyQP, RKey: key})
	near, _ = b.pair()
	if s := b.read(near, key); s != verbs.StatusRemAccessErr {
		t.Errorf("the key of the invalidated window: got %v, want %v", s, verbs.StatusRemAccessErr)
	}
	near, far = b.pair()
	b.bind(mw, binder, far)
	if s := b.read(near, mw.RKey()); s != verbs.StatusSuccess {
		t.Errorf("bound again: %v", s)
	}
}

// A bind that is wrong costs the queue pair that it was posted to, and not the
// client's that would have executed it.
func TestIBVAWrongBindCostsOnlyItsOwnQueuePair(t *testing.T) {
	b := newBench(t)
	near, far := b.pair()
	binder, _ := b.pair()
	mw := b.window(binder, far)
	again := verbs.SendWR{Op: verbs.OpBindMW, RKey: mw.RKey() ^ 1, BindLKey: b.mr.LKey(), RemoteAddr: b.mr.Addr(),
		BindLength: 64, BindAccess: windowAccess, QPN: far.Num()}
	if s := b.do(binder, again); s != verbs.StatusMWBindErr {
		t.Errorf("a bind of a bound window: got %v, want %v", s, verbs.StatusMWBindErr)
	}
	if s := binder.State(); s != verbs.StateError {
		t.Errorf("the binder's queue pair is in %v", s)
	}
	if s := b.read(near, mw.RKey()); s != verbs.StatusSuccess {
		t.Errorf("the client's queue pair: %v", s)
	}
}

// Binds, invalidations and data in one batch complete in its order.
func TestIBVABatchOfEverythingCompletesInOrder(t *testing.T) {
	b := newBench(t)
	_, far := b.pair()
	near, _ := b.pair()
	const n = benchDepth / 4
	var wrs []verbs.SendWR
	data := []verbs.SGE{{Addr: b.mr.Addr() + 8192, Length: 8, LKey: b.mr.LKey()}}
	for i := range n {
		mw, err := b.pd.AllocMW(verbs.MWType2B)
		if err != nil {
			t.Fatal(err)
		}
		key := verbs.MakeRKey(mw.RKey().Index(), mw.RKey().Key()+1)
		wrs = append(wrs,
			verbs.SendWR{Op: verbs.OpWrite, SGL: data, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}, // not signaled
			verbs.SendWR{ID: uint64(3 * i), Op: verbs.OpBindMW, Flags: verbs.SendSignaled, RKey: key, BindLKey: b.mr.LKey(),
				RemoteAddr: b.mr.Addr(), BindLength: 64, BindAccess: windowAccess, QPN: far.Num()},
			verbs.SendWR{ID: uint64(3*i + 1), Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: data, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
			verbs.SendWR{ID: uint64(3*i + 2), Op: verbs.OpLocalInv, Flags: verbs.SendSignaled | verbs.SendAnyQP, RKey: key})
	}
	if err := near.PostSend(wrs...); err != nil {
		t.Fatal(err)
	}
	wcs := make([]verbs.WC, 3*n)
	for got := 0; got < len(wcs); {
		if err := b.cq.Wait(patient(t)); err != nil {
			t.Fatalf("after %d completions: %v", got, err)
		}
		got += b.cq.Poll(wcs[got:])
	}
	for i, wc := range wcs {
		if wc.ID != uint64(i) || wc.Status != verbs.StatusSuccess || wc.QPN != near.Num() {
			t.Fatalf("completion %d: got %+v", i, wc)
		}
	}
}

// The hot path allocates nothing.
func TestIBVDataAllocatesNothing(t *testing.T) {
	b := newBench(t)
	qp, _ := b.pair()
	wrs := make([]verbs.SendWR, 8)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Op: []verbs.Opcode{verbs.OpRead, verbs.OpWrite}[i%2], RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
			SGL: []verbs.SGE{{Addr: b.mr.Addr() + 8192, Length: 64, LKey: b.mr.LKey()}}}
	}
	wrs[7].Flags = verbs.SendSignaled
	wcs := make([]verbs.WC, 8)
	round := func() {
		if err := qp.PostSend(wrs...); err != nil {
			t.Fatal(err)
		}
		for b.cq.Poll(wcs) == 0 {
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("a batch of 8 operations allocates %v times, want none", n)
	}
}

// A queue at rest is not looked at, however much goes on beside it.
func TestIBVNobodyPollsAtRest(t *testing.T) {
	b := newBench(t)
	handled := make(chan struct{}, 1)
	idle, err := b.dev.CreateCQ(verbs.CQInit{Depth: 8, Handler: func(c verbs.CQ) {
		var wc [8]verbs.WC
		if c.Poll(wc[:]) > 0 {
			handled <- struct{}{}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	qp, err := b.pd.CreateQP(verbs.QPInit{SendCQ: idle, RecvCQ: idle, SendDepth: 4, RecvDepth: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.dev.ConnectLoopback(qp, qp); err != nil {
		t.Fatal(err)
	}
	busy, _ := b.pair()
	work := func(n int) {
		for range n {
			b.must(busy, verbs.SendWR{Op: verbs.OpNop})
		}
	}
	looks := func() uint64 {
		c := idle.(*cq)
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.looks
	}
	work(100) // time for the goroutine to come to rest
	before := looks()
	work(500)
	if after := looks(); after != before {
		t.Errorf("a completion queue at rest was looked into %d times", after-before)
	}
	if err := qp.PostSend(verbs.SendWR{Op: verbs.OpNop, Flags: verbs.SendSignaled}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-handled: // and it wakes
	case <-patient(t).Done():
		t.Fatal("the handler is not called after a rest")
	}
}

func TestIBVWhatTheDeviceDoesNotHaveIsRefused(t *testing.T) {
	b := newBench(t)
	qp, _ := b.pair()
	for _, op := range []verbs.Opcode{verbs.OpWait, verbs.OpEnable, verbs.OpEnableRecv, verbs.OpMaskedFetchAdd, verbs.OpAlloc, verbs.OpFree} {
		if err := qp.PostSend(verbs.SendWR{Op: op}); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), op.String()) {
			t.Errorf("%v: got %v, want ErrInvalid and its name", op, err)
		}
	}
	if _, err := b.dev.CreateCQ(verbs.CQInit{Depth: 1, IgnoreOverrun: true}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a CQ that ignores overruns: got %v, want ErrInvalid", err)
	}
	for _, init := range []verbs.QPInit{{Managed: true}, {ManagedRecv: true}, {SendRing: b.mr}, {RecvRing: b.mr}} {
		init.SendCQ, init.RecvCQ, init.SendDepth, init.RecvDepth = b.cq, b.cq, 1, 1
		if _, err := b.pd.CreateQP(init); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: got %v, want ErrInvalid", init, err)
		}
	}
	if err := errors.Join(qp.EnableSend(1), qp.EnableRecv(1)); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("enabling: got %v, want ErrInvalid", err)
	}
	if err := qp.PostSend(verbs.SendWR{Op: verbs.OpNop}); err != nil {
		t.Errorf("refusals cost the queue pair: %v", err)
	}
}

func TestIBVDevicesAreListedAndOpenedByName(t *testing.T) {
	name := deviceName(t)
	list, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(list, func(i Info) bool { return i.Name == name })
	if at < 0 {
		t.Fatalf("%s is not among %+v", name, list)
	}
	if d := list[at]; d.Err != "" || !d.PortActive || d.MaxQP == 0 || len(d.Addresses) == 0 {
		t.Errorf("got %+v, want a port that is active, with limits and an address", d)
	}
	if _, err := Open("no_such_device"); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), name) {
		t.Errorf("a wrong name: got %v, want ErrInvalid and the right ones", err)
	}
	if len(list) == 1 {
		dev, err := Open("")
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		if got := dev.Attr().Name; got != name {
			t.Errorf("without a name: got %s, want %s", got, name)
		}
	}
}
