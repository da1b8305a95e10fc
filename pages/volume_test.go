package pages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"polder/far"
	"polder/far/store/storetest"
	"polder/internal/invariants"
)

// newVolume makes a volume over far memory of so many segments of 256 KiB, with the least
// local memory.
func newVolume(t *testing.T, size int64, segments int) (*Volume, *far.Heap) {
	t.Helper()
	v, h, err := makeVolume(size, segments)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return v, h
}

func makeVolume(size int64, segments int) (*Volume, *far.Heap, error) {
	return makeVolumeWith(Config{}, size, segments)
}

func makeVolumeWith(cfg Config, size int64, segments int) (*Volume, *far.Heap, error) {
	h, err := far.NewHeap(far.NewMemStore(256<<10, segments), far.Config{Local: far.MinLocal})
	if err != nil {
		return nil, nil, err
	}
	vs, err := Open(h, cfg)
	if err != nil {
		return nil, nil, err
	}
	v, err := vs.Volume("volume", size)
	return v, h, err
}

// TestCompressedPagesTakeLess: pages of text that would take 16 MiB fit into 5 MiB, and those that cannot be made smaller
// are kept as they are; what a page needs is no garbage.
func TestCompressedPagesTakeLess(t *testing.T) {
	v, h, err := makeVolumeWith(Config{Compress: true}, 32<<20, 20)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ctx, want := t.Context(), make([]byte, 16<<20)
	text, random := []byte("the quick brown fox jumps over the lazy dog. "), rand.NewChaCha8([32]byte{1})
	for off := 0; off < len(want); off += Size {
		page := want[off : off+Size]
		for n := 0; n < Size; {
			n += copy(page[n:], text)
		}
		if off%(32*Size) == 0 {
			_, _ = random.Read(page)
		}
		page[0] = byte(off / Size)
	}
	if err := v.Write(ctx, want, 0); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	for _, r := range [][2]int{{0, len(want)}, {5, 10}, {Size - 1, 2}, {3*Size + 17, 40 * Size}, {32*Size + 5, 100}} {
		p := got[:r[1]]
		if err := v.Read(ctx, p, int64(r[0])); err != nil || !bytes.Equal(p, want[r[0]:r[0]+r[1]]) {
			t.Errorf("%d bytes at %d are not what was written: %v", r[1], r[0], err)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		_ = v.Write(ctx, want[:4*Size], 8*Size)
		_ = v.Read(ctx, got[:Size], 9*Size)
		_ = v.Read(ctx, got[:10], 9*Size)
	}); n >= 1 && !invariants.Enabled {
		t.Errorf("a write and two reads of compressed pages allocate %v times", n)
	}
}

// TestWhatIsNoPageIsAnError: an entry that was not written by this code is not taken for a page.
func TestWhatIsNoPageIsAnError(t *testing.T) {
	v, _ := newVolume(t, 4*Size, 20)
	ctx, b := t.Context(), make([]byte, Size)
	b[0] = 1
	if err := v.Write(ctx, b, 0); err != nil {
		t.Fatal(err)
	}
	for _, entry := range [][]byte{{}, []byte("x"), {0x80, 0x20}, {0x80, 0x20, 1, 2, 3}, make([]byte, Size+1), bytes.Repeat([]byte{255}, Size-1)} {
		if err := v.pages.Set(ctx, make([]byte, 8), far.Entry{Value: entry}); err != nil {
			t.Fatal(err)
		}
		for _, p := range [][]byte{b, b[:10]} {
			if err := v.Read(ctx, p, 0); !errors.Is(err, errCoded) {
				t.Errorf("reading %d bytes of a page whose entry has %d: %v", len(p), len(entry), err)
			}
			if err := v.Write(ctx, p[:10], 5); !errors.Is(err, errCoded) {
				t.Errorf("writing to a page whose entry has %d: %v", len(entry), err)
			}
		}
	}
}

