package inproc

import (
	"fmt"
	"testing"

	"polder/verbs"
	"polder/verbs/softnic"
)

// ends is a connected queue pair on two devices, with some memory each.
type ends struct {
	fabric         *Fabric
	client, server verbs.Device
	cq             verbs.CQ
	qp             verbs.QP
	local, remote  verbs.MR
	peer           verbs.QP
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite |
	verbs.AccessRemoteAtomic | verbs.AccessMWBind

func newEnds(t testing.TB, size int) *ends {
	t.Helper()
	e := &ends{fabric: NewFabric()}
	e.client = newDevice(t, e.fabric, softnic.Config{Name: "client"})
	e.server = newDevice(t, e.fabric, softnic.Config{Name: "server"})
	make1 := func(dev verbs.Device) (verbs.CQ, verbs.QP, verbs.MR) {
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := dev.CreateCQ(verbs.CQInit{Depth: 1024})
		if err != nil {
			t.Fatal(err)
		}
		mr, err := pd.RegMR(make([]byte, size), allAccess)
		if err != nil {
			t.Fatal(err)
		}
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 512, RecvDepth: 16})
		if err != nil {
			t.Fatal(err)
		}
		return cq, qp, mr
	}
	e.cq, e.qp, e.local = make1(e.client)
	_, e.peer, e.remote = make1(e.server)
	l, err := e.fabric.Listen(e.server, "server")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := e.fabric.Dial(t.Context(), e.client, "server")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(t.Context())
		if err == nil {
			err = r.Accept(e.peer, nil)
		}
		accepted <- err
	}()
	if _, err := conn.Connect(t.Context(), e.qp, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	return e
}

// request is a signaled request of size bytes between the two regions' starts.
func (e *ends) request(op verbs.Opcode, size int) verbs.SendWR {
	return verbs.SendWR{
		Op: op, Flags: verbs.SendSignaled,
		SGL:        []verbs.SGE{{Addr: e.local.Addr(), Length: uint32(size), LKey: e.local.LKey()}},
		RemoteAddr: e.remote.Addr(), RKey: e.remote.RKey(), Swap: 1,
	}
}

// roundTrip posts wrs and polls their completions.
func (e *ends) roundTrip(t testing.TB, wrs []verbs.SendWR, wcs []verbs.WC) {
	if err := e.qp.PostSend(wrs...); err != nil {
		t.Fatal(err)
	}
	for got := 0; got < len(wrs); {
		k := e.cq.Poll(wcs)
		for _, wc := range wcs[:k] {
			if wc.Status != verbs.StatusSuccess {
				t.Fatal(wc.Status)
			}
		}
		got += k
	}
}

var hotOps = []struct {
	op   verbs.Opcode
	size int
}{
	{verbs.OpRead, 8}, {verbs.OpRead, 64}, {verbs.OpRead, 4096}, {verbs.OpRead, 1 << 20},
	{verbs.OpWrite, 8}, {verbs.OpWrite, 64}, {verbs.OpWrite, 4096}, {verbs.OpWrite, 1 << 20},
	{verbs.OpFetchAdd, 8}, {verbs.OpCmpSwap, 8},
}

func BenchmarkRoundTrip(b *testing.B) {
	for _, h := range hotOps {
		for _, batch := range []int{1, 32} {
			b.Run(fmt.Sprintf("%v/%d/batch%d", h.op, h.size, batch), func(b *testing.B) {
				e := newEnds(b, 1<<20)
				wrs := make([]verbs.SendWR, batch)
				for i := range wrs {
					wrs[i] = e.request(h.op, h.size)
				}
				wcs := make([]verbs.WC, batch)
				b.SetBytes(int64(h.size))
				b.ReportAllocs()
				for i := 0; i < b.N; i += batch {
					e.roundTrip(b, wrs, wcs)
				}
			})
		}
	}
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	e := newEnds(t, 1<<20)
	for _, h := range hotOps {
		wrs := []verbs.SendWR{e.request(h.op, h.size)}
		wcs := make([]verbs.WC, 1)
		if got := testing.AllocsPerRun(100, func() { e.roundTrip(t, wrs, wcs) }); got != 0 {
			t.Errorf("%v of %d bytes: got %v allocations, want 0", h.op, h.size, got)
		}
	}
}
