package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"polder/far/store"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(lineVariable); dir != "" { // see TestObjectsOutliveAKilledProcess
		l, err := openLine(dir)
		if err == nil {
			err = l.extend()
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func alloc(t *testing.T, s interface {
	Alloc(context.Context) (store.Segment, error)
}) store.Segment {
	t.Helper()
	seg, err := s.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return seg
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Many goroutines append stretches of any length, side by side and not always in order, as a heap does, and read
// them back, one by one and many at once.
func TestWhatIsWrittenIsRead(t *testing.T) {
	for _, dir := range []string{t.TempDir(), shm(t)} {
		s := open(t, Config{Dir: dir, SegmentSize: 256 << 10, Fresh: true})
		t.Logf("%s: O_DIRECT %v", dir, s.Direct())
		var wg sync.WaitGroup
		for id := range 4 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(id), 1))
				seg := alloc(t, s)
				defer func() {
					if err := seg.Free(t.Context()); err != nil {
						t.Error(err)
					}
				}()
				want := make([]byte, s.SegmentSize())
				for i := range want {
					want[i] = byte(r.Uint32())
				}
				var cuts []int
				for off := 0; off < len(want); off += 16 * (1 + r.IntN(3000)) {
					cuts = append(cuts, off)
				}
				cuts = append(cuts, len(want))
				var writes sync.WaitGroup
				for i := range cuts[1:] {
					writes.Go(func() {
						if err := seg.Write(t.Context(), want[cuts[i]:cuts[i+1]], cuts[i]); err != nil {
							t.Error(err)
						}
					})
				}
				writes.Wait()
				for range 30 {
					ops := make([]store.ReadOp, 1+r.IntN(20))
					for i := range ops {
						off := r.IntN(len(want))
						ops[i] = store.ReadOp{Seg: seg, Off: off, Buf: make([]byte, r.IntN(min(1+len(want)-off, 1<<(4+r.IntN(15)))))}
					}
					s.Read(t.Context(), ops)
					for _, op := range ops {
						if op.Err != nil || !bytes.Equal(op.Buf, want[op.Off:][:len(op.Buf)]) {
							t.Fatalf("%d bytes at %d: %v, or others than were written", len(op.Buf), op.Off, op.Err)
						}
					}
				}
			})
		}
		wg.Wait()
		if lent, _ := s.Stats(); lent != 0 {
			t.Errorf("%d bytes are lent, want none", lent)
		}
		closeStore(t, s)
		if _, err := os.Stat(filepath.Join(dir, "data")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the data of a store that keeps nothing: %v, want none", err)
		}
	}
}

// TestWhoWritesOnNeedNotRead: what a write leaves of its last block is known to the next one, and behind what was ever written there is nothing.
// What an earlier process has written is read.
func TestWhoWritesOnNeedNotRead(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir, SegmentSize: 128 << 10})
	seg, other := alloc(t, s), alloc(t, s)
	var want []byte
	write := func(n int) {
		t.Helper()
		p := bytes.Repeat([]byte{byte(len(want)/7 + 1)}, n)
		if err := seg.Write(t.Context(), p, len(want)); err != nil {
			t.Fatal(err)
		}
		want = append(want, p...)
	}
	same := func() {
		t.Helper()
		got := make([]byte, len(want))
		ops := []store.ReadOp{{Seg: seg, Buf: got}}
		if s.Read(t.Context(), ops); ops[0].Err != nil || !bytes.Equal(got, want) {
			t.Fatalf("of %d bytes others are read than were written (%v)", len(want), ops[0].Err)
		}
	}
	data, err := os.OpenFile(filepath.Join(dir, "data"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	for i, n := range []int{100, 200, 5000, 1, 3000, 4096, 9000, 60} {
		write(n)
		end := len(want) / block * block
		if _, err := data.WriteAt(bytes.Repeat([]byte{0xee}, 2*block), seg.(*segment).base()+int64(end)); err != nil { // who reads it, sees it
			t.Fatal(err)
		}
		if err := other.Write(t.Context(), want[:1], i); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	same()
	if err := s.SetRoot(t.Context(), []byte("root")); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	s = open(t, Config{Dir: dir})
	if seg, err = s.Reopen(t.Context(), seg.Name()); err != nil {
		t.Fatal(err)
	}
	write(10)
	write(10)
	same()
	closeStore(t, s)
}

// shm is a directory in memory, where there is no O_DIRECT on older kernels.
func shm(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "polder")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestAFullDiskIsAFullStore(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir(), Size: 3 * DefaultSegment, Fresh: true})
	defer closeStore(t, s)
	var segs []store.Segment
	for range 3 {
		segs = append(segs, alloc(t, s))
	}
	if _, err := s.Alloc(t.Context()); !errors.Is(err, store.ErrStoreFull) {
		t.Errorf("a fourth segment of three: %v", err)
	}
	if err := segs[1].Free(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := segs[1].Free(t.Context()); err == nil {
		t.Error("a segment was given back twice")
	}
	alloc(t, s)
}

// The file system has no room: here a tmpfs that is smaller than what may be used of it.
func TestADiskWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Fatalf("cannot mount a small file system: %v (the tests need root)", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	s := open(t, Config{Dir: dir, Fresh: true})
	defer closeStore(t, s)
	n := 0
	var err error
	var last store.Segment
	for ; n < 10; n++ {
		var seg store.Segment
		if seg, err = s.Alloc(t.Context()); err != nil {
			break
		}
		last = seg
	}
	if !errors.Is(err, store.ErrStoreFull) || n == 0 {
		t.Fatalf("after %d segments: %v, want that the store is full", n, err)
	}
	if err := last.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
	alloc(t, s)
}

func TestADirectoryHasOneUser(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v, want %v", err, ErrInUse)
	}
	closeStore(t, s)
	closeStore(t, open(t, Config{Dir: dir}))
}

