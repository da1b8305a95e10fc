package finemem_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"polder/memnode/twolayer"
	"polder/pool/finemem"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
)

// rig is a node's metadata on a device of its own, without a node around it, and
// allocators of it on another.
type rig struct {
	t          testing.TB
	dev, peer  verbs.Device
	pd, peerPD verbs.PD
	table      *twolayer.Table
	mr         verbs.MR
	listener   verbs.Listener
	conn       verbs.Conn
	accepted   chan verbs.QP

	mu     sync.Mutex
	serial uint32 // keys given out
}

func newRig(t testing.TB, bytes, least uint64) *rig {
	t.Helper()
	f := inproc.NewFabric()
	r := &rig{t: t, accepted: make(chan verbs.QP)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	r.dev, err = f.NewDevice(softnic.Config{})
	must(err)
	r.peer, err = f.NewDevice(softnic.Config{})
	must(err)
	t.Cleanup(func() { r.dev.Close(); r.peer.Close() })
	r.pd, err = r.dev.AllocPD()
	must(err)
	r.peerPD, err = r.peer.AllocPD()
	must(err)
	l, err := twolayer.NewLayout(bytes, least)
	must(err)
	mem := make([]byte, l.Bytes())
	r.table, err = twolayer.NewTable(mem, l)
	must(err)
	for layer := range twolayer.Layers {
		for c := uint32(0); c < l.Chunks && l.Grain(layer) > 0; c += l.Grain(layer) {
			r.table.SetCap(layer, c, r.pair())
		}
	}
	r.mr, err = r.pd.RegMR(mem, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic)
	must(err)
	r.listener, err = f.Listen(r.dev, "node")
	must(err)
	r.conn, err = f.Dial(t.Context(), r.peer, "node")
	must(err)
	return r
}

// pair is a ready capability that no other has been equal to.
func (r *rig) pair() twolayer.Cap {
	r.serial += 2
	return twolayer.MakeCap(verbs.RKey(r.serial-1), verbs.RKey(r.serial))
}

// sync does what the node does with what was freed.
func (r *rig) sync(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.table
	for layer := range twolayer.Layers {
		for c := uint32(0); c < t.Chunks && t.Grain(layer) > 0; c += t.Grain(layer) {
			if t.Cap(layer, c).IsSwapped() {
				t.SetCap(layer, c, r.pair())
			}
		}
	}
	return nil
}

// allocator makes one for a user.
func (r *rig) allocator(user uint16, policy finemem.Policy, step func(string) error) *finemem.Allocator {
	r.t.Helper()
	must := func(err error) {
		r.t.Helper()
		if err != nil {
			r.t.Fatal(err)
		}
	}
	cq, err := r.peer.CreateCQ(verbs.CQInit{Depth: finemem.QueueDepth})
	must(err)
	qp, err := r.peerPD.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: finemem.QueueDepth, RecvDepth: 1})
	must(err)
	ncq, err := r.dev.CreateCQ(verbs.CQInit{Depth: 8})
	must(err)
	nqp, err := r.pd.CreateQP(verbs.QPInit{SendCQ: ncq, RecvCQ: ncq, SendDepth: 1, RecvDepth: 1})
	must(err)
	done := make(chan error, 1)
	go func() {
		req, err := r.listener.Accept(r.t.Context())
		if err == nil {
			err = req.Accept(nqp, nil)
		}
		done <- err
	}()
	_, err = r.conn.Connect(r.t.Context(), qp, nil)
	must(err)
	must(<-done)
	buf, err := r.peerPD.RegMR(make([]byte, finemem.BufferSize), verbs.AccessLocalWrite)
	must(err)
	a, err := finemem.NewAllocator(finemem.Config{
		Layout: r.table.Layout, QP: qp, CQ: cq, Buffer: buf, Metadata: r.mr.Addr(), Key: r.mr.RKey(),
		Memory: 1 << 40, User: user, Sync: r.sync, Policy: policy, Step: step,
	})
	must(err)
	return a
}

// holders knows who has which chunk.
type holders struct {
	mu sync.Mutex
	of map[uint32]uint16
}

func (h *holders) take(user uint16, b finemem.Block) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := b.First; c < b.First+1<<b.Class; c++ {
		if o := h.of[c]; o != 0 {
			return fmt.Errorf("chunk %d was given to user %d while user %d has it", c, user, o)
		}
		h.of[c] = user
	}
	return nil
}

func (h *holders) give(b finemem.Block) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := b.First; c < b.First+1<<b.Class; c++ {
		delete(h.of, c)
	}
}
