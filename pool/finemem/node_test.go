package finemem_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"polder/memnode"
	"polder/memnode/rebind"
	"polder/memnode/twolayer"
	"polder/memnode/wire"
	"polder/pool"
	"polder/pool/finemem"
	"polder/pool/manager"
	"polder/pool/pooltest"
	"polder/verbs"
)

// bare is a session without a pool around it.
type bare struct {
	*finemem.Session
	t    *testing.T
	dev  verbs.Device
	conn verbs.Conn
	mr   verbs.MR
	cq   verbs.CQ
	pd   verbs.PD
	qp   verbs.QP // the last
	qps  int      // for access
}

func tryJoin(t *testing.T, cl *pooltest.Cluster, m finemem.Manager) (*bare, error) {
	t.Helper()
	return joinWith(t, cl, m, 0)
}

// joinWith asks for so many groups of queue pairs.
func joinWith(t *testing.T, cl *pooltest.Cluster, m finemem.Manager, groups int) (*bare, error) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dev, err := cl.Fabric.NewDevice()
	must(err)
	t.Cleanup(func() { dev.Close() })
	pd, err := dev.AllocPD()
	must(err)
	b := &bare{t: t, dev: dev, pd: pd}
	b.mr, err = pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite)
	must(err)
	b.cq, err = dev.CreateCQ(verbs.CQInit{Depth: 16})
	must(err)
	b.conn, err = cl.Fabric.Dial(t.Context(), dev, cl.Nodes[0].Addr)
	must(err)
	s, err := m.Attach(t.Context(), manager.Link{
		Device: dev, PD: pd, Conn: b.conn,
		Groups: groups, NextGroup: func() error { return nil },
		Access: func() (verbs.QP, error) {
			b.qps++
			b.qp, err = pd.CreateQP(verbs.QPInit{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 4, RecvDepth: 1})
			return b.qp, err
		},
	})
	if err != nil {
		return nil, err
	}
	b.Session = s.(*finemem.Session)
	t.Cleanup(b.Close)
	return b, nil
}

