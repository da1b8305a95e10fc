package maru

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/share"
	"polder/share/maru/marutest"
	"polder/share/resource"
	"polder/share/server"
)

func TestWhatOneClientStoresAnotherReads(t *testing.T) {
	h := build(t, nil)
	for _, addr := range []string{h.tcp, h.ipc} {
		for _, identity := range []string{"", "12345678" + addr[:3]} {
			o := h.owner(t, addr, identity, "writer"+identity, 1<<20)
			r := h.dial(t, addr, "", "reader")
			key := "key of " + addr + identity
			o.store(t, key, 4096, "bytes")
			want(t, r, key, "bytes")
			want(t, r, "another", "")
			if isNew, err := o.Register(server.MaruKey{Key: key, Region: o.region.ID, Offset: 0, Length: 1}); isNew || err != nil {
				t.Errorf("registering it again: got new %v, %v, want not new", isNew, err)
			}
			found, err := r.LookupAll([]string{key, "another", key})
			if err != nil || len(found) != 3 || found[0].Size != 5 || found[1].ID != 0 || found[2] != found[0] {
				t.Errorf("all at once: got %v, %v", found, err)
			}
			if ok, err := r.Pin(key); !ok || err != nil {
				t.Errorf("pin: got %v, %v", ok, err)
			}
			if ok, _ := o.Delete(key); ok {
				t.Error("a pinned key is deleted")
			}
			if ok, err := o.Unpin(key); !ok || err != nil { // pins are nobody's
				t.Errorf("unpin by another client: got %v, %v", ok, err)
			}
			if ok, err := r.Delete(key); !ok || err != nil {
				t.Errorf("delete: got %v, %v", ok, err)
			}
			want(t, o.Client, key, "")
		}
	}
}

// TestARegionThatIsReturnedLivesAsLongAsItsKeys also looks that all memory comes
// back in the end.
func TestARegionThatIsReturnedLivesAsLongAsItsKeys(t *testing.T) {
	h := build(t, nil)
	o := h.owner(t, h.tcp, "identity", "o", 1<<20)
	o.store(t, "k", 0, "v")
	if err := o.Return(o.region.ID); err != nil {
		t.Fatal(err)
	}
	if err := o.Return(o.region.ID); err == nil {
		t.Error("a region is returned twice")
	}
	if _, err := o.Register(server.MaruKey{Key: "k2", Region: o.region.ID, Offset: 100, Length: 1}); err == nil {
		t.Error("a key is registered in a region that was returned")
	}
	r := h.dial(t, h.tcp, "", "r")
	want(t, r, "k", "v")
	if ok, err := r.Delete("k"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if n := h.Server.Info().Regions; n != 0 {
		t.Errorf("got %d regions, want none", n)
	}
	if p := h.Server.Info().Pools[0]; p.Free == p.Size {
		t.Error("memory that is mapped counts as free")
	}
	r.Close()
	o.Close()
	until(t, "the memory is free", func() bool { p := h.Server.Info().Pools[0]; return p.Free == p.Size })
	until(t, "no file is left", func() bool {
		left, err := os.ReadDir(h.opt.MaruDir)
		return err == nil && len(left) == 0
	})
}

func TestRegionsCountInQuotasAndAreListed(t *testing.T) {
	h := build(t, func(s *server.Options, _ *Options) {
		s.Quotas = map[string]int64{"maru": 2 << 20, fmt.Sprintf("uid:%d", os.Getuid()): 1 << 20}
	})
	tcp := h.owner(t, h.tcp, "a", "a", 2<<20)
	if _, err := tcp.Alloc(4096); err == nil || !strings.Contains(err.Error(), "quota") {
		t.Errorf("beyond the quota of TCP: got %v", err)
	}
	ipc := h.owner(t, h.ipc, "a", "b", 1<<20)
	if _, err := ipc.Alloc(4096); err == nil || !strings.Contains(err.Error(), "quota") {
		t.Errorf("beyond the quota of the user: got %v", err)
	}
	n := h.native(t)
	if _, err := n.Alloc(t.Context()); !errors.Is(err, share.ErrQuota) {
		t.Errorf("the user's native client: got %v, want %v", err, share.ErrQuota)
	}
	kinds := map[string]string{}
	for r, err := range n.Regions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		kinds[r.Tenant] = r.Kind
	}
	if kinds["maru"] != "maru" || len(kinds) != 2 {
		t.Errorf("got regions of the kinds %v", kinds)
	}
}