// TestAVolumeIsMemory does what a slice of bytes does, with reads, writes and discards of
// any length at any offset, over a volume of which less than half is local.
func TestAVolumeIsMemory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const size = 8 << 20
		v, h, err := makeVolumeWith(Config{Compress: rapid.Bool().Draw(rt, "compress")}, size, 100)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = h.Close() }()
		ctx, want := t.Context(), make([]byte, size)
		whatIs := func(off, n int) {
			got := make([]byte, n)
			if err := v.Read(ctx, got, int64(off)); err != nil {
				rt.Fatal(err)
			}
			if !bytes.Equal(got, want[off:off+n]) {
				rt.Fatalf("%d bytes at %d are not what was written", n, off)
			}
		}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		extent := func(rt *rapid.T, most int) (int, int) {
			off := rapid.IntRange(0, size).Draw(rt, "offset")
			if rapid.Bool().Draw(rt, "whole pages") {
				off = off / Size * Size
			}
			return off, min(rapid.IntRange(0, most).Draw(rt, "length"), size-off)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				off, n := extent(rt, 512<<10)
				for i := range want[off : off+n] {
					want[off+i] = byte(random.Uint32())
				}
				if rapid.IntRange(0, 3).Draw(rt, "zeros") == 0 {
					clear(want[off : off+n])
				}
				if err := v.Write(ctx, want[off:off+n], int64(off)); err != nil {
					rt.Fatal(err)
				}
			},
			"discard": func(rt *rapid.T) {
				off, n := extent(rt, 2<<20)
				clear(want[off : off+n])
				if err := v.Discard(ctx, int64(off), int64(n)); err != nil {
					rt.Fatal(err)
				}
			},
			"prefetch": func(rt *rapid.T) {
				off, n := extent(rt, 512<<10)
				if err := v.Prefetch(ctx, int64(off), int64(n)); err != nil {
					rt.Fatal(err)
				}
			},
			"read": func(rt *rapid.T) { whatIs(extent(rt, 512<<10)) },
			"read pages": func(rt *rapid.T) {
				numbers := rapid.SliceOfN(rapid.Int64Range(0, size/Size-1), 0, MaxRead).Draw(rt, "numbers")
				got := make([]byte, len(numbers)*Size)
				if err := v.ReadPages(ctx, numbers, got); err != nil {
					rt.Fatal(err)
				}
				for i, page := range numbers {
					if !bytes.Equal(got[i*Size:(i+1)*Size], want[page*Size:(page+1)*Size]) {
						rt.Fatalf("page %d is not what was written", page)
					}
				}
			},
		})
		whatIs(0, size)
		pages := int64(0)
		for off := 0; off < size; off += Size {
			if !bytes.Equal(want[off:off+Size], zeros[:]) {
				pages++
			}
		}
		if got := v.Stats().Pages; got != pages {
			rt.Fatalf("%d pages take memory, want %d: those that are not zeros", got, pages)
		}
		at := int64(0)
		for at < size {
			n, memory := v.Extent(at, size)
			if n <= 0 {
				rt.Fatalf("the extent at %d has %d bytes", at, n)
			}
			for page := at; page < at+n; page += Size {
				if zero := bytes.Equal(want[page:page+Size], zeros[:]); zero == memory {
					rt.Fatalf("the page at %d is in an extent with memory %t, and is zeros %t", page, memory, zero)
				}
			}
			at += n
		}
	})
}

