package pooltest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/pool"
)

// Soak lets callers of two pools read, write, allocate and free for the given time, while connections are cut and
// nodes crash, restart and are out of reach. Reads must return what was written, or zeros. Nothing may be lost unless
// its node was lost, and nothing may be left over.
func Soak(t *testing.T, s Setup, d time.Duration) {
	cl := NewCluster(t, s, node(24), node(24))
	clients := []*Client{cl.Open(pool.Config{}), cl.Open(pool.Config{Buffer: 1 << 17})}
	ctx, stop := context.WithTimeout(t.Context(), d)
	defer stop()
	var steps, losses, outages atomic.Int64
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			m := &mutator{
				t: t, k: clients[i%len(clients)], rand: rand.New(rand.NewPCG(uint64(i), 4)),
				steps: &steps, losses: &losses, outages: &outages,
			}
			for ctx.Err() == nil && !t.Failed() {
				m.step()
			}
			m.end()
		})
	}
	r := rand.New(rand.NewPCG(0, 5))
	for ctx.Err() == nil && !t.Failed() {
		before := steps.Load()
		Eventually(t, "the callers go on", func() bool { return steps.Load() > before+200 || ctx.Err() != nil || t.Failed() })
		k, n := clients[r.IntN(len(clients))], cl.Nodes[r.IntN(len(cl.Nodes))]
		switch r.IntN(5) {
		case 0:
			n.Crash()
			n.Start()
		case 1:
			k.Unreachable(n, true)
			k.Cut(n)
			now := steps.Load()
			Eventually(t, "the callers go on", func() bool { return steps.Load() > now+20 || ctx.Err() != nil || t.Failed() })
			k.Unreachable(n, false)
		default:
			k.Cut(n)
		}
	}
	for _, k := range clients {
		for _, n := range cl.Nodes {
			k.Unreachable(n, false)
		}
	}
	wg.Wait()
	for i, n := range cl.Nodes {
		Eventually(t, "every node has its memory back", func() bool { return n.Stats().Lent == 0 })
		if v := n.Stats().Violations; v != 0 {
			t.Errorf("node %d counts %d violations of honest clients", i, v)
		}
	}
	for _, k := range clients {
		if used := k.Stats().BufferUsed; used != 0 {
			t.Errorf("%d bytes of a buffer are still in use", used)
		}
	}
	t.Logf("%d steps, %d chunks lost, %d operations failed for want of a node", steps.Load(), losses.Load(), outages.Load())
}

// mutator is one caller, with one chunk at a time.
type mutator struct {
	t                      *testing.T
	k                      *Client
	rand                   *rand.Rand
	steps, losses, outages *atomic.Int64

	c    *pool.Chunk
	want []byte
	got  []byte
}

// step does one operation, and repeats it until it is known to have happened or the chunk is lost.
func (m *mutator) step() {
	defer m.steps.Add(1)
	if m.c == nil {
		c, err := m.k.AllocOne(context.Background())
		if !m.tolerate("alloc", err) {
			return
		}
		m.c, m.want, m.got = c, make([]byte, c.Size()), make([]byte, c.Size())
	}
	n := 1 + m.rand.IntN(len(m.want))
	if m.rand.IntN(3) > 0 {
		n = min(n, 4096)
	}
	off := m.rand.IntN(len(m.want) - n + 1)
	switch m.rand.IntN(8) {
	case 0:
		err := m.c.Free(context.Background())
		if err != nil {
			m.t.Errorf("free: %v", err)
		}
		m.c = nil
	case 1, 2, 3:
		p := m.want[off : off+n]
		for i := range p {
			p[i] = byte(m.rand.Uint32())
		}
		for {
			var err error
			if n%2 == 0 {
				_, err = m.c.WriteAt(p, int64(off))
			} else {
				err = m.c.WriteBulk(context.Background(), p, int64(off))
			}
			if m.tolerate("write", err) || m.c == nil {
				return
			}
		}
	default:
		for {
			_, err := m.c.ReadAt(m.got[:n], int64(off))
			if !m.tolerate("read", err) {
				if m.c == nil {
					return
				}
				continue
			}
			if !bytes.Equal(m.got[:n], m.want[off:off+n]) {
				m.t.Errorf("%d bytes at %d of %s are not what was written", n, off, m.c.Name())
			}
			return
		}
	}
}

// tolerate reports whether err is nil. It accepts errors that say that a node is gone or full, or that the chunk is
// lost; any other error fails the test.
func (m *mutator) tolerate(what string, err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, pool.ErrLost):
		select {
		case <-m.c.Lost():
		default:
			m.t.Errorf("%s is said to be lost, but its Lost is not closed", m.c.Name())
		}
		m.c = nil
		m.losses.Add(1)
	case errors.Is(err, pool.ErrNodeGone) || errors.Is(err, pool.ErrNoMemory):
		m.outages.Add(1)
		m.steps.Add(1)
		pause := time.NewTimer(time.Millisecond)
		<-pause.C
	default:
		m.t.Errorf("%s: %v", what, err)
		m.c = nil
	}
	return false
}

func (m *mutator) end() {
	if m.c == nil {
		return
	}
	if err := m.c.Free(context.Background()); err != nil {
		m.t.Errorf("free: %v", err)
	}
}