// TestNobodyButTheOwnerActsAsTheOwner also has one of the clients forge tokens and
// present those of another one.
func TestNobodyButTheOwnerActsAsTheOwner(t *testing.T) {
	h := build(t, nil)
	o := h.owner(t, h.tcp, "identity", "victim", 1<<20)
	o.store(t, "k", 0, "v")
	evil := h.owner(t, h.tcp, "another", "victim", 4096) // under the same name
	if _, err := evil.Register(server.MaruKey{Key: "x", Region: o.region.ID, Offset: 4096, Length: 1}); err == nil {
		t.Error("a key was registered in another client's region")
	}
	if err := evil.Return(o.region.ID); err == nil {
		t.Error("another client's region was returned")
	}
	refused := func(what string, r server.MaruRegion) {
		t.Helper()
		if _, err := evil.Path(r); !errors.Is(err, unix.EACCES) {
			t.Errorf("%s: got %v, want %v", what, err, unix.EACCES)
		}
	}
	refused("a token replayed", o.region)
	forged := o.region
	forged.Token ^= 1
	refused("a token forged", forged)
	forged.Token = rand.Uint64()
	refused("a token guessed", forged)
	forged = evil.region
	forged.ID = o.region.ID
	refused("a token of another region", forged)
	forged = o.region
	forged.Length--
	refused("another length", forged)
	// What it was told itself is good.
	want(t, evil.Client, "k", "v")
	if _, err := evil.Path(server.MaruRegion{ID: o.region.ID + 1000, Length: 4096}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a region that does not exist: got %v, want %v", err, unix.ENOENT)
	}
	// A new connection of the thief's does not help.
	thief := h.dial(t, h.tcp, "third", "thief")
	if _, err := thief.Path(o.region); !errors.Is(err, unix.EACCES) {
		t.Errorf("a token replayed by who has presented none: got %v, want %v", err, unix.EACCES)
	}
}

func TestRegistrationsOutsideTheirRegionAreRefused(t *testing.T) {
	h := build(t, nil)
	o := h.owner(t, h.tcp, "identity", "o", 1<<20)
	n := h.native(t)
	p, err := n.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Put(t.Context(), "native", p, 5); err != nil {
		t.Fatal(err)
	}
	id := o.region.ID
	for name, k := range map[string]server.MaruKey{
		"no bytes":         {Key: "k", Region: id},
		"negative length":  {Key: "k", Region: id, Length: -1},
		"behind the end":   {Key: "k", Region: id, Offset: 1<<20 - 4, Length: 5},
		"far behind":       {Key: "k", Region: id, Offset: 1<<63 - 1, Length: 1<<63 - 1},
		"negative offset":  {Key: "k", Region: id, Offset: -1, Length: 5},
		"no key":           {Key: "", Region: id, Length: 5},
		"long key":         {Key: strings.Repeat("k", 513), Region: id, Length: 5},
		"no region":        {Key: "k", Region: 0, Length: 5},
		"unknown region":   {Key: "k", Region: id + 1, Length: 5},
		"not Maru's":       {Key: "k", Region: id + 2, Length: 5},
		"key not Maru's":   {Key: "native", Region: id, Length: 5},
		"number of region": {Key: "k", Region: 1<<64 - 1, Length: 5},
	} {
		if isNew, err := o.Register(k); err == nil || isNew {
			t.Errorf("%s: got new %v and no error", name, isNew)
		}
	}
	if ok, err := o.Exists("native"); ok || err != nil {
		t.Errorf("a native key can be read by its path: %v, %v", ok, err)
	}
	o.store(t, "k", 1<<20-5, "value")
	if n := h.Server.Info().Keys; n != 2 {
		t.Errorf("got %d keys, want 2", n)
	}
}

