package maru

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/share/maru/marutest"
	"polder/share/server"
)

func TestADeadProcessIsNoticedAtOnceAndOthersAfterTheGracePeriod(t *testing.T) {
	h := build(t, func(s *server.Options, _ *Options) { s.Grace = 50 * time.Millisecond })
	for _, identity := range []string{"identity", ""} {
		o := h.owner(t, h.tcp, identity, "o", 1<<20)
		o.store(t, "k", 0, "v")
		p := h.owner(t, h.tcp, identity+"2", "p", 1<<20)
		if ok, err := p.Pin("k"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		p.Close()
		until(t, "the pin is gone", func() bool { ok, _ := o.Delete("k"); return ok })
		until(t, "its region is", func() bool { return h.Server.Info().Regions == 1 })
		o.store(t, "k", 0, "v")
		o.Close()
		until(t, "the owner's region counts as returned", func() bool { return h.Server.Info().Deferred == 1 })
		r := h.dial(t, h.tcp, "", "r")
		want(t, r, "k", "v")
		if ok, err := r.Delete("k"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		r.Close()
		until(t, "all memory is free", func() bool { p := h.Server.Info().Pools[0]; return p.Free == p.Size })
	}
}

// TestAClientLivesAsLongAsItsConnectionToTheResourceManager is about synchronous
// clients, which drop the one to the directory at each timeout.
func TestAClientLivesAsLongAsItsConnectionToTheResourceManager(t *testing.T) {
	h := build(t, func(s *server.Options, _ *Options) { s.Grace = time.Millisecond })
	o := h.owner(t, h.tcp, "", "o", 1<<20)
	o.store(t, "k", 0, "v")
	o.LeaveDirectory()
	again := h.dial(t, h.tcp, "", "o")
	other := h.owner(t, h.tcp, "identity", "other", 4096)
	other.Close()
	until(t, "one that has gone altogether counts as dead", func() bool { return h.Server.Info().Reaped == 1 })
	if got := h.Server.Info(); got.Deferred != 0 {
		t.Fatalf("the client was taken for dead: %d regions without owner", got.Deferred)
	}
	if isNew, err := again.Register(server.MaruKey{Key: "k2", Region: o.region.ID, Offset: 4096, Length: 1}); !isNew || err != nil {
		t.Errorf("on its new connection: got %v, %v", isNew, err)
	}
	o.LeaveResources()
	again.Close()
	until(t, "it counts as dead", func() bool { return h.Server.Info().Deferred == 1 })
}

func TestARegionThatItsOwnerHasNotHeardOfIsTakenBack(t *testing.T) {
	h := build(t, func(_ *server.Options, d *Options) {
		d.Unclaimed = 500 * time.Millisecond
	})
	c := h.dial(t, h.tcp, "identity", "c")
	if _, err := c.Alloc(1 << 20); err != nil {
		t.Fatal(err)
	}
	until(t, "it is free", func() bool { p := h.Server.Info().Pools[0]; return p.Free == p.Size && h.Server.Info().Regions == 0 })
	o := h.owner(t, h.tcp, "identity2", "o", 1<<20)
	if _, err := c.Alloc(1 << 20); err != nil {
		t.Fatal(err)
	}
	until(t, "another one is", func() bool { return h.Server.Info().Regions <= 1 })
	if n := h.Server.Info().Regions; n != 1 {
		t.Errorf("a region that was mapped is taken back: %d regions, want 1", n)
	}
	o.store(t, "k", 0, "v")
}

// TestAFullPoolEvictsWhatNobodyOwnsAnyMore evicts only when it is told to.
func TestAFullPoolEvictsWhatNobodyOwnsAnyMore(t *testing.T) {
	for _, lru := range []bool{false, true} {
		now := time.Now()
		var mu sync.Mutex
		h := build(t, func(s *server.Options, _ *Options) {
			s.LRU = lru
			s.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
			s.Late = time.Hour
		})
		o := h.owner(t, h.tcp, "identity", "o", 32<<20)
		o.store(t, "used", 0, "value")
		if err := o.Return(o.region.ID); err != nil {
			t.Fatal(err)
		}
		p := h.owner(t, h.tcp, "identity2", "p", 32<<20)
		p.store(t, "pinned", 0, "value")
		if ok, err := p.Pin("pinned"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		want(t, p.Client, "used", "value") // maps it: the memory comes back all the same
		if _, err := p.Alloc(4096); err == nil {
			t.Fatal("what was just looked up was evicted")
		}
		mu.Lock()
		now = now.Add(time.Hour)
		mu.Unlock()
		r, err := p.Alloc(32 << 20)
		if got := err == nil; got != lru {
			t.Fatalf("with eviction %v: got %v", lru, err)
		}
		if !lru {
			continue
		}
		want(t, p.Client, "used", "")
		want(t, p.Client, "pinned", "value")
		if _, err := p.Map(r); err != nil {
			t.Error(err)
		}
		if _, err := p.Alloc(4096); err == nil {
			t.Error("a region with an owner was evicted")
		}
	}
}

// TestWhatADeadOwnerHasNotRegisteredComesBack, as far as it lies behind its last key:
// to the pool, to the quota and to the system. Readers of before and of after find the
// keys, also when the daemon has been restarted or killed.
func TestWhatADeadOwnerHasNotRegisteredComesBack(t *testing.T) {
	const pool, size, last, kept = 64 << 20, 48 << 20, 5<<20 + 100, 5<<20 + 4096
	h := build(t, func(s *server.Options, _ *Options) {
		s.Grace, s.Quotas = 50*time.Millisecond, map[string]int64{"*": pool}
	})
	onDisk := func() (bytes int64) {
		files, err := os.ReadDir(h.opt.MaruDir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(h.opt.MaruDir, f.Name()), &st); err != nil {
				t.Fatal(err)
			}
			bytes += st.Blocks * 512
		}
		return bytes
	}
	free := func() int64 { return h.Server.Info().Pools[0].Free }
	early := h.dial(t, h.tcp, "early", "early")
	o := h.owner(t, h.ipc, "owner", "owner", size)
	o.store(t, "first", 0, "value")
	o.store(t, "last", last-5, "bytes")
	want(t, early, "first", "value")
	if got := onDisk(); got != size {
		t.Fatalf("a region of %d bytes has memory for %d", size, got)
	}
	o.Close()
	until(t, "what nobody will register comes back to the pool", func() bool { return free() == pool-kept })
	until(t, "and to the system", func() bool { return onDisk() == kept })
	h.owner(t, h.ipc, "again", "again", pool-kept).Close() // the same user's
	until(t, "that is over", func() bool { return free() == pool-kept })
	check := func(c *marutest.Client) {
		t.Helper()
		want(t, c, "first", "value")
		want(t, c, "last", "bytes")
	}
	check(early)
	early.Close()
	for name, restart := range map[string]func(){"is not restarted": func() {}, "is restarted": func() { h.restart(t) }} {
		restart()
		c := h.dial(t, h.tcp, name, name)
		check(c)
		f, err := c.Lookup("last")
		if err != nil || f.Length != kept || len(c.Mapped(f.ID)) != kept {
			t.Errorf("when the daemon %s, a reader is told of %d bytes, %v, and maps %d, want %d", name, f.Length, err, len(c.Mapped(f.ID)), kept)
		}
		c.Close()
		if got := free(); got != pool-kept {
			t.Errorf("when the daemon %s: %d bytes are free, want %d", name, got, pool-kept)
		}
	}
	c := h.owner(t, h.tcp, "another", "another", pool-kept)
	if ok, err := c.Delete("last"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	until(t, "what lay behind the first key comes back", func() bool { return free() == kept-4096 })
	if ok, err := c.Delete("first"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	c.Close()
	until(t, "all of it is there again", func() bool { return free() == pool && onDisk() == 0 })
	h.owner(t, h.tcp, "a third", "a third", pool)
}

// TestEveryByteOfARegionHasMemoryBehindIt would end in SIGBUS at the client if
// memory were promised only.
func TestEveryByteOfARegionHasMemoryBehindIt(t *testing.T) {
	h := build(t, nil)
	o := h.owner(t, h.tcp, "identity", "o", 8<<20)
	files, err := filepath.Glob(h.opt.MaruDir + "/*")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(files[0], &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 < o.region.Length {
		t.Errorf("a region of %d bytes has %d", o.region.Length, st.Blocks*512)
	}
	// What cannot be had is refused.
	h = build(t, func(s *server.Options, _ *Options) { s.Pools[0].Size = 1 << 50 })
	c := h.dial(t, h.tcp, "identity", "o")
	if _, err := c.Alloc(1 << 46); err == nil {
		t.Error("more was promised than there is")
	}
	if p := h.Server.Info().Pools[0]; p.Free != p.Size {
		t.Error("what could not be had is gone")
	}
}
