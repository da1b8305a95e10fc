package maru

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/share"
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