func join(t *testing.T, cl *pooltest.Cluster) *bare {
	t.Helper()
	b, err := tryJoin(t, cl, finemem.Manager{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// access reads or writes 64 bytes.
func (b *bare) access(op verbs.Opcode, addr uint64, key verbs.RKey) verbs.Status {
	b.t.Helper()
	err := b.qp.PostSend(verbs.SendWR{Op: op, Flags: verbs.SendSignaled, RemoteAddr: addr, RKey: key,
		SGL: []verbs.SGE{{Addr: b.mr.Addr(), Length: 64, LKey: b.mr.LKey()}}})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), pooltest.Patience)
	defer cancel()
	var wc [1]verbs.WC
	for b.cq.Poll(wc[:]) == 0 {
		if err := b.cq.Wait(ctx); err != nil {
			b.t.Fatal(err)
		}
	}
	return wc[0].Status
}

// take allocates a block of class k.
func (b *bare) take(k int) (block finemem.Block, err error) {
	err = b.Do(b.t.Context(), func(a *finemem.Allocator) error {
		block, err = a.Alloc(b.t.Context(), k)
		return err
	})
	return block, err
}

func (b *bare) mustTake(k int) finemem.Block {
	b.t.Helper()
	block, err := b.take(k)
	if err != nil {
		b.t.Fatal(err)
	}
	return block
}

func setup(s pooltest.Setup) pooltest.Setup {
	s.Manager = finemem.Manager{}
	return s
}

// Every byte of memory of every class opens with the key for its part, reads as
// zero, and does not open with a key of the part beside it.
func TestKeysOpenTheirParts(t *testing.T) {
	cl := pooltest.NewCluster(t, setup(pooltest.Inproc), memnode.Config{Lend: 16 << 20, ChunkSize: 4096, MaxViolations: 1000})
	b := join(t, cl)
	for k := range 12 {
		block := b.mustTake(k)
		part := uint64(4096) << k / uint64(block.Keys())
		for i := range block.Keys() {
			for _, off := range []uint64{0, part - 64} {
				addr := block.Addr + uint64(i)*part + off
				copy(b.mr.Bytes(), bytes.Repeat([]byte{0xaa}, 64))
				if s := b.access(verbs.OpRead, addr, block.Key(i)); s != verbs.StatusSuccess || !bytes.Equal(b.mr.Bytes()[:64], make([]byte, 64)) {
					t.Fatalf("class %d: part %d at %#x: %v, %x", k, i, addr, s, b.mr.Bytes()[:64])
				}
			}
		}
		if block.Keys() > 1 {
			thief := join(t, cl)
			if s := thief.access(verbs.OpRead, block.Addr+part, block.Key(0)); s != verbs.StatusRemAccessErr {
				t.Fatalf("class %d: the first key opens the second part: %v", k, s)
			}
		}
		if err := b.Do(t.Context(), func(a *finemem.Allocator) error { return a.Free(t.Context(), block) }); err != nil {
			t.Fatal(err)
		}
	}
}

// A freed key stops working although nobody asks the node for anything, and before
// anybody has the memory.
func TestFreedKeyDies(t *testing.T) {
	cl := pooltest.NewCluster(t, setup(pooltest.Inproc), memnode.Config{Lend: 1 << 20, ChunkSize: 4096, MaxViolations: 1000})
	owner := join(t, cl)
	block := owner.mustTake(0)
	before := cl.Nodes[0].Stats().Rebound
	if err := owner.Do(t.Context(), func(a *finemem.Allocator) error { return a.Free(t.Context(), block) }); err != nil {
		t.Fatal(err)
	}
	pooltest.Eventually(t, "the worker replaces the key, and says how long that has taken", func() bool {
		st := cl.Nodes[0].Stats()
		return st.Rebound > before && st.RebindLag > 0
	})
	if s := owner.access(verbs.OpWrite, block.Addr, block.Key(0)); s != verbs.StatusRemAccessErr {
		t.Fatalf("writing with a freed key: %v", s)
	}
	// The same without the worker's time: everything is freed and taken at once.
	k := join(t, cl)
	for range 3 {
		var blocks []finemem.Block
		for {
			b, err := k.take(0)
			if errors.Is(err, manager.ErrNoMemory) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := k.access(verbs.OpRead, b.Addr, b.Key(0)); s != verbs.StatusSuccess {
				t.Fatalf("chunk %d: %v", b.First, s)
			}
			blocks = append(blocks, b)
		}
		if len(blocks) != 256 {
			t.Fatalf("%d chunks, want 256", len(blocks))
		}
		for _, b := range blocks {
			if err := k.Do(t.Context(), func(a *finemem.Allocator) error { return a.Free(t.Context(), b) }); err != nil {
				t.Fatal(err)
			}
		}
		other := join(t, cl)
		b := other.mustTake(0)
		for _, old := range blocks {
			if old.First == b.First && old.Key(0) == b.Key(0) {
				t.Fatal("the next owner has the same key")
			}
		}
		if err := other.Do(t.Context(), func(a *finemem.Allocator) error { return a.Free(t.Context(), b) }); err != nil {
			t.Fatal(err)
		}
	}
}

// A free wakes the node's worker, which sleeps otherwise: it would take a second for
// each of them to be found without.
func TestAFreeWakesTheWorker(t *testing.T) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		cl := pooltest.NewCluster(t, setup(s), memnode.Config{Lend: 4 << 20, ChunkSize: 4096})
		clients := []*bare{join(t, cl), join(t, cl)}
		const frees = 20
		start := time.Now()
		for i := range frees {
			b := clients[i%2]
			block := b.mustTake(i % 11)
			before := cl.Nodes[0].Stats().Rebound
			if err := b.Do(t.Context(), func(a *finemem.Allocator) error { return a.Free(t.Context(), block) }); err != nil {
				t.Fatal(err)
			}
			pooltest.Eventually(t, "the worker replaces the keys", func() bool {
				return cl.Nodes[0].Stats().Rebound >= before+int64(block.Keys())
			})
		}
		if took := time.Since(start); took > frees*rebind.SlowPoll/2 {
			t.Errorf("%d frees were found after %v: nobody wakes the worker", frees, took)
		}
		rang := uint64(0)
		for _, b := range clients {
			b.Do(t.Context(), func(a *finemem.Allocator) error {
				rang += a.Stats().Doorbells
				return nil
			})
		}
		if rang == 0 || rang > frees {
			t.Errorf("%d doorbells for %d frees", rang, frees)
		}
	}
}

