package robustness

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/pages/region"
)

const mapped = 16 << 20

// startPager starts a pager over a node, and returns where clients connect.
func startPager(t *testing.T, node *child.Process, args ...string) (*child.Process, string) {
	t.Helper()
	addr := "unix:" + filepath.Join(t.TempDir(), "pager")
	return pagerAt(t, addr, node, args...), addr
}

func pagerAt(t *testing.T, addr string, node *child.Process, args ...string) *child.Process {
	t.Helper()
	return proctest.Run(t, "pager", append([]string{"--listen", addr, "--admin", "127.0.0.1:0", "--far", node.Addr("verbs"), "--local", "8MiB"}, args...)...)
}

func mapRegion(t *testing.T, addr string, local int64) *region.Region {
	t.Helper()
	r, err := region.Map(t.Context(), addr, mapped, region.Config{Local: local, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// fillRegion writes to each page what pageIs says, by touching it.
func fillRegion(r *region.Region) {
	for b, page := r.Bytes(), 0; len(b) > 0; b, page = b[4096:], page+1 {
		copy(b, pageIs(page))
		copy(b[4096-16:], pageIs(page))
	}
}

func pageIs(page int) []byte { return bytes.Repeat([]byte{byte(page), byte(page >> 8), 0x5a, 1}, 4) }

// wrongPages counts the pages that are not as fillRegion has left them.
func wrongPages(r *region.Region) (wrong int) {
	for b, page := r.Bytes(), 0; len(b) > 0; b, page = b[4096:], page+1 {
		if !bytes.HasPrefix(b, pageIs(page)) || !bytes.Equal(b[4096-16:4096], pageIs(page)) {
			wrong++
		}
	}
	return wrong
}

// TestAMappingIsMemory of which a sixteenth is local, used as any memory, by system calls,
// too; and it takes no more memory than it may.
func TestAMappingIsMemory(t *testing.T) {
	t.Parallel()
	node := proctest.Start(t, "node", "--lend", "64MiB")
	p, addr := startPager(t, node)
	r := mapRegion(t, addr, 1<<20)
	fillRegion(r)
	for range 2 {
		if n := wrongPages(r); n > 0 {
			t.Errorf("%d of %d pages are not what was written", n, mapped/4096)
		}
	}
	if !r.KernelFaults() {
		t.Fatal("the kernel does not serve faults of system calls: run this as root, or let it open /dev/userfaultfd")
	}
	path := filepath.Join(t.TempDir(), "copy")
	if err := os.WriteFile(path, r.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, r.Bytes()) {
		t.Error("a file of the memory is not what is in the memory")
	}
	if n := r.Resident(); n > 1<<20 {
		t.Errorf("%d bytes are local, want at most %d", n, 1<<20)
	}
	m := proctest.State(t, p).Metrics
	if m.Sum("polder_pager_faults_total") == 0 || m.Sum("polder_pager_evicted_total") == 0 || m.Sum("polder_pager_read_ahead_total") == 0 {
		t.Error("there were no faults, nothing was evicted, or nothing was read ahead")
	}
}

// TestAMappingThatIsTooLargeIsRefused, and one that ends gives back what it had.
func TestAMappingThatIsTooLargeIsRefused(t *testing.T) {
	node := proctest.Start(t, "node", "--lend", "64MiB")
	p, addr := startPager(t, node, "--size", "32MiB", "--frames", "2MiB", "--max-clients", "2")
	first := mapRegion(t, addr, 1<<20)
	fillRegion(first)
	for _, wants := range []struct{ size, local int64 }{{32 << 20, 1 << 20}, {16 << 20, 2 << 20}} {
		if _, err := region.Map(t.Context(), addr, wants.size, region.Config{Local: wants.local}); !errors.Is(err, region.ErrRefused) {
			t.Errorf("mapping %d bytes with %d local: %v, want it refused", wants.size, wants.local, err)
		}
	}
	used := func() float64 { return proctest.State(t, p).Metrics.Sum("polder_far_live_bytes") }
	if used() < mapped/2 {
		t.Fatalf("%v bytes of far memory are used: was there anything evicted?", used())
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	proctest.Until(t, "the mapping has given everything back", func() bool {
		return proctest.State(t, p).Metrics.Sum("polder_pager_mappings") == 0 && used() == 0
	})
	second, err := region.Map(t.Context(), addr, 32<<20, region.Config{Local: 2 << 20})
	if err != nil {
		t.Fatalf("mapping what the first one has given back: %v", err)
	}
	_ = second.Close()
}

// TestAPagerThatIsKilledIsFollowedByAnother: what was local is as it was, what was never
// written reads as zeros, and of the rest every access fails.
func TestAPagerThatIsKilledIsFollowedByAnother(t *testing.T) {
	t.Parallel()
	node := proctest.Start(t, "node", "--lend", "64MiB")
	p, addr := startPager(t, node)
	r := mapRegion(t, addr, 1<<20)
	const written = mapped / 2
	for off := int64(0); off < written; off += 4096 {
		if _, err := r.WriteAt(pageIs(int(off/4096)), off); err != nil {
			t.Fatal(err)
		}
	}
	pin, err := r.Pin(t.Context(), 8*4096, 4096, region.Writing)
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	copy(pin.Bytes(), "written meanwhile")
	pagerAt(t, addr, node)
	kept, lost := 0, 0
	for off := int64(0); off < mapped; off += 4096 {
		got := make([]byte, 16)
		_, err := r.ReadAt(got, off)
		want := pageIs(int(off / 4096))
		if off == 8*4096 {
			want = []byte("written meanwhile")[:16]
		} else if off >= written {
			want = make([]byte, 16)
		}
		switch {
		case errors.Is(err, region.ErrLost) && off < written:
			lost++
			if touches(&r.Bytes()[off]) {
				t.Fatalf("page %d is lost, but can be touched", off/4096)
			}
		case err != nil:
			t.Fatalf("page %d: %v", off/4096, err)
		case !bytes.Equal(got, want):
			t.Fatalf("page %d has %x, want %x", off/4096, got, want)
		default:
			kept++
		}
	}
	if local := mapped / 16 / 4096 / 2; lost == 0 || kept < written/4096+local { // some are kept free
		t.Errorf("%d pages are lost, and %d are as they were, want at least those that were local", lost, kept)
	}
	pin.Unpin()
	if _, err := r.WriteAt(pageIs(1), mapped-4096); err != nil {
		t.Errorf("writing with the new pager: %v", err)
	}
}

// touches reports whether a byte can be read.
func touches(b *byte) (can bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { can = recover() == nil }()
	sink += *b
	return true
}

var sink byte

// TestAPagerThatDoesNotComeBack: after the region's time what is not local fails, and what is
// local stays.
func TestAPagerThatDoesNotComeBack(t *testing.T) {
	t.Parallel()
	node := proctest.Start(t, "node", "--lend", "64MiB")
	p, addr := startPager(t, node)
	r, err := region.Map(t.Context(), addr, mapped, region.Config{Local: 1 << 20, Timeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fillRegion(r)
	p.Kill()
	if _, err := r.ReadAt(make([]byte, mapped), 0); !errors.Is(err, region.ErrLost) {
		t.Errorf("reading without a pager: %v, want %v", err, region.ErrLost)
	}
	can := 0
	for off := 0; off < mapped; off += 4096 {
		if touches(&r.Bytes()[off]) {
			can++
			if !bytes.HasPrefix(r.Bytes()[off:], pageIs(off/4096)) {
				t.Fatalf("page %d is not what was written", off/4096)
			}
		}
	}
	if can == 0 || can > 1<<20/4096 {
		t.Errorf("%d pages can be touched, want those that were local: at most %d", can, 1<<20/4096)
	}
}

// TestPagesOfANodeThatIsLost fail, and are never others.
func TestPagesOfANodeThatIsLost(t *testing.T) {
	t.Parallel()
	node := proctest.Start(t, "node", "--lend", "64MiB")
	_, addr := startPager(t, node, "--op-timeout", "100ms")
	r := mapRegion(t, addr, 1<<20)
	fillRegion(r)
	node.Kill()
	lost := 0
	for page := range mapped / 4096 {
		if !touches(&r.Bytes()[page*4096]) {
			if lost++; lost == 5 {
				break // each takes a while
			}
		} else if !bytes.HasPrefix(r.Bytes()[page*4096:], pageIs(page)) {
			t.Fatalf("page %d is not what was written", page)
		}
	}
	if lost < 5 {
		t.Errorf("%d pages are lost", lost)
	}
}

// TestFarMemoryThatIsFull is an error of what is written, and no other bytes.
func TestFarMemoryThatIsFull(t *testing.T) {
	t.Parallel()
	node := proctest.Start(t, "node", "--lend", "8MiB")
	_, addr := startPager(t, node, "--op-timeout", "500ms")
	r := mapRegion(t, addr, 1<<20)
	page := make([]byte, 4096)
	var full error
	at := 0
	for ; at < mapped/4096 && full == nil; at++ {
		copy(page, pageIs(at))
		_, full = r.WriteAt(page, int64(at)*4096)
	}
	if !errors.Is(full, region.ErrFull) && full == nil {
		t.Fatalf("16 MiB are in far memory of 8 MiB: %v", full)
	}
	for i := range at - 1 {
		if _, err := r.ReadAt(page, int64(i)*4096); err == nil && !bytes.HasPrefix(page, pageIs(i)) {
			t.Fatalf("page %d is not what was written", i)
		}
	}
}
