package memnode_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/memnode"
	"polder/memnode/ledger"
	"polder/memnode/wire"
	"polder/pool"
	"polder/pool/finemem"
	"polder/pool/onesided"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// outliving runs f over every manager whose memory can outlive the node, and a driver or two.
func outliving(t *testing.T, f func(*testing.T, pooltest.Setup)) {
	for _, m := range []pool.Manager{onesided.Manager{Native: true}, onesided.Manager{}, rpcmw.Manager{}} {
		for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
			s.Manager, s.Outlives = m, true
			t.Run(m.Name()+"/"+s.Name, func(t *testing.T) { f(t, s) })
		}
	}
}

// again calls f, which needs the node, until that is there.
func again(t *testing.T, what string, f func() error) {
	t.Helper()
	pooltest.Eventually(t, what, func() bool {
		err := f()
		if errors.Is(err, pool.ErrLost) || errors.Is(err, pool.ErrSuperseded) {
			t.Fatalf("%s: %v", what, err)
		}
		return err == nil
	})
}

func reads(t *testing.T, c *pool.Chunk, want string) {
	t.Helper()
	got := make([]byte, len(want))
	again(t, "the chunk is read", func() error { _, err := c.ReadAt(got, 0); return err })
	if string(got) != want {
		t.Fatalf("the chunk has %q, want %q", got, want)
	}
}

func writes(t *testing.T, c *pool.Chunk, s string) {
	t.Helper()
	again(t, "the chunk is written", func() error { _, err := c.WriteAt([]byte(s), 0); return err })
}

func TestMemoryOutlivesItsNode(t *testing.T) {
	outliving(t, func(t *testing.T, s pooltest.Setup) {
		sizes := []int{512, 4096, 128 << 10} // of which the NIC zeroes the small ones
		if s.Name != pooltest.Inproc.Name {
			sizes = sizes[1:2]
		}
		for _, size := range sizes {
			t.Run(fmt.Sprint(size), func(t *testing.T) { testOutlives(t, s, size) })
		}
	})
}