// TestPagesOfManyWritersAreWhole has goroutines write pages that say what they are, whole
// and by halves, and discard them.
func TestPagesOfManyWritersAreWhole(t *testing.T) {
	const pages, writers, rounds = 3000, 4, 6000
	v, _ := newVolume(t, pages*Size, 100)
	ctx := t.Context()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 7))
			page, got := make([]byte, Size), make([]byte, Size)
			for range rounds {
				off := int64(random.IntN(pages)) * Size
				var err error
				switch random.IntN(8) {
				case 0:
					err = v.Discard(ctx, off, Size)
				case 1, 2, 3:
					for i := range page {
						page[i] = byte(off/Size) | 1
					}
					half := random.IntN(2) * Size / 2
					err = v.Write(ctx, page[half:], off+int64(half))
				default:
					if err = v.Read(ctx, got, off); err != nil {
						break
					}
					for _, half := range [][]byte{got[:Size/2], got[Size/2:]} {
						if !bytes.Equal(half, bytes.Repeat(half[:1], Size/2)) || half[0] != 0 && half[0] != byte(off/Size)|1 {
							t.Errorf("a half of page %d is %x...", off/Size, half[:8])
							return
						}
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	found := int64(0)
	for off := int64(0); off < pages*Size; off += Size {
		got := make([]byte, Size)
		if err := v.Read(ctx, got, off); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, zeros[:]) {
			found++
		}
	}
	if got := v.Stats().Pages; got != found {
		t.Errorf("%d pages take memory, want %d: those that are not zeros", got, found)
	}
}

// TestHalvesOfAPageHaveWritersOfTheirOwn: a write of a part of a page changes nothing else of
// it, also while another part is written.
func TestHalvesOfAPageHaveWritersOfTheirOwn(t *testing.T) {
	v, _ := newVolume(t, Size, 20)
	ctx := t.Context()
	var wg sync.WaitGroup
	for half := range 2 {
		wg.Go(func() {
			mine, got, off := make([]byte, Size/2), make([]byte, Size/2), int64(half)*Size/2
			for round := range 5000 {
				mine[0], mine[1] = byte(round>>8), byte(round)|1
				if err := errors.Join(v.Write(ctx, mine, off), v.Read(ctx, got, off)); err != nil || !bytes.Equal(mine, got) {
					t.Errorf("half %d, round %d: %x was written, and %x is there: %v", half, round, mine[:2], got[:2], err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestAWriterOfAPartKeepsOthersAway: what is read of a page, to be written with the new part, must not change meanwhile.
func TestAWriterOfAPartKeepsOthersAway(t *testing.T) {
	store := storetest.New(256<<10, 200)
	h, err := far.NewHeap(store, far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	const far16 = 16 << 20 // so much is written that the first page is far
	v, err := New(h, "volume", far16+stripes*Size)
	if err != nil {
		t.Fatal(err)
	}
	ctx, page := t.Context(), bytes.Repeat([]byte{7}, Size)
	for off := int64(0); off < far16; off += Size {
		if err := v.Write(ctx, page, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Read(far.NoWait, page, 0); err != far.ErrWouldBlock {
		t.Fatalf("the test tests nothing: %v", err)
	}
	release := store.Hold()
	before := store.Reads.Load()
	done := make(chan error)
	go func() { done <- v.Write(ctx, []byte{8}, 0) }()
	for store.Reads.Load() == before {
		runtime.Gosched()
	}
	// Nothing is known of this page, which shares the lock of the first one: only that lock can be waited for.
	if err := v.Write(far.NoWait, page, far16); err != far.ErrWouldBlock {
		t.Errorf("while a page is being changed, another one with its lock is written: %v, want that it would have to wait", err)
	}
	release()
	if err := errors.Join(<-done, v.Write(far.NoWait, page, far16)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestZerosTakeNoMemory: what is zeros is not kept, and what becomes zeros gives its memory
// back, so that a volume of many times what the store has can be used.
func TestZerosTakeNoMemory(t *testing.T) {
	v, h := newVolume(t, 1<<40, 40) // 10 MiB
	ctx, data := t.Context(), bytes.Repeat([]byte{7}, 1<<20)
	for round := range int64(20) {
		off := round << 35
		for _, what := range [][]byte{data, make([]byte, len(data))} {
			if err := v.Write(ctx, what, off); err != nil {
				t.Fatal(err)
			}
		}
		if err := v.Write(ctx, data[:100], off+50); err != nil {
			t.Fatal(err)
		}
		if err := v.Discard(ctx, 0, v.Size()); err != nil {
			t.Fatal(err)
		}
	}
	if n := v.Stats().Pages; n != 0 {
		t.Errorf("%d pages take memory", n)
	}
	if n, memory := v.Extent(5, 1<<40); n != 1<<40-5 || memory {
		t.Errorf("there are %d bytes alike, in memory: %t", n, memory)
	}
	for _, m := range h.Stats().Maps {
		if m.Entries != 0 {
			t.Errorf("the map of pages has %d entries", m.Entries)
		}
	}
}

// TestAFullVolumeSaysSo: what there is no far memory for is refused, what was written before
// can be read, and discarding makes room.
func TestAFullVolumeSaysSo(t *testing.T) {
	v, _ := newVolume(t, 64<<20, 20) // 5 MiB
	ctx, page := t.Context(), bytes.Repeat([]byte{7}, Size)
	off := int64(0)
	var err error
	for ; err == nil; off += Size {
		page[0] = byte(off / Size)
		err = v.Write(ctx, page, off)
	}
	if !errors.Is(err, far.ErrFull) {
		t.Fatalf("writing more than there is room for: %v", err)
	}
	off -= Size
	for at := int64(0); at < off; at += Size {
		if err := v.Read(ctx, page, at); err != nil || page[0] != byte(at/Size) {
			t.Fatalf("the page at %d begins with %d: %v", at, page[0], err)
		}
	}
	if err := v.Discard(ctx, 0, off/2/Size*Size); err != nil {
		t.Fatal(err)
	}
	if err := v.Write(ctx, page, off); err != nil {
		t.Errorf("writing after half of it was discarded: %v", err)
	}
}

// TestPagesAreReplacedTogether: who writes to many pages that are far, or discards them, does not wait for what has to be known of each.
func TestPagesAreReplacedTogether(t *testing.T) {
	store := storetest.New(256<<10, 200)
	h, err := far.NewHeap(store, far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	v, err := New(h, "volume", 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	const n = 100
	b := bytes.Repeat([]byte{7}, n*Size)
	for off := int64(0); off+n*Size <= v.Size(); off += n * Size {
		if err := v.Write(t.Context(), b, off); err != nil {
			t.Fatal(err)
		}
	}
	for i, change := range []func(off int64) error{
		func(off int64) error { b[0]++; return v.Write(t.Context(), b, off) },
		func(off int64) error { return v.Discard(t.Context(), off, n*Size) },
	} {
		off := int64(i) * n * Size
		if err := v.Read(far.NoWait, b, off); err != far.ErrWouldBlock {
			t.Fatalf("the test tests nothing: %v", err)
		}
		before := store.Reads.Load()
		if err := change(off); err != nil {
			t.Fatal(err)
		}
		if got := store.Reads.Load() - before; got > n/4 {
			t.Errorf("%d reads of far memory to %s %d pages, want no more than %d", got, []string{"write", "discard"}[i], n, n/4)
		}
	}
}

func TestRangesBeyondTheEndAreRefused(t *testing.T) {
	v, h := newVolume(t, 2*Size, 20)
	ctx, b := t.Context(), make([]byte, Size)
	for _, off := range []int64{-1, Size + 1, 2*Size + 1, 1<<63 - 1} {
		if err := v.Read(ctx, b, off); !errors.Is(err, ErrRange) {
			t.Errorf("reading at %d: %v", off, err)
		}
		if err := v.Write(ctx, b, off); !errors.Is(err, ErrRange) {
			t.Errorf("writing at %d: %v", off, err)
		}
		if err := v.Discard(ctx, off, Size); !errors.Is(err, ErrRange) {
			t.Errorf("discarding at %d: %v", off, err)
		}
		if err := v.Prefetch(ctx, off, Size); !errors.Is(err, ErrRange) {
			t.Errorf("prefetching at %d: %v", off, err)
		}
	}
	for _, size := range []int64{-Size, 0, 1, Size + 1, MaxVolume + Size} {
		if _, err := New(h, "another", size); err == nil {
			t.Errorf("there is a volume of %d bytes", size)
		}
	}
}

// TestLocalPagesAreReadAtOnceAndWithoutGarbage: what is local is read with far.NoWait, and
// reads and writes of it allocate nothing.
func TestLocalPagesAreReadAtOnceAndWithoutGarbage(t *testing.T) {
	v, _ := newVolume(t, 1<<20, 20)
	ctx, b := t.Context(), bytes.Repeat([]byte{7}, 1<<20)
	if err := v.Write(ctx, b, 0); err != nil {
		t.Fatal(err)
	}
	if err := v.Read(far.NoWait, b, 0); err != nil {
		t.Errorf("reading what was just written: %v", err)
	}
	if n := testing.AllocsPerRun(100, func() {
		_ = v.Read(ctx, b[:Size], 8*Size)
		_ = v.Write(ctx, b[:4*Size], 8*Size)
		_ = v.Write(ctx, b[:10], 8*Size)
	}); n >= 1 && !invariants.Enabled { // with the race detector pools forget
		t.Errorf("a read of a page and two writes allocate %v times", n)
	}
	big, _ := newVolume(t, 32<<20, 200)
	for off := int64(0); off < 32<<20; off += 1 << 20 {
		if err := big.Write(ctx, b, off); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int64{Size, 1 << 20} {
		if err := big.Read(far.NoWait, b[:n], 0); err != far.ErrWouldBlock {
			t.Errorf("reading %d bytes that are far without waiting: %v", n, err)
		}
	}
	if err := big.Prefetch(ctx, 0, Size); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); big.Read(far.NoWait, b[:Size], 0) != nil; {
		if err := big.Prefetch(ctx, 0, Size); err != nil || time.Now().After(end) {
			t.Fatalf("a page that was prefetched is not local: %v", err)
		}
	}
}

// TestAllOfAVolumeCanBeUsed, if an eighth more is lent: so say docs/how-to/swap.md and docs/how-to/block.md.
func TestAllOfAVolumeCanBeUsed(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	v, _ := newVolume(t, size, (size+size/8)/(256<<10))
	r := rand.New(rand.NewPCG(1, 2))
	page := make([]byte, Size)
	write := func(i int) {
		t.Helper()
		for k := 0; k < Size; k += 8 {
			binary.NativeEndian.PutUint64(page[k:], r.Uint64())
		}
		if err := v.Write(t.Context(), page, int64(i)*Size); err != nil {
			t.Fatal(err)
		}
	}
	for i := range size / Size {
		write(i)
	}
	for range size / Size {
		write(r.IntN(size / Size))
	}
}