// TestClosingTwiceIsOnce, for a store that keeps nothing as well.
func TestClosingTwiceIsOnce(t *testing.T) {
	for _, cfg := range []Config{{Sync: true}, {Fresh: true}} {
		cfg.Dir = t.TempDir()
		s := open(t, cfg)
		closeStore(t, s)
		closeStore(t, s)
	}
}

// What was kept is there again, under its name, and what was not reopened is given back.
func TestSegmentsAreReopened(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir, SegmentSize: 256 << 10})
	a, b := alloc(t, s), alloc(t, s)
	for _, seg := range []store.Segment{a, b} {
		if err := seg.Write(t.Context(), []byte(seg.Name()), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetRoot(t.Context(), []byte("root")); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)

	if _, err := Open(Config{Dir: dir, Fresh: true}); err == nil {
		t.Error("what is kept was opened as if it was not")
	}
	s = open(t, Config{Dir: dir, SegmentSize: 1 << 20, Size: 512 << 10})
	if got, err := s.Root(t.Context()); string(got) != "root" || err != nil || s.SegmentSize() != 256<<10 {
		t.Errorf("the root is %q, %v, segments of %d bytes", got, err, s.SegmentSize())
	}
	seg, err := s.Reopen(t.Context(), b.Name())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reopen(t.Context(), b.Name()); err == nil {
		t.Error("reopened twice")
	}
	var lost *store.LostError
	if _, err := s.Reopen(t.Context(), "segment 9"); !errors.As(err, &lost) {
		t.Errorf("a segment that is not there: %v", err)
	}
	if _, err := s.Reopen(t.Context(), "../segment 1"); err == nil || errors.As(err, &lost) {
		t.Errorf("a name that is none: %v", err)
	}
	if err := s.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(b.Name()))
	ops := []store.ReadOp{{Seg: seg, Buf: got}}
	s.Read(t.Context(), ops)
	if ops[0].Err != nil || string(got) != b.Name() {
		t.Errorf("read %q, %v, want %q", got, ops[0].Err, b.Name())
	}
	if again := alloc(t, s); again.Name() != a.Name() {
		t.Errorf("borrowed %s, want %s, which was given back", again.Name(), a.Name())
	}
	if _, err := s.Alloc(t.Context()); !errors.Is(err, store.ErrStoreFull) {
		t.Errorf("beyond the size: %v", err)
	}
	closeStore(t, s)
}

// What the disk refuses is an error of the operation.
func TestErrorsOfTheDisk(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir()})
	seg := alloc(t, s)
	s.data.Close()
	ops := []store.ReadOp{{Seg: seg, Buf: make([]byte, 10)}, {Seg: seg, Off: 100 << 10, Buf: make([]byte, 10)}}
	s.Read(t.Context(), ops)
	_, allocErr := s.Alloc(t.Context())
	for i, err := range []error{ops[0].Err, ops[1].Err, seg.Write(t.Context(), make([]byte, 10), 0), seg.Free(t.Context()), s.SetRoot(t.Context(), nil), allocErr} {
		if err == nil || errors.Is(err, store.ErrStoreFull) {
			t.Errorf("operation %d: %v", i, err)
		}
	}
	s.data = nil
	closeStore(t, s)
	for _, op := range []struct{ off, n int }{{-1, 1}, {DefaultSegment, 1}, {DefaultSegment - 1, 2}} {
		if err := seg.Write(context.Background(), make([]byte, op.n), op.off); err == nil {
			t.Errorf("%d bytes were written at %d", op.n, op.off)
		}
	}
}

func FuzzRoot(f *testing.F) {
	f.Add(encodeRoot(1<<20, []byte("root")))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		size, root, err := decodeRoot(b)
		if err == nil && !bytes.Equal(encodeRoot(size, root), b) {
			t.Fatalf("%q is %d, %q", b, size, root)
		}
	})
}
