package resource

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// figure is the state diagram of Maru's memory model, section 2, edge by edge.
var figure = []struct {
	from  State
	event Event
	to    State
}{
	{None, Requested, Allocated},
	{Allocated, OwnerMaps, Active},
	{Active, ReaderMaps, SharedRead},
	{SharedRead, LastUnmaps, Active},
	{Active, OwnerLeaves, Released},
	{SharedRead, OwnerLeaves, Released},
	{Released, ReferencesHold, Deferred},
	{Released, ReferencesGone, Freed},
	{Deferred, ReferencesGone, Freed},
}

// beyond is what the figure leaves out, as the table's comment explains.
var beyond = []struct {
	from  State
	event Event
	to    State
}{
	{Allocated, OwnerLeaves, Released},
	{SharedRead, ReaderMaps, SharedRead},
	{SharedRead, ReaderUnmaps, SharedRead},
	{Deferred, ReaderMaps, Deferred},
	{Deferred, ReaderUnmaps, Deferred},
	{Deferred, LastUnmaps, Deferred},
	{Freed, ReaderUnmaps, Freed},
	{Freed, LastUnmaps, Freed},
}

func TestTransitionsAreTheFigureAndNothingElse(t *testing.T) {
	want := map[[2]int]State{}
	for _, e := range figure {
		want[[2]int{int(e.from), int(e.event)}] = e.to
	}
	for _, e := range beyond {
		want[[2]int{int(e.from), int(e.event)}] = e.to
	}
	for s := range numStates {
		for e := range numEvents {
			got, err := s.Next(e)
			to, allowed := want[[2]int{int(s), int(e)}]
			switch {
			case allowed && (err != nil || got != to):
				t.Errorf("%v when %v: got %v, %v, want %v", s, e, got, err, to)
			case !allowed && err == nil:
				t.Errorf("%v when %v: got %v, want an error", s, e, got)
			case !allowed && got != s:
				t.Errorf("%v when %v is refused and changes the state to %v", s, e, got)
			}
		}
	}
	if _, err := State(99).Next(Requested); err == nil {
		t.Error("a state that does not exist has a successor")
	}
}

func TestExtentsAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 64
		var x Extents
		x.Grow(size)
		var used [size]bool
		held := map[int64]int64{}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n, align := rapid.Int64Range(1, 20).Draw(t, "n"), rapid.SampledFrom([]int64{1, 2, 4, 8}).Draw(t, "align")
				want, found := int64(0), false
				for off := int64(0); off+n <= size && !found; off += align {
					found = true
					for i := off; i < off+n; i++ {
						found = found && !used[i]
					}
					want = off
				}
				off, ok := x.Take(n, align)
				if ok != found || ok && off != want {
					t.Fatalf("take %d aligned to %d: got %d, %v, want %d, %v", n, align, off, ok, want, found)
				}
				if ok {
					held[off] = n
					for i := off; i < off+n; i++ {
						used[i] = true
					}
				}
			},
			"put": func(t *rapid.T) {
				for off, n := range held {
					x.Put(off, n)
					delete(held, off)
					for i := off; i < off+n; i++ {
						used[i] = false
					}
					break
				}
			},
			"": func(t *rapid.T) {
				var free int64
				for _, u := range used {
					if !u {
						free++
					}
				}
				if total, _ := x.Free(); total != free {
					t.Fatalf("free: got %d, want %d", total, free)
				}
				if len(held) == 0 && len(x.free) != 1 {
					t.Fatalf("all is free in %d pieces, want 1", len(x.free))
				}
			},
		})
	})
}

func TestHandlesAreCapabilities(t *testing.T) {
	var s, other Secret
	other[0] = 1
	h := s.Sign(Handle{Region: 7, Holder: 9, Length: 100, Rights: Read})
	if err := s.Check(h, 9, Read); err != nil {
		t.Fatalf("a genuine handle: %v", err)
	}
	parsed, err := ParseHandle(h.Append(nil))
	if err != nil || parsed != h {
		t.Fatalf("parsed: got %v, %v, want %v", parsed, err, h)
	}
	bad := map[string]func(*Handle){
		"another region": func(h *Handle) { h.Region++ },
		"another length": func(h *Handle) { h.Length++ },
		"more rights":    func(h *Handle) { h.Rights |= Own },
		"another holder": func(h *Handle) { h.Holder++ },
	}
	for name, change := range bad {
		forged := h
		change(&forged)
		if err := s.Check(forged, forged.Holder, Read); !errors.Is(err, ErrHandle) {
			t.Errorf("%s: got %v, want %v", name, err, ErrHandle)
		}
	}
	if err := s.Check(h, 10, Read); !errors.Is(err, ErrHandle) {
		t.Errorf("presented by another client: got %v, want %v", err, ErrHandle)
	}
	if err := s.Check(h, 9, Own); !errors.Is(err, ErrHandle) {
		t.Errorf("for a right that it has not: got %v, want %v", err, ErrHandle)
	}
	if err := other.Check(h, 9, Read); !errors.Is(err, ErrHandle) {
		t.Errorf("under another secret: got %v, want %v", err, ErrHandle)
	}
	for i := range HandleSize * 8 {
		raw := h.Append(nil)
		raw[i/8] ^= 1 << (i % 8)
		forged, err := ParseHandle(raw)
		if err != nil || s.Check(forged, forged.Holder, forged.Rights) == nil {
			t.Fatalf("with bit %d flipped it is accepted", i)
		}
	}
}