// A doorbell gets lost: the worker finds what was freed by itself.
func TestALostDoorbell(t *testing.T) {
	cl := pooltest.NewCluster(t, setup(pooltest.Inproc), memnode.Config{Lend: 1 << 20, ChunkSize: 4096})
	b := join(t, cl)
	block := b.mustTake(0)
	err := b.Do(t.Context(), func(a *finemem.Allocator) error {
		a.Deafen()
		return a.Free(t.Context(), block)
	})
	if err != nil {
		t.Fatal(err)
	}
	pooltest.Eventually(t, "the worker replaces the key", func() bool { return cl.Nodes[0].Stats().Rebound > 0 })
	if s := b.access(verbs.OpRead, block.Addr, block.Key(0)); s != verbs.StatusRemAccessErr {
		t.Errorf("reading with the freed key: %v", s)
	}
}

// What a client had that is gone for good comes back beside clients that go on, and
// its keys are dead by then.
func TestRecovery(t *testing.T) {
	cl := pooltest.NewCluster(t, setup(pooltest.TCP), memnode.Config{
		Lend: 16 << 20, ChunkSize: 4096, Grace: time.Millisecond, MaxViolations: 1000,
	})
	stop := make(chan struct{})
	done := make(chan error, 2)
	held := &holders{of: make(map[uint32]uint16)}
	for i := range 2 {
		live := join(t, cl)
		go func() {
			done <- live.Do(t.Context(), func(a *finemem.Allocator) error {
				for round := uint16(1); ; round++ {
					select {
					case <-stop:
						return nil
					default:
					}
					if err := churn(t.Context(), a, held, uint16(i+1), 20); err != nil {
						return err
					}
				}
			})
		}()
	}
	dead := join(t, cl)
	var blocks []finemem.Block
	for _, k := range []int{0, 0, 3, 5, 7, 0, 1, 9, 10, 4, 0} {
		b, err := dead.take(k)
		if errors.Is(err, manager.ErrNoMemory) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b)
	}
	want := 0
	for _, b := range blocks {
		want += 1 << b.Class
	}
	dead.conn.Close()
	pooltest.Eventually(t, "its memory comes back", func() bool { return cl.Nodes[0].Stats().Reclaimed >= int64(want) })
	if got := cl.Nodes[0].Stats().Reclaimed; got != int64(want) {
		t.Errorf("%d chunks were reclaimed, want %d", got, want)
	}
	close(stop)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	k := join(t, cl)
	for i := range 8 { // all of it
		if _, err := k.take(twolayer.SectionClass); err != nil {
			t.Fatalf("section %d: %v", i, err)
		}
	}
	for _, b := range blocks {
		thief := join(t, cl)
		if s := thief.access(verbs.OpRead, b.Addr, b.Key(0)); s != verbs.StatusRemAccessErr {
			t.Errorf("chunk %d: the dead client's key: %v", b.First, s)
		}
	}
}