// TestAPlaceHoldsOneKey is about a page that its owner frees and fills again
// without deleting what was there: the key must not show the new bytes.
func TestAPlaceHoldsOneKey(t *testing.T) {
	h := build(t, nil)
	o := h.owner(t, h.tcp, "identity", "o", 1<<20)
	r := h.dial(t, h.tcp, "", "r")
	o.store(t, "a", 0, "aaaa")
	o.store(t, "b", 4096, "bbbb")
	if ok, err := r.Pin("a"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	o.store(t, "c", 2, "cccc")
	want(t, r, "a", "")
	want(t, r, "b", "bbbb")
	want(t, r, "c", "cccc")
	o.store(t, "d", 1, strings.Repeat("d", 8192))
	want(t, r, "b", "")
	want(t, r, "c", "")
	if got := h.Server.Info(); got.MaruOverwritten != 3 || got.Keys != 1 {
		t.Errorf("got %d keys overwritten and %d left, want 3 and 1", got.MaruOverwritten, got.Keys)
	}
}

func TestTheDaemonKeepsKeysAndNumbersOverARestart(t *testing.T) {
	for _, kind := range []resource.Kind{resource.Memfd, resource.File} {
		h := build(t, func(s *server.Options, _ *Options) {
			s.Pools[0].Kind = kind
			if kind == resource.File {
				s.Pools[0].Path = filepath.Join(s.Dir, "pool")
			}
		})
		o := h.owner(t, h.tcp, "identity", "o", 1<<20)
		o.store(t, "k", 4096, "value")
		o.store(t, "gone", 0, "value")
		if ok, err := o.Delete("gone"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if ok, err := o.Pin("k"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := h.Checkpoint(); err != nil {
			t.Fatal(err)
		}
		o.store(t, "later", 8192, "value")
		h.restart(t)
		r := h.dial(t, h.tcp, "", "r")
		want(t, r, "k", "value")
		want(t, r, "later", "value")
		want(t, r, "gone", "")
		if ok, _ := r.Delete("k"); ok {
			t.Errorf("%s: a pin was lost", kind)
		}
		// The owner is the same one when it is back, and fills its region further.
		again := h.dial(t, h.tcp, "identity", "o")
		if isNew, err := again.Register(server.MaruKey{Key: "new", Region: o.region.ID, Offset: 12288, Length: 1}); !isNew || err != nil {
			t.Errorf("%s: the owner is not known again: %v, %v", kind, isNew, err)
		}
		if next, err := again.Alloc(4096); err != nil || next.ID <= o.region.ID || next.ID > 1<<31 {
			t.Errorf("%s: got region %d after %d, %v", kind, next.ID, o.region.ID, err)
		}
	}
}

// TestNumbersOfRegionsAreNotUsedAgainWhenTheStateIsLost would fail if they began
// at 1: a client that holds on to an old region would take its bytes for the new
// one's.
func TestNumbersOfRegionsAreNotUsedAgainWhenTheStateIsLost(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	var h *house
	last := uint64(0)
	for range 3 {
		h = build(t, func(s *server.Options, _ *Options) { at := now; s.Now, s.Late = func() time.Time { return at }, 1<<60 })
		o := h.owner(t, h.tcp, "identity", "o", 4096)
		if o.region.ID <= last {
			t.Errorf("got region %d after %d", o.region.ID, last)
		}
		last = o.region.ID
		now = now.Add(10 * time.Second)
	}
}

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

func TestGarbageOnBothPortsHarmsNobody(t *testing.T) {
	h := build(t, func(_ *server.Options, d *Options) { d.MaxConns = 64 })
	o := h.owner(t, h.tcp, "identity", "o", 1<<20)
	o.store(t, "k", 0, "v")
	ready := "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
	var greeting [64]byte
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	hello := string(greeting[:]) + ready
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 400 {
		noise := make([]byte, rng.IntN(200))
		for j := range noise {
			noise[j] = byte(rng.Uint32())
		}
		addr, first := h.rm, ""
		if i%2 == 0 {
			addr = strings.TrimPrefix(h.tcp, "tcp://")
			first = []string{"", string(greeting[:]), hello, hello + "\x01\x00", hello + "\x01\x00\x02\x7f\xff\xff\xff\xff\xff\xff\xff",
				hello + "\x01\x00\x00\x20\xcf\x00\x01\x10\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x10"}[rng.IntN(6)]
		} else if i%4 == 1 {
			first = "URAM\x02\x00\x09\x00\x2e\x00\x00\x00"
		}
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		nc.Write(append([]byte(first), noise...))
		if i%3 == 0 {
			nc.SetReadDeadline(time.Now().Add(time.Millisecond))
			io.Copy(io.Discard, nc)
		}
		if i%8 != 0 { // some stay
			nc.Close()
		} else {
			defer nc.Close()
		}
	}
	want(t, o.Client, "k", "v")
	until(t, "a client can connect", func() bool {
		c, err := marutest.Dial(h.tcp, "another", "c")
		if err != nil {
			return false
		}
		defer c.Close()
		b, err := c.Get("k")
		return err == nil && string(b) == "v"
	})
}

// TestManyClientsAtOnce has each store, read what all have stored, and leave.
func TestManyClientsAtOnce(t *testing.T) {
	h := build(t, nil)
	const clients = 64
	var stored, read sync.WaitGroup
	stored.Add(clients)
	errs := make(chan error, clients)
	for i := range clients {
		read.Go(func() {
			errs <- func() error {
				c, err := marutest.Dial(h.tcp, fmt.Sprintf("identity%d", i), fmt.Sprint(i))
				if err != nil {
					stored.Done()
					return err
				}
				defer c.Close()
				r, err := c.Alloc(64 << 10)
				var mem []byte
				if err == nil {
					mem, err = c.Map(r)
				}
				for j := range 8 {
					if err == nil {
						key := fmt.Sprintf("%d/%d", i, j)
						copy(mem[j*8192:], key)
						_, err = c.Register(server.MaruKey{Key: key, Region: r.ID, Offset: int64(j * 8192), Length: int64(len(key))})
					}
				}
				stored.Done()
				if err != nil {
					return err
				}
				stored.Wait()
				for k := range clients {
					key := fmt.Sprintf("%d/%d", k, (i+k)%8)
					if b, err := c.Get(key); err != nil || string(b) != key {
						return fmt.Errorf("%s: got %q, %v", key, b, err)
					}
				}
				return c.Return(r.ID)
			}()
		})
	}
	for range clients {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	read.Wait()
}

// TestAThousandClientsAtOnce has all of them connect, and then, while all are there,
// each look a key up in turn with the others: it is what made the door's frames our
// own (see the package's page).
func TestAThousandClientsAtOnce(t *testing.T) {
	h := build(t, nil)
	const clients, rounds = 1000, 2
	o := h.owner(t, h.tcp, "owner", "owner", 1<<20)
	o.store(t, "k", 4096, "value")
	var wg, connected sync.WaitGroup
	connected.Add(clients)
	errs := make(chan error, clients)
	var lookups atomic.Int64
	began := time.Now()
	doors := make(chan struct{}, 64) // a handshake has its time, also where everything is slow
	for i := range clients {
		wg.Go(func() {
			doors <- struct{}{}
			c, err := marutest.Dial(h.tcp, fmt.Sprintf("identity%d", i), fmt.Sprint(i))
			if err == nil {
				defer c.Close()
				_, err = c.Exists("k")
			}
			<-doors
			connected.Done()
			if err != nil {
				errs <- err
				return
			}
			connected.Wait()
			for range rounds {
				if f, err := c.Lookup("k"); err != nil || f.At != 4096 || f.Size != 5 {
					errs <- fmt.Errorf("client %d: %d bytes at %d, %w, want 5 at 4096", i, f.Size, f.At, err)
					return
				}
				lookups.Add(1)
			}
		})
	}
	connected.Wait()
	h.mu.Lock()
	most := len(h.clients)
	h.mu.Unlock()
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if most <= clients || lookups.Load() != clients*rounds {
		t.Errorf("%d clients were there at a time and %d lookups answered, want %d and %d", most, lookups.Load(), clients+1, clients*rounds)
	}
	t.Logf("%d clients connected, and each looked a key up %d times, in %v", clients, rounds, time.Since(began).Round(time.Millisecond))
	until(t, "they are gone", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.clients) == 1
	})
	want(t, o.Client, "k", "value")
}

// TestANativeClientGetsCopiesOfWhatMarusHaveStored, which are whole and stay as they
// are, whatever the owner does with the page.
func TestANativeClientGetsCopiesOfWhatMarusHaveStored(t *testing.T) {
	h := build(t, nil)
	o := h.owner(t, h.tcp, "identity", "o", 1<<20)
	n := h.native(t)
	o.store(t, "first", 512<<10, "value")
	v, err := n.Get(t.Context(), "first")
	if err != nil {
		t.Fatal(err)
	}
	copy(o.mem[512<<10:], "other")
	if got := string(v.Bytes()); got != "value" {
		t.Errorf("a copy has changed to %q", got)
	}
	if err := errors.Join(v.Close(), v.Close()); err != nil {
		t.Error(err)
	}
	views, err := n.GetAll(t.Context(), []string{"nothing", "first"})
	if err != nil || views[0].Ok() || string(views[1].Bytes()) != "other" {
		t.Fatalf("all at once: got %v, %v", views, err)
	}

	// The owner frees and fills the page again and again, by Maru's rules.
	const size, pages = 64 << 10, 2
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			for i := range 400 {
				at := int64(i % pages * size)
				if _, err := o.Delete("k"); err != nil {
					return err
				}
				page := o.mem[at : at+size]
				for j := range page {
					page[j] = byte(i)
				}
				if _, err := o.Register(server.MaruKey{Key: "k", Region: o.region.ID, Offset: at, Length: size}); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	seen := 0
	for {
		select {
		case err := <-done:
			if err != nil || seen == 0 {
				t.Fatalf("got %d copies, %v", seen, err)
			}
			return
		default:
		}
		v, err := n.Get(t.Context(), "k")
		if errors.Is(err, share.ErrNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		seen++
		for i, b := range v.Bytes() {
			if b != v.Bytes()[0] {
				t.Fatalf("copy %d has %d at %d, and %d at its beginning", seen, b, i, v.Bytes()[0])
			}
		}
	}
}

// stuck is a connection that takes nothing until it is released.
type stuck struct {
	net.Conn
	writing, release chan struct{}
}

func (c *stuck) Write([]byte) (int, error) {
	close(c.writing)
	<-c.release
	return 0, os.ErrDeadlineExceeded
}

// TestAClientThatTakesNoHeartbeatHoldsNobodyUp has a client connect while the door
// asks another one for a sign of life, which does not read.
func TestAClientThatTakesNoHeartbeatHoldsNobodyUp(t *testing.T) {
	h := build(t, nil)
	near, far := net.Pipe()
	defer far.Close()
	defer near.Close()
	conn := &stuck{near, make(chan struct{}), make(chan struct{})}
	c := &client{d: h.Door, link: newLink(conn, h.stalls, nil), peer: peerInfo{minor: 1}, asked: -time.Hour}
	c.link.arrival.heard.Store(int64(-time.Hour))
	h.mu.Lock()
	h.clients[c] = struct{}{}
	h.mu.Unlock()
	asked, served := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		h.heartbeats()
	}()
	<-conn.writing
	go func() {
		defer close(served)
		another, err := marutest.Dial(h.tcp, "another", "another")
		if err != nil {
			t.Error(err)
			return
		}
		another.Close()
	}()
	select {
	case <-served:
	case <-time.After(20 * time.Second):
		t.Error("a client that takes no heartbeat keeps another one from connecting")
	}
	close(conn.release)
	<-asked
	<-served
	h.mu.Lock()
	delete(h.clients, c)
	h.mu.Unlock()
}

// TestAClientThatIsKickedIsDisconnectedAndMayComeBackAsANewOne: its regions and pins
// are gone, and it hears of it.
func TestAClientThatIsKickedIsDisconnectedAndMayComeBackAsANewOne(t *testing.T) {
	h := build(t, nil)
	o := h.owner(t, h.tcp, "identity", "o", 1<<20)
	o.store(t, "k", 0, "v")
	if ok, err := o.Pin("k"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	n := h.native(t)
	for s, err := range n.Sessions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if s.Maru {
			if err := n.Kick(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := o.Exists("k"); err == nil {
		t.Error("a client that was kicked is served by its old connection")
	}
	again := h.owner(t, h.tcp, "identity", "o", 1<<20)
	if ok, err := again.Delete("k"); !ok || err != nil {
		t.Errorf("deleting the key that the kicked client had pinned: got %v, %v", ok, err)
	}
	again.store(t, "k", 0, "anew")
}

// TestAnAnswerDoesNotWaitForTheNextRequest: a request comes together with something
// that is none, such as the answer to a heartbeat, or with the beginning of another
// one. Its own answer must go out, or its sender gives it up as lost.
func TestAnAnswerDoesNotWaitForTheNextRequest(t *testing.T) {
	h := build(t, nil)
	for what, behind := range map[string]string{"the answer to a heartbeat": "\x04\x05\x04PONG", "half a frame": "\x01", "half a request": "\x01\x00\x00\x20\xcf"} {
		nc, err := net.Dial("tcp", strings.TrimPrefix(h.tcp, "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		l := newLink(nc, newStalls(), nil)
		if _, err := l.greet("DEALER", "identity of "+what); err != nil {
			t.Fatal(err)
		}
		e := newEncoder()
		e.begin(header{kind: typeHeartbeat, sequence: 7})
		e.object(0)
		msg := e.end()
		if _, err := nc.Write(append(append([]byte{flagMore, 0, 0, byte(len(msg))}, msg...), behind...)); err != nil {
			t.Fatal(err)
		}
		if err := nc.SetReadDeadline(time.Now().Add(frameTime / 2)); err != nil { // half a frame ends the connection later
			t.Fatal(err)
		}
		body, _, err := l.message(nil)
		if err != nil {
			t.Errorf("behind the request is %s: %v, want its answer", what, err)
			continue
		}
		if got, err := parseHeader(body); err != nil || got.sequence != 7 {
			t.Errorf("behind the request is %s: got the answer %+v, %v, want that to request 7", what, got, err)
		}
	}
}
