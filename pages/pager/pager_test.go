package pager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/far"
	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/internal/invariants"
	"polder/pages"
	"polder/pages/internal/uffd"
	"polder/pages/internal/wire"
	"polder/pages/region"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) {
	if invariants.Enabled {
		touched = 256
	}
	if addr := os.Getenv("TOUCH"); addr != "" { // of TestFaultsMakeNoGarbage
		if err := touch(addr); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if addr := os.Getenv("SCAN"); addr != "" { // of TestWhatIsReadInARowIsReadAhead
		if err := scan(addr); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if addr := os.Getenv("ROWS"); addr != "" { // of TestWhatIsInARowIsDealtWithTogether
		if err := rows(addr); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if addr := os.Getenv("HOLES"); addr != "" { // of TestAStreamGoesOnWherePagesAreThere
		if err := fillHoles(addr); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if addr := os.Getenv("ONE_BY_ONE"); addr != "" { // of newClient
		if err := oneByOne(addr); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// newPager starts a pager in this process over far memory of so many segments of 256 KiB, and
// returns its address.
func newPager(t *testing.T, segments int, cfg Config) (*Server, string) {
	t.Helper()
	return newPagerWith(t, segments, far.MinLocal, cfg)
}

func newPagerWith(t *testing.T, segments int, local int64, cfg Config) (*Server, string) {
	t.Helper()
	return newPagerOver(t, far.NewMemStore(256<<10, segments), local, cfg)
}

func newPagerOver(t *testing.T, store far.Store, local int64, cfg Config) (*Server, string) {
	t.Helper()
	h, err := far.NewHeap(store, far.Config{Local: local})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Volumes, err = pages.Open(h, pages.Config{}); err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pager")
	lis, err := fdpass.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-served, h.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, "unix:" + path
}

// TestServingAfterCloseIsAnEnd, and no error: who serves in a goroutine cannot know whether
// Close comes before. The listener is closed.
func TestServingAfterCloseIsAnEnd(t *testing.T) {
	s, _ := newPager(t, 8, Config{Size: 1 << 20, Frames: 1 << 20})
	lis, err := fdpass.Listen(filepath.Join(t.TempDir(), "late"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Serve(lis)); err != nil {
		t.Error(err)
	}
	if err := lis.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is open: closing it gives %v", err)
	}
}

func mapMemory(t *testing.T, pager string, size, local int64) *region.Region {
	t.Helper()
	r, err := region.Map(t.Context(), pager, size, region.Config{Local: local, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// TestARegionIsMemory does what a slice of bytes does, with reads and writes of any length at
// any offset, over a region of which a sixteenth is local.
func TestARegionIsMemory(t *testing.T) {
	const size = 8 << 20
	s, addr := newPager(t, 100, Config{Size: size, Frames: size})
	r := mapMemory(t, addr, size, 512<<10)
	want, random := make([]byte, size), rand.New(rand.NewPCG(1, 2))
	for step := range 600 {
		off, n := random.Int64N(size), random.Int64N(64<<10)+1
		n = min(n, size-off)
		var err error
		switch part := want[off : off+n]; random.IntN(4) {
		case 0:
			for i := range part {
				part[i] = byte(random.Uint32())
			}
			_, err = r.WriteAt(part, off)
		case 1:
			err = r.Do(t.Context(), off, n, region.Writing, func(b []byte) {
				if !bytes.Equal(b, part) {
					t.Errorf("step %d: %d bytes at %d are not what was written", step, n, off)
				}
				b[0]++
				part[0]++
			})
		default:
			got := make([]byte, n)
			if _, err = r.ReadAt(got, off); !bytes.Equal(got, part) {
				t.Errorf("step %d: %d bytes at %d are not what was written", step, n, off)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for off := range r.Bytes() {
		if off%pages.Size == 17 && r.Bytes()[off] != want[off] {
			t.Fatalf("byte %d is %d, want %d", off, r.Bytes()[off], want[off])
		}
	}
	if s.stats.evicted.Load() == 0 || s.stats.faults.Load() == 0 {
		t.Errorf("%d pages were evicted, and %d faults served", s.stats.evicted.Load(), s.stats.faults.Load())
	}
}

// TestPagesAreDroppedByThemselves that lie among others which stay: single pages are read in a
// random order, of which few lie in a row when several are dropped together.
func TestPagesAreDroppedByThemselves(t *testing.T) {
	const count = 1024
	s, addr := newPager(t, 100, Config{Size: count * pages.Size, Frames: count * pages.Size})
	r := mapMemory(t, addr, count*pages.Size, count/4*pages.Size)
	var versions [count]byte
	random, page := rand.New(rand.NewPCG(3, 4)), make([]byte, pages.Size)
	for i := range 4 * count {
		at := random.IntN(count)
		if i < count {
			at = i
		} else if _, err := r.ReadAt(page, int64(at)*pages.Size); err != nil || page[0] != byte(at) || page[1] != versions[at] {
			t.Fatalf("page %d begins with %v, %v; want %d, %d", at, page[:2], err, byte(at), versions[at])
		}
		if i < count || i%8 == 0 {
			versions[at]++
			if _, err := r.WriteAt([]byte{byte(at), versions[at]}, int64(at)*pages.Size); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := s.stats.evicted.Load(); n < count {
		t.Errorf("%d pages were evicted, want more", n)
	}
}

// touch reads and writes pages of a region in a random order.
func touch(addr string) error {
	r, err := region.Map(context.Background(), addr, int64(touched)*pages.Size, region.Config{Local: int64(touched) / 4 * pages.Size})
	if err != nil {
		return err
	}
	defer r.Close()
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 4 * touched {
		b := r.Bytes()[random.IntN(touched)*pages.Size:]
		if i%2 == 0 {
			b[0]++
		} else if b[1] != 0 {
			return errors.New("a byte was written that nobody wrote")
		}
	}
	return nil
}

// scan writes to all pages of a region, and reads them in a row, forwards and backwards, of which each says its number.
func scan(addr string) error {
	r, err := region.Map(context.Background(), addr, int64(scanned)*pages.Size, region.Config{Local: int64(scanned) / 4 * pages.Size})
	if err != nil {
		return err
	}
	defer r.Close()
	b := r.Bytes()
	for i := range scanned {
		b[i*pages.Size], b[i*pages.Size+1] = byte(i), byte(i>>8)
	}
	for round := range 3 {
		for i := range scanned {
			if round == 1 {
				i = scanned - 1 - i
			}
			if b[i*pages.Size] != byte(i) || b[i*pages.Size+1] != byte(i>>8) {
				return fmt.Errorf("page %d begins with %x", i, b[i*pages.Size:][:2])
			}
		}
	}
	return nil
}

// scanned is how many pages scan has.
const scanned = 2048

// touched is how many pages are.
var touched = 2048

// TestFaultsMakeNoGarbage, neither does evicting, where the pages that another process touches are local to the pager.
// Where they are not, the heap writes others out for them, and makes less than one object for each.
func TestFaultsMakeNoGarbage(t *testing.T) {
	for _, tt := range []struct{ local, objects int64 }{{64 << 20, 0}, {far.MinLocal, 1}} {
		s, addr := newPagerWith(t, 100, tt.local, Config{Size: 64 << 20, Frames: 64 << 20})
		run := func() (faults, objects int64) {
			var before, after runtime.MemStats
			began := s.stats.faults.Load()
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "TOUCH="+addr)
			runtime.ReadMemStats(&before)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			runtime.ReadMemStats(&after)
			return s.stats.faults.Load() - began, int64(after.Mallocs - before.Mallocs)
		}
		run() // makes what is kept
		faults, objects := run()
		if most := faults*tt.objects + faults/4; faults < 2*int64(touched) || objects > most && !invariants.Enabled { // with the race detector pools forget
			t.Errorf("with %d bytes local to the pager, %d faults of a process made %d objects, want at least %d faults, and at most %d objects", tt.local, faults, objects, 2*touched, most)
		}
	}
}

// TestWhatIsReadInARowIsReadAhead, so that a process that reads it waits for few pages.
func TestWhatIsReadInARowIsReadAhead(t *testing.T) {
	s, addr := newPager(t, 100, Config{Size: 64 << 20, Frames: 64 << 20})
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "SCAN="+addr)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if faults, ahead := s.stats.faults.Load(), s.stats.ahead.Load(); ahead < int64(scanned) || faults > ahead/2 {
		t.Errorf("a process that read %d pages three times waited for %d, and %d were read ahead", scanned, faults, ahead)
	}
}

// TestStrangersAreRefused who pass no such memory as they announce.
func TestStrangersAreRefused(t *testing.T) {
	s, addr := newPager(t, 100, Config{Size: 64 << 20, Frames: 64 << 20})
	sealed := func(size int) *os.File {
		m, err := arena.NewMemfd("test", size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		if size != 8<<20 { // which is to be memory without a seal
			if err := m.SealForGood(); err != nil {
				t.Fatal(err)
			}
		}
		return m.File()
	}
	fd, _, err := uffd.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	memory, table := sealed(1<<20), sealed(4096)
	good := wire.Attach{Size: 1 << 20, Local: 1 << 20, Base: 1 << 40}
	for name, tt := range map[string]struct {
		a     wire.Attach
		files []*os.File
	}{
		"no userfaultfd":       {good, []*os.File{memory, table, table}},
		"too few descriptors":  {good, []*os.File{memory, table}},
		"memory of other size": {wire.Attach{Size: 2 << 20, Local: 1 << 20}, []*os.File{memory, table, fd.File()}},
		"table of other size":  {good, []*os.File{memory, memory, fd.File()}},
		"memory without seal":  {wire.Attach{Size: 8 << 20, Local: 1 << 20}, []*os.File{sealed(8 << 20), table, fd.File()}},
		"parts of pages":       {wire.Attach{Size: 1<<20 + 1, Local: 1 << 20}, []*os.File{memory, table, fd.File()}},
		"no frames":            {wire.Attach{Size: 1 << 20}, []*os.File{memory, table, fd.File()}},
		"beyond the end":       {wire.Attach{Size: 1 << 20, Local: 1 << 20, Base: 1<<64 - 4096}, []*os.File{memory, table, fd.File()}},
		"what is not there is pinned": {
			wire.Attach{Size: 1 << 20, Local: 1 << 20, Pins: []wire.Request{{ID: 1, Op: wire.OpPin, Off: 1 << 20, N: 1}}}, []*os.File{memory, table, fd.File()},
		},
	} {
		conn, err := fdpass.Dial(strings.TrimPrefix(addr, "unix:"))
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SendFDs(tt.a.Append(nil), tt.files...); err != nil {
			t.Fatal(err)
		}
		if b, err := conn.Recv(); err == nil {
			if r, err := wire.ParseReply(b); err != nil || r.Status != wire.Refused {
				t.Errorf("%s: %+v, %v, want it refused", name, r, err)
			}
			conn.Done()
			if _, err = conn.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("%s: after the refusal: %v", name, err)
			}
		}
		_ = conn.Close()
	}
	pooltest.Eventually(t, "nothing of the strangers is kept", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.mappings == 0 && s.size == 0 && s.frames == 0
	})
}

// fillHoles touches half of the pages, at random, and then all pages, in a row.
func fillHoles(addr string) error {
	r, err := region.Map(context.Background(), addr, int64(scanned)*pages.Size, region.Config{Local: int64(scanned) * pages.Size * 2})
	if err != nil {
		return err
	}
	defer r.Close()
	b, sum := r.Bytes(), byte(0)
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(scanned)[:scanned/2] {
		sum += b[i*pages.Size]
	}
	for i := range scanned {
		sum += b[i*pages.Size]
	}
	if sum != 0 {
		return errors.New("a page that was never written is not zeros")
	}
	return nil
}

// TestAStreamGoesOnWherePagesAreThere already, such as that with which the next window is to be read.
func TestAStreamGoesOnWherePagesAreThere(t *testing.T) {
	s, addr := newPager(t, 100, Config{Size: 64 << 20, Frames: 64 << 20})
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "HOLES="+addr)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if missed := s.stats.faults.Load() - scanned/2; missed > scanned/16 { // on an idle machine a few; without the stream going on, each other page
		t.Errorf("a process that read %d pages in a row, of which half were there, waited for %d", scanned, missed)
	}
}