// Chunks that are several sections survive a cut connection, and go back whole.
func TestLargeChunksAreResumed(t *testing.T) {
	const size = 8 << 20
	cl := pooltest.NewCluster(t, setup(pooltest.Inproc), memnode.Config{Lend: 3 * size, ChunkSize: size, Grace: time.Minute})
	k := cl.Open(pool.Config{})
	c, d := k.MustAlloc(t), k.MustAlloc(t)
	if _, err := c.WriteAt([]byte("kept"), size-4); err != nil {
		t.Fatal(err)
	}
	k.Cut(cl.Nodes[0])
	got := make([]byte, 4)
	if _, err := c.ReadAt(got, size-4); err != nil || string(got) != "kept" {
		t.Fatalf("got %q, %v", got, err)
	}
	for _, c := range []*pool.Chunk{c, d} {
		if err := c.Free(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		k.MustAlloc(t)
	}
}

// The metadata is for who knows the secret.
func TestServiceSecret(t *testing.T) {
	secret := [wire.SecretSize]byte{1, 2, 3}
	cl := pooltest.NewCluster(t, setup(pooltest.Inproc), memnode.Config{Lend: 1 << 20, ChunkSize: 4096, ServiceSecret: secret})
	for _, wrong := range []finemem.Manager{{}, {Secret: [wire.SecretSize]byte{1, 2, 4}}} {
		if _, err := tryJoin(t, cl, wrong); err == nil {
			t.Fatal("the metadata was opened without the secret")
		}
	}
	b, err := tryJoin(t, cl, finemem.Manager{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	b.mustTake(0)
}

// Who guesses keys loses a connection with every guess, and gets no more.
func TestGuessingEnds(t *testing.T) {
	cl := pooltest.NewCluster(t, setup(pooltest.TCP), memnode.Config{Lend: 1 << 20, ChunkSize: 4096, MaxViolations: 3})
	victim := join(t, cl)
	block := victim.mustTake(0)
	for guess := range uint32(20) {
		b, err := tryJoin(t, cl, finemem.Manager{})
		if err != nil {
			var rejected *verbs.RejectError
			if !errors.As(err, &rejected) || guess < 3 {
				t.Fatalf("guess %d: %v", guess, err)
			}
			if s := victim.access(verbs.OpRead, block.Addr, block.Key(0)); s != verbs.StatusSuccess {
				t.Fatalf("the victim: %v", s)
			}
			return
		}
		if s := b.access(verbs.OpRead, block.Addr, block.Key(0)^verbs.RKey(1+guess)); s != verbs.StatusRemAccessErr {
			t.Fatalf("guess %d: %v", guess, s)
		}
		pooltest.Eventually(t, "the node has seen it", func() bool { return cl.Nodes[0].Stats().Violations > int64(guess) })
	}
	t.Fatal("20 guesses were allowed")
}

// A client that stops to show that it is alive is disconnected although its
// connection stands, and what it had comes back; one that never began is not.
func TestHeartbeat(t *testing.T) {
	cl := pooltest.NewCluster(t, setup(pooltest.Inproc), memnode.Config{
		Lend: 1 << 20, ChunkSize: 4096, Grace: time.Millisecond, Heartbeat: 5 * time.Millisecond,
	})
	silent, beating := join(t, cl), join(t, cl)
	silent.mustTake(0)
	beating.mustTake(1)
	if err := beating.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	pooltest.Eventually(t, "the client is given up", func() bool { return cl.Nodes[0].Stats().Reclaimed == 2 })
	if _, err := beating.take(0); err == nil {
		t.Error("a client that was given up allocates")
	}
	silent.mustTake(0)
	if n := cl.Nodes[0].Stats().Clients; n != 1 {
		t.Errorf("%d clients, want 1", n)
	}
}

// TestBlocksAreDealtOutToGroups: a client has as many groups of queue pairs as the node says,
// and no others, and uses all of them alike.
func TestBlocksAreDealtOutToGroups(t *testing.T) {
	cl := pooltest.NewCluster(t, setup(pooltest.Inproc), memnode.Config{Lend: 1 << 20, ChunkSize: 4096, MaxGroups: 3})
	b, err := joinWith(t, cl, finemem.Manager{}, wire.MaxGroups)
	if err != nil {
		t.Fatal(err)
	}
	if b.qps != 3 {
		t.Errorf("it has %d queue pairs for access, want 3", b.qps)
	}
	for _, index := range []uint8{0, 2, 3, 255} {
		qp, err := b.pd.CreateQP(verbs.QPInit{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 1, RecvDepth: 1})
		if err != nil {
			t.Fatal(err)
		}
		h := wire.Hello{Kind: wire.KindAccess, Manager: finemem.Name, Index: index}
		if _, err := b.conn.Connect(t.Context(), qp, h.Append(nil)); err == nil {
			t.Errorf("another queue pair for access, %d, was connected", index)
		}
	}
	var of [3]int
	for range 30 {
		var g [1]manager.Grant
		if _, err := b.Alloc(t.Context(), g[:]); err != nil {
			t.Fatal(err)
		}
		of[g[0].Group]++
	}
	if of != [3]int{10, 10, 10} {
		t.Errorf("30 chunks are dealt out %v to groups, want 10 to each", of)
	}
}