func testOutlives(t *testing.T, s pooltest.Setup, size int) {
	const chunks = 16
	cfg := memnode.Config{Lend: chunks * int64(size), ChunkSize: size, Grace: time.Minute}
	c := pooltest.NewCluster(t, s, cfg)
	n := c.Nodes[0]
	a := c.Open(pool.Config{})
	sessions := map[string]pool.Session{}
	keep := func(epoch uint64) *pool.Keep { return &pool.Keep{Name: "orders", Epoch: epoch, Sessions: sessions} }
	b := c.Open(pool.Config{Keep: keep(7)})
	var mine []*pool.Chunk
	for i := range 5 {
		mine = append(mine, a.MustAlloc(t))
		writes(t, mine[i], fmt.Sprint("mine ", i))
	}
	kept := b.MustAlloc(t)
	writes(t, kept, "orders")
	place, _ := kept.Place()
	sessions["node0"] = b.Sessions()["node0"]
	// What is free has had other content.
	if err := mine[4].Free(t.Context()); err != nil {
		t.Fatal(err)
	}
	mine = mine[:4]
	for round := range 2 {
		n.Crash()
		n.Start()
		for i, ch := range mine {
			reads(t, ch, fmt.Sprint("mine ", i))
			writes(t, ch, fmt.Sprint("mine ", i))
		}
		reads(t, kept, "orders")
		if st := n.Stats(); st.Lent != 5 || st.Kept != 1 || st.Sessions != 2 {
			t.Fatalf("round %d: %d chunks are lent, %d of %d sessions are kept, want 5, 1 of 2", round, st.Lent, st.Kept, st.Sessions)
		}
		// Nobody gets what somebody has, or finds what somebody has had.
		o := c.Open(pool.Config{})
		for range chunks - 5 {
			ch := o.MustAlloc(t)
			reads(t, ch, string(make([]byte, 32)))
			writes(t, ch, "theirs")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if ch, err := o.AllocOne(ctx); err == nil {
			t.Fatalf("round %d: there is one chunk more than there are: %s", round, ch.Name())
		}
		for i, ch := range mine {
			reads(t, ch, fmt.Sprint("mine ", i))
		}
		if err := o.Pool.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// Who takes the heap over is known to the next node, and so is who has lost it.
	d := c.Open(pool.Config{Keep: keep(9)})
	var taken *pool.Chunk
	again(t, "the heap is taken over", func() (err error) {
		taken, err = d.Reopen(t.Context(), place, int64(size))
		return err
	})
	reads(t, taken, "orders")
	d.Unreachable(n, true)
	n.Crash()
	n.Start()
	late, err := c.TryOpen(pool.Config{Keep: keep(8)})
	if err == nil {
		_, err = late.AllocOne(t.Context())
	}
	if !errors.Is(err, pool.ErrSuperseded) {
		t.Fatalf("a client of an earlier epoch is told %v, want %v", err, pool.ErrSuperseded)
	}
	d.Unreachable(n, false)
	reads(t, taken, "orders")
	for _, ch := range mine {
		again(t, "a chunk is freed", func() error { return ch.Free(t.Context()) })
	}
	again(t, "a chunk is freed", func() error { return taken.Free(t.Context()) })
	pooltest.Eventually(t, "nothing is lent", func() bool { return n.Stats().Lent == 0 })
}

// TestWhoDoesNotComeBackIsReclaimed: a session that is not kept has its grace period after a restart, too.
func TestWhoDoesNotComeBackIsReclaimed(t *testing.T) {
	outliving(t, func(t *testing.T, s pooltest.Setup) {
		cfg := node(4)
		cfg.Grace = 200 * time.Millisecond
		c := pooltest.NewCluster(t, s, cfg)
		k := c.Open(pool.Config{})
		ch := k.MustAlloc(t)
		c.Nodes[0].Crash()
		k.Unreachable(c.Nodes[0], true)
		c.Nodes[0].Start()
		pooltest.Eventually(t, "the chunk is reclaimed", func() bool {
			st := c.Nodes[0].Stats()
			return st.Reclaimed == 1 && st.Sessions == 0 && st.Lent == 0
		})
		k.Unreachable(c.Nodes[0], false)
		<-ch.Lost()
	})
}

// TestNodesDieUnderLoad: clients allocate, write, read and free while the node dies again and again. Whatever they
// still have is as they wrote it, and in the end nothing is lent that nobody has.
func TestNodesDieUnderLoad(t *testing.T) {
	outliving(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(64))
		n := c.Nodes[0]
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for w := range 3 {
			k := c.Open(pool.Config{})
			wg.Go(func() { churn(t, k, uint64(w), stop) })
		}
		for range 5 {
			time.Sleep(20 * time.Millisecond) // of load; nothing depends on how long
			n.Crash()
			n.Start()
		}
		close(stop)
		wg.Wait()
		pooltest.Eventually(t, "nothing is lent", func() bool { return n.Stats().Lent == 0 })
	})
}

