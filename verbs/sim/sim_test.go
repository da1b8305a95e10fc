package sim

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
	"polder/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newWorld(t testing.TB, c Costs) *World {
	t.Helper()
	w, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func newDevice(t testing.TB, w *World) *Device {
	t.Helper()
	d, err := w.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func newPair(t *testing.T) verbstest.Pair {
	w := newWorld(t, Testbed())
	w.FreeRun()
	client, server := newDevice(t, w), newDevice(t, w)
	l, err := w.Listen(server, "server")
	if err != nil {
		t.Fatal(err)
	}
	return verbstest.Pair{
		Client: client, Server: server, Listener: l,
		Dial: func(ctx context.Context) (verbs.Conn, error) { return w.Dial(ctx, client, "server") },
	}
}

func TestConformance(t *testing.T) { verbstest.Run(t, newPair) }

// TestOneScript: a random script gives the same transcript as over inproc.
func TestOneScript(t *testing.T) {
	for seed := range uint64(5) {
		s := verbstest.Script{Seed: seed, Steps: 200}
		f := inproc.NewFabric()
		client, err := f.NewDevice(softnic.Config{})
		if err != nil {
			t.Fatal(err)
		}
		server, err := f.NewDevice(softnic.Config{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := f.Listen(server, "server")
		if err != nil {
			t.Fatal(err)
		}
		want := verbstest.Replay(t, verbstest.Pair{
			Client: client, Server: server, Listener: l,
			Dial: func(ctx context.Context) (verbs.Conn, error) { return f.Dial(ctx, client, "server") },
		}, s)
		client.Close()
		server.Close()
		if got := verbstest.Replay(t, newPair(t), s); got != want {
			t.Errorf("seed %d: the transcript is not inproc's", seed)
		}
	}
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite |
	verbs.AccessRemoteAtomic | verbs.AccessMWBind

// side is one of everything on a device.
type side struct {
	dev *Device
	pd  verbs.PD
	cq  verbs.CQ
	mr  verbs.MR
}

func newSide(t testing.TB, w *World) *side {
	t.Helper()
	s := &side{dev: newDevice(t, w)}
	var err error
	if s.pd, err = s.dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if s.mr, err = s.pd.RegMR(make([]byte, 1<<20), allAccess); err != nil {
		t.Fatal(err)
	}
	s.cq = s.newCQ(t)
	return s
}

func (s *side) newCQ(t testing.TB) verbs.CQ {
	t.Helper()
	cq, err := s.dev.CreateCQ(verbs.CQInit{Depth: 256})
	if err != nil {
		t.Fatal(err)
	}
	return cq
}

func (s *side) newQP(t testing.TB, cq verbs.CQ) verbs.QP {
	t.Helper()
	qp, err := s.pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 64, RecvDepth: 64})
	if err != nil {
		t.Fatal(err)
	}
	return qp
}

// rig is two sides that are joined by queue pairs.
type rig struct {
	w              *World
	client, server *side
}

func newRig(t testing.TB, c Costs) *rig {
	w := newWorld(t, c)
	return &rig{w: w, client: newSide(t, w), server: newSide(t, w)}
}

// join joins a new pair of queue pairs; the client's completes into cq.
func (r *rig) join(t testing.TB, cq verbs.CQ) (qp, peer verbs.QP) {
	t.Helper()
	qp, peer = r.client.newQP(t, cq), r.server.newQP(t, r.server.cq)
	if err := r.w.Join(r.client.dev, qp, r.server.dev, peer); err != nil {
		t.Fatal(err)
	}
	return qp, peer
}

func (r *rig) request(op verbs.Opcode, size int) verbs.SendWR {
	return verbs.SendWR{Op: op, Flags: verbs.SendSignaled, RemoteAddr: r.server.mr.Addr(), RKey: r.server.mr.RKey(),
		SGL: []verbs.SGE{{Addr: r.client.mr.Addr(), Length: uint32(size), LKey: r.client.mr.LKey()}}}
}

// do posts a request and waits for it.
func do(qp verbs.QP, cq verbs.CQ, wrs ...verbs.SendWR) error {
	if err := qp.PostSend(wrs...); err != nil {
		return err
	}
	var wc [1]verbs.WC
	if err := cq.Wait(context.Background()); err != nil {
		return err
	}
	cq.Poll(wc[:])
	return wc[0].Err()
}

// took runs one process and returns how long the second call of f took: the
// first one brings contexts to the chip.
func (r *rig) took(t testing.TB, f func() error) (d time.Duration) {
	t.Helper()
	r.w.Go("one", func(p *Proc) error {
		if err := f(); err != nil {
			return err
		}
		start := p.Now()
		err := f()
		d = p.Now() - start
		return err
	})
	if err := r.w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPrimitives: single operations take the sum of what they are made of.
func TestPrimitives(t *testing.T) {
	c := Testbed()
	c.Header = 0
	r := newRig(t, c)
	qp, _ := r.join(t, r.client.cq)
	nop := 2*c.PCIeWrite + c.PCIeRead + c.Execute
	there := c.Wire + c.Receive
	page := transfer(4096, c.LinkRate)
	for _, o := range []struct {
		name string
		wr   verbs.SendWR
		want time.Duration
	}{
		{"NOP", verbs.SendWR{Flags: verbs.SendSignaled}, nop},
		{"empty WRITE", verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled}, nop + 2*there},
		{"FETCH_ADD", r.request(verbs.OpFetchAdd, 8), nop + 2*there + c.PCIeRead},
		{"READ of 4 KiB", r.request(verbs.OpRead, 4096), nop + 2*there + c.PCIeRead + page + 2*transfer(4096, c.PCIeRate)},
		{"WRITE of 4 KiB", r.request(verbs.OpWrite, 4096), nop + 2*there + c.PCIeRead + page + 2*transfer(4096, c.PCIeRate)},
	} {
		if got := r.took(t, func() error { return do(qp, r.client.cq, o.wr) }); got != o.want {
			t.Errorf("%s: took %v, want %v", o.name, got, o.want)
		}
	}
}