func TestSecretIsMadeOnceAndMissedWhenGone(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadSecret(dir, false); err == nil {
		t.Fatal("a missing secret beside allocations was accepted")
	}
	made, err := LoadSecret(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, secretName)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("the secret has mode %v, %v, want 0600", st.Mode(), err)
	}
	again, err := LoadSecret(dir, false)
	if err != nil || *again != *made {
		t.Fatalf("read again: %v, the same: %v", err, *again == *made)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSecret(dir, false); err == nil {
		t.Fatal("a secret that all can read was accepted")
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSecret(dir, false); err == nil {
		t.Fatal("a secret that is cut short was accepted")
	}
}

func TestParseSpec(t *testing.T) {
	good := map[string]Spec{
		"memfd:8GiB":            {Kind: Memfd, Size: 8 << 30},
		"hugetlb:2MiB":          {Kind: Hugetlb, Size: 2 << 20},
		"file:/mnt/pmem0":       {Kind: File, Path: "/mnt/pmem0"},
		"file:/mnt/pmem*:1GiB":  {Kind: File, Path: "/mnt/pmem*", Size: 1 << 30},
		"dax:/dev/dax0.0":       {Kind: Dax, Path: "/dev/dax0.0"},
		"dax:/dev/dax0.0:64MiB": {Kind: Dax, Path: "/dev/dax0.0", Size: 64 << 20},
	}
	for s, want := range good {
		if got, err := ParseSpec(s); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "memfd", "memfd:", "memfd:x", "memfd:-1", "file:relative", "tape:/dev/st0", "file:/a:b"} {
		if got, err := ParseSpec(s); err == nil {
			t.Errorf("%q: got %v, want an error", s, got)
		}
	}
}

// fakeDax makes a sysfs tree and a file that stand for a DAX device.
func fakeDax(t *testing.T, size, align int64) (sysfs, dev string) {
	t.Helper()
	root := t.TempDir()
	sysfs, dev = filepath.Join(root, "sys"), filepath.Join(root, "dax0.0")
	dir := filepath.Join(sysfs, "bus/dax/devices/dax0.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]int64{"size": size, "align": align} {
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "%d\n", n), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dev, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	return sysfs, dev
}

func TestDaxDeviceIsCarvedAlignedAndNotReusedUnderAReader(t *testing.T) {
	const align = 64 << 10
	sysfs, dev := fakeDax(t, 4*align+100, align)
	m, err := New(Options{Specs: []Spec{{Kind: Dax, Path: dev}}, Sysfs: sysfs})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if got := m.Pools()[0].Size; got != 4*align {
		t.Fatalf("the pool has %d bytes, want the aligned part, %d", got, 4*align)
	}
	first, err := m.Carve("", 4096, 4096, 1, "t")
	if err != nil {
		t.Fatal(err)
	}
	m.Install(first)
	second, err := m.Carve("", 3*align, 4096, 1, "t")
	if err != nil {
		t.Fatal(err)
	}
	m.Install(second)
	if first.Length != align || second.Offset != align {
		t.Fatalf("carved [%d, +%d) and [%d, +%d), want them aligned to %d", first.Offset, first.Length, second.Offset, second.Length, align)
	}
	if _, err := m.Carve("", 4096, 4096, 1, "t"); !errors.Is(err, ErrFull) {
		t.Fatalf("carved from a full device: %v", err)
	}
	steps := []Event{OwnerMaps, ReaderMaps, OwnerLeaves, ReferencesGone}
	for _, e := range steps {
		if err := first.Step(e); err != nil {
			t.Fatal(err)
		}
	}
	first.Readers = 1
	m.Free(first)
	if _, err := m.Carve("", 4096, 4096, 1, "t"); !errors.Is(err, ErrFull) {
		t.Fatalf("an extent that a reader maps was carved again: %v", err)
	}
	if err := m.Unmapped(first.ID); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove(first); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(dev, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("left behind"), first.Offset); err != nil {
		t.Fatal(err)
	}
	f.Close()
	again, err := m.Carve("", 4096, 4096, 2, "t")
	if err != nil || again.Offset != first.Offset || again.ID == first.ID {
		t.Fatalf("carved again: got %+v, %v, want offset %d and another number", again, err, first.Offset)
	}
	m.Install(again)
	data, err := os.ReadFile(dev)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range data[again.Offset : again.Offset+again.Length] {
		if b != 0 {
			t.Fatalf("byte %d of a new region is %d: its former owner's", i, b)
		}
	}
}

func TestDaxDevicesThatMakeNoSense(t *testing.T) {
	for name, d := range map[string][2]int64{"odd alignment": {1 << 20, 5000}, "small alignment": {1 << 20, 512}, "too small": {4096, 1 << 20}} {
		sysfs, dev := fakeDax(t, d[0], d[1])
		if _, err := New(Options{Specs: []Spec{{Kind: Dax, Path: dev}}, Sysfs: sysfs}); err == nil {
			t.Errorf("%s: the pool was opened", name)
		}
	}
}

func TestRescanFindsPoolsThatAppearAndGrow(t *testing.T) {
	root := t.TempDir()
	m, err := New(Options{Specs: []Spec{{Kind: File, Path: filepath.Join(root, "pmem*"), Size: 1 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if n := len(m.Pools()); n != 0 {
		t.Fatalf("got %d pools, want none yet", n)
	}
	if err := os.Mkdir(filepath.Join(root, "pmem0"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Rescan(); err != nil {
		t.Fatal(err)
	}
	if pools := m.Pools(); len(pools) != 1 || pools[0].Free != 1<<20 {
		t.Fatalf("after a directory appeared: got %+v", pools)
	}
	if err := os.Remove(filepath.Join(root, "pmem0")); err != nil {
		t.Fatal(err)
	}
	if err := m.Rescan(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Carve("", 4096, 4096, 1, "t"); !errors.Is(err, ErrFull) {
		t.Fatalf("carved from a pool that has gone: %v", err)
	}
}

// TestAPoolIsOneDaemons: one that removed what it does not know would remove what the other has.
func TestAPoolIsOneDaemons(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "pool")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(shm)
	sysfs, dev := fakeDax(t, 1<<20, 4096)
	for _, opt := range []Options{
		{Specs: []Spec{{Kind: File, Path: t.TempDir(), Size: 1 << 20}}},
		{Specs: []Spec{{Kind: Memfd, Size: 1 << 20}}, Named: shm},
		{Specs: []Spec{{Kind: Dax, Path: dev}}, Sysfs: sysfs},
	} {
		m, err := New(opt)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := New(opt); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("%v, which another daemon has: got %v, %v, want %v", opt.Specs, second, err, unix.EWOULDBLOCK)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := New(opt)
		if err != nil {
			t.Fatalf("%v, which another daemon had: %v", opt.Specs, err)
		}
		again.Close()
	}
}

func TestQuotas(t *testing.T) {
	m, err := New(Options{Specs: []Spec{{Kind: Memfd, Size: 1 << 20}}, Quotas: map[string]int64{"a": 8192, "*": 4096}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	carve := func(tenant string) (*Region, error) {
		r, err := m.Carve("", 4096, 4096, 1, tenant)
		if err == nil {
			m.Install(r)
		}
		return r, err
	}
	var first *Region
	for i, want := range []error{nil, nil, ErrQuota} {
		r, err := carve("a")
		if !errors.Is(err, want) {
			t.Fatalf("region %d of a: got %v, want %v", i, err, want)
		}
		if i == 0 {
			first = r
		}
	}
	for i, want := range []error{nil, ErrQuota} {
		if _, err := carve("b"); !errors.Is(err, want) {
			t.Fatalf("region %d of b: got %v, want %v", i, err, want)
		}
	}
	for _, e := range []Event{OwnerLeaves, ReferencesGone} {
		if err := first.Step(e); err != nil {
			t.Fatal(err)
		}
	}
	m.Free(first)
	if err := m.Remove(first); err != nil {
		t.Fatal(err)
	}
	if _, err := carve("a"); err != nil {
		t.Fatalf("after a region was freed: %v", err)
	}
}

func TestHugePagesOrAClearError(t *testing.T) {
	m, err := New(Options{Specs: []Spec{{Kind: Hugetlb, Size: 4 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r, err := m.Carve("", 1<<20, 4096, 1, "t")
	if err != nil {
		t.Fatal(err) // reserving them is the kernel's affair, at population
	}
	if r.Length != 2<<20 {
		t.Fatalf("a region of %d bytes, want a whole huge page", r.Length)
	}
	if err := m.Discard(r); err != nil {
		t.Fatal(err)
	}
}