func churn(t *testing.T, k *pooltest.Client, seed uint64, stop <-chan struct{}) {
	type held struct {
		c    *pool.Chunk
		want []byte
	}
	var all []held
	r := rand.New(rand.NewPCG(seed, 1))
	check := func(h held) bool {
		got := make([]byte, len(h.want))
		for {
			_, err := h.c.ReadAt(got, 0)
			switch {
			case errors.Is(err, pool.ErrLost):
				t.Error("a chunk is lost")
				return false
			case err != nil:
				continue
			case !bytes.Equal(got, h.want):
				t.Errorf("a chunk has %q, want %q", got, h.want)
				return false
			}
			return true
		}
	}
	for i := 0; ; i++ {
		select {
		case <-stop:
			for _, h := range all {
				if !check(h) {
					return
				}
				_ = h.c.Free(context.Background()) // or it is given back over the next link
			}
			return
		default:
		}
		if len(all) < 12 && r.IntN(2) == 0 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			c, err := k.AllocOne(ctx)
			cancel()
			if err != nil {
				continue
			}
			zero := make([]byte, 16)
			if !check(held{c, zero}) {
				return
			}
			h := held{c, fmt.Appendf(nil, "%d:%014d", seed, i)}
			for {
				if _, err := c.WriteAt(h.want, 0); err == nil {
					break
				} else if errors.Is(err, pool.ErrLost) {
					t.Error("a chunk is lost")
					return
				}
			}
			all = append(all, h)
		} else if len(all) > 0 {
			j := r.IntN(len(all))
			if !check(all[j]) {
				return
			}
			_ = all[j].c.Free(context.Background())
			all[j] = all[len(all)-1]
			all = all[:len(all)-1]
		}
	}
}

// shelf is a ledger.Store with one descriptor.
type shelf struct{ f, given *os.File }

func (s *shelf) Keep(_ string, f *os.File) error { s.given = f; return nil }
func (s *shelf) Forget(string) error             { s.f = nil; return nil }
func (s *shelf) Kept(string) *os.File            { f := s.f; s.f = nil; return f }

func copyOf(t *testing.T, f *os.File) *os.File {
	t.Helper()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, st.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return memfdOf(t, b)
}

func memfdOf(t testing.TB, b []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("left", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "left")
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	return f
}

// What an earlier node has left is of use to one of the same kind. Another one says so; and what is damaged counts
// as lost.
func TestWhatIsLeftIsOfNoUse(t *testing.T) {
	s := pooltest.Inproc
	s.Manager, s.Outlives = rpcmw.Manager{}, true
	cfg := node(8)
	cfg.Manager = memnode.RPCMW
	c := pooltest.NewCluster(t, s, cfg)
	k := c.Open(pool.Config{})
	k.MustAlloc(t)
	left := c.Nodes[0].Left()
	open := func(f *os.File, cfg memnode.Config) (*memnode.Node, error) {
		t.Helper()
		out, err := ledger.NewOutliving(&shelf{f: f}, "memory", slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		defer out.Close()
		dev, err := tcp.NewDevice(softnic.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		cfg.Outliving = out
		return memnode.New(dev, cfg)
	}
	damaged := func(off int64, b ...byte) *os.File {
		f := copyOf(t, left)
		if _, err := f.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
		return f
	}
	larger, native, one := cfg, cfg, cfg
	larger.ChunkSize *= 2
	native.Manager = memnode.Native
	one.Manager = finemem.Name
	for _, tt := range []struct {
		name string
		f    *os.File
		cfg  memnode.Config
		want string // of the error
		lent int64
	}{
		{name: "as it was", f: copyOf(t, left), cfg: cfg, lent: 1},
		{name: "other chunks", f: copyOf(t, left), cfg: larger, want: "in chunks of"},
		{name: "another manager", f: copyOf(t, left), cfg: native, want: "by rpcmw, and this one is to lend by native"},
		{name: "a manager that cannot", cfg: one, want: "lent by finemem cannot outlive"},
		{name: "a later layout", f: damaged(8, 2), cfg: cfg, want: "version 2, and this program knows version 1"},
		{name: "another magic", f: damaged(0, 'X'), cfg: cfg},
		{name: "another number of chunks", f: damaged(40, 7), cfg: cfg},
		{name: "too short", f: memfdOf(t, []byte("PMNLEDGR")), cfg: cfg},
		{name: "a session without a number", f: damaged(4096+8, make([]byte, 8)...), cfg: cfg},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := open(tt.f, tt.cfg)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("got %v, want an error with %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			if got := n.Stats().Lent; got != tt.lent {
				t.Errorf("%d chunks are lent, want %d", got, tt.lent)
			}
		})
	}
}

// A node lends as much as the one before it, whatever it is told: half of what is free is another amount then.
func TestANodeLendsAsMuchAsTheOneBefore(t *testing.T) {
	s := pooltest.Inproc
	s.Outlives = true
	c := pooltest.NewCluster(t, s, node(8))
	n := c.Nodes[0]
	n.Crash()
	n.Reconfigure(node(3))
	n.Start()
	if got := n.Stats().Chunks; got != 8 {
		t.Errorf("there are %d chunks, want 8", got)
	}
}

// empty is how a ledger of that form begins, and how many bytes it has.
func empty(t testing.TB, form ledger.Form) (head []byte, size int) {
	t.Helper()
	s := new(shelf)
	out, err := ledger.NewOutliving(s, "memory", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := out.Take(form)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	st, err := s.given.Stat()
	if err != nil {
		t.Fatal(err)
	}
	head = make([]byte, 64)
	if _, err := s.given.ReadAt(head, 0); err != nil {
		t.Fatal(err)
	}
	return head, int(st.Size())
}

// FuzzLedger opens memory whose first page begins with head, and that has been written to: pokes are of 10 bytes, a
// place in words and a word. Whoever may be the owner, nobody has a chunk twice, and what nobody has reads as zero.
func FuzzLedger(f *testing.F) {
	const chunks = 4
	head, size := empty(f, ledger.Form{Manager: wire.RPCMW, ChunkSize: arena.PageSize, Chunks: chunks, Sessions: 2})
	poke := func(list ...uint64) (b []byte) {
		for i := 0; i < len(list); i += 2 {
			b = binary.LittleEndian.AppendUint16(b, uint16(list[i]/8))
			b = binary.LittleEndian.AppendUint64(b, list[i+1])
		}
		return b
	}
	record, table, mem := uint64(arena.PageSize), uint64(2*arena.PageSize), uint64(3*arena.PageSize)
	f.Add(head, poke(record, 5, record+8, 77, table, 5, table+16, 6, mem, 1, mem+uint64(arena.PageSize), 2))
	f.Add(head, poke(record, 5, record+8, 77, record+48, 1, record+56, 0x41, record+128, 5, record+136, 78))
	f.Add(head, poke(record, 1<<63, record+8, 1, record+48, 9, table, 1<<63, table+48, 1<<63))
	f.Add(head[:40], []byte(nil))
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { dev.Close() })
	f.Fuzz(func(t *testing.T, head, pokes []byte) {
		b := make([]byte, size)
		copy(b, head)
		for ; len(pokes) >= 10; pokes = pokes[10:] {
			if at := 8 * int(binary.LittleEndian.Uint16(pokes)); at+8 <= size {
				copy(b[at:at+8], pokes[2:])
			}
		}
		out, err := ledger.NewOutliving(&shelf{f: memfdOf(t, b)}, "memory", slog.New(slog.DiscardHandler))
		if err != nil {
			return
		}
		defer out.Close()
		n, err := memnode.New(dev, memnode.Config{Manager: wire.RPCMW, Lend: chunks * int64(arena.PageSize), ChunkSize: arena.PageSize, Outliving: out})
		if err != nil {
			return
		}
		defer n.Close()
		held := 0
		for _, c := range n.Clients() {
			held += c.Chunks
		}
		if st := n.Stats(); st.Lent != int64(held) || st.Lent > st.Chunks {
			t.Errorf("%d of %d chunks are lent, and clients have %d", st.Lent, st.Chunks, held)
		}
		content := 0
		for i := range n.Stats().Chunks {
			if i := int(i) * arena.PageSize; bytes.ContainsFunc(n.Memory()[i:i+arena.PageSize], func(r rune) bool { return r != 0 }) {
				content++
			}
		}
		if content > held {
			t.Errorf("%d chunks have content, and clients have %d", content, held)
		}
	})
}
