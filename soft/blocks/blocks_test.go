package blocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"

	"polder/soft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open makes a heap of n segments.
func open(t *testing.T, segments int) *soft.Heap {
	t.Helper()
	h, err := soft.Open(soft.Config{Budget: int64(segments) * soft.SegmentSize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func newCache(t *testing.T, h *soft.Heap, cfg Config) *Cache {
	t.Helper()
	b, err := New(h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// countingReader counts how often, and how much, its source is read.
type countingReader struct {
	io.ReaderAt
	calls, bytes atomic.Int64
}

func (c *countingReader) ReadAt(p []byte, off int64) (int, error) {
	c.calls.Add(1)
	c.bytes.Add(int64(len(p)))
	return c.ReaderAt.ReadAt(p, off)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func TestReaderAtReadsWhatItsSourceHoldsOnce(t *testing.T) {
	h := open(t, 16)
	b := newCache(t, h, Config{BlockSize: 4096})
	data := randomBytes(1<<20 + 777)
	src := &countingReader{ReaderAt: bytes.NewReader(data)}
	r := b.ReaderAt(src, "a", 1, int64(len(data)))
	if err := iotest.TestReader(io.NewSectionReader(r, 0, r.size), data); err != nil {
		t.Fatal(err)
	}
	if n := src.bytes.Load(); n != int64(len(data)) {
		t.Errorf("%d bytes were read of %d", n, len(data))
	}
	before := src.calls.Load()
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		off, n := rnd.IntN(len(data)+100), rnd.IntN(40000)
		p, q := make([]byte, n), make([]byte, n)
		gotN, gotErr := r.ReadAt(p, int64(off))
		wantN, wantErr := bytes.NewReader(data).ReadAt(q, int64(off))
		if gotN != wantN || n > 0 && gotErr != wantErr || !bytes.Equal(p, q) {
			t.Fatalf("%d bytes at %d: got %d, %v, want %d, %v", n, off, gotN, gotErr, wantN, wantErr)
		}
	}
	if n := src.calls.Load(); n != before {
		t.Errorf("the source was read %d times more", n-before)
	}
	if _, err := r.ReadAt(make([]byte, 1), -1); !errors.Is(err, errNegative) {
		t.Errorf("at a negative offset: got %v", err)
	}
}

func TestReaderAtPassesErrorsOnAndDoesNotKeepThem(t *testing.T) {
	h := open(t, 8)
	b := newCache(t, h, Config{})
	boom := errors.New("boom")
	var broken atomic.Bool
	broken.Store(true)
	src := readerAtFunc(func(p []byte, off int64) (int, error) {
		if broken.Load() {
			return 0, boom
		}
		return len(p), nil
	})
	r := b.ReaderAt(src, "a", 1, 100000)
	if _, err := r.ReadAt(make([]byte, 10), 5); !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
	broken.Store(false)
	if n, err := r.ReadAt(make([]byte, 10), 5); n != 10 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	short := b.ReaderAt(bytes.NewReader(make([]byte, 10)), "short", 1, 100)
	if _, err := short.ReadAt(make([]byte, 50), 0); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a source that has become shorter: got %v", err)
	}
}

type readerAtFunc func(p []byte, off int64) (int, error)

func (f readerAtFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

func TestManyReadersOfOneBlockReadTheSourceOnce(t *testing.T) {
	h := open(t, 8)
	b := newCache(t, h, Config{})
	data := randomBytes(16 << 10)
	started, release := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	r := b.ReaderAt(readerAtFunc(func(p []byte, off int64) (int, error) {
		if calls.Add(1) == 1 {
			close(started)
		}
		<-release
		return copy(p, data[off:]), nil
	}), "a", 1, int64(len(data)))
	var wg sync.WaitGroup
	read := func() {
		p := make([]byte, 100)
		if _, err := r.ReadAt(p, 300); err != nil || !bytes.Equal(p, data[300:400]) {
			t.Errorf("wrong bytes: %v", err)
		}
	}
	wg.Go(read)
	<-started
	for range 10 {
		wg.Go(read)
	}
	close(release)
	wg.Wait()
	if n := calls.Load(); n != 1 {
		t.Errorf("the source was read %d times", n)
	}
}

func TestFSIsAnFS(t *testing.T) {
	t.Parallel()
	h := open(t, 16)
	dir := t.TempDir()
	files := map[string][]byte{"empty": nil, "small": []byte("hello"), "sub/large": randomBytes(9001)}
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, cfg := range map[string]Config{"direct": {BlockSize: 4096}, "buffered": {BlockSize: 4096, Buffered: true}} {
		fsys := newCache(t, h, cfg).FS(os.DirFS(dir))
		for i := range 3 { // while they have just been made; from the disk; from memory
			if i == 1 {
				settle(t, filepath.Join(dir, "small"))
			}
			if err := fstest.TestFS(fsys, "empty", "small", "sub/large"); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for name, want := range files {
				if got, err := fs.ReadFile(fsys, name); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s: got %d bytes, %v, want %d", name, len(got), err, len(want))
				}
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "small"), []byte("goodbye"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := fs.ReadFile(fsys, "small"); err != nil || string(got) != "goodbye" {
			t.Errorf("%s: after a change: got %q, %v", name, got, err)
		}
		files["small"] = []byte("goodbye")
	}
}

// settle waits until a file has not changed for so long that its times tell of a change.
func settle(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, settled := Version(st); settled {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has changed a minute ago and does not count as settled", path)
		}
	}
}

// TestAFileThatChangesIsNeverMixed: one that is overwritten, or replaced, by something of
// the same size and with the same time of modification. What was opened before is read as it
// was then, or not at all; what is opened afterwards is the new one.
func TestAFileThatChangesIsNeverMixed(t *testing.T) {
	t.Parallel()
	const size = 10 * 4096
	write := func(t *testing.T, path string, fill byte) {
		t.Helper()
		if err := os.WriteFile(path, bytes.Repeat([]byte{fill}, size), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		how string
		cfg Config
		// rest is what reading the rest of what was opened before fails with.
		rest error
	}{
		{"overwritten", Config{BlockSize: 4096}, ErrChanged},
		{"overwritten", Config{BlockSize: 4096, Buffered: true}, ErrChanged},
		{"replaced", Config{BlockSize: 4096}, nil},
	} {
		t.Run(fmt.Sprintf("%s, buffered %v", tt.how, tt.cfg.Buffered), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "file")
			fsys := newCache(t, open(t, 16), tt.cfg).FS(os.DirFS(filepath.Dir(path)))
			write(t, path, 'a')
			settle(t, path)
			f, err := fsys.Open("file")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			old := f.(io.ReaderAt)
			half := make([]byte, size/2)
			if _, err := old.ReadAt(half, 0); err != nil || half[0] != 'a' {
				t.Fatalf("before: got %q, %v", half[:1], err)
			}
			if tt.how == "overwritten" {
				write(t, path, 'b')
			} else {
				write(t, path+".new", 'b')
				if err := os.Rename(path+".new", path); err != nil {
					t.Fatal(err)
				}
			}
			if n, err := old.ReadAt(half, size/2); !errors.Is(err, tt.rest) || half[0] != 'a' {
				t.Errorf("the rest of what was opened before: got %d bytes of %q, %v, want %v", n, half[:1], err, tt.rest)
			}
			if _, err := old.ReadAt(half, 0); err != nil || half[0] != 'a' {
				t.Errorf("what was read before: got %q, %v", half[:1], err)
			}
			for _, when := range []string{"at once", "settled", "cached"} {
				if when == "settled" {
					settle(t, path)
				}
				if got, err := fs.ReadFile(fsys, "file"); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{'b'}, size)) {
					t.Errorf("opened afterwards, %s: got %d bytes of %q, %v", when, len(got), got[:1], err)
				}
			}
		})
	}
}

// A source that panics, which the program recovers, is read again by the next who asks:
// nobody waits for the read that was given up.
func TestReaderAtSurvivesASourceThatPanics(t *testing.T) {
	h := open(t, 8)
	b := newCache(t, h, Config{})
	bad := true
	r := b.ReaderAt(readerAtFunc(func(p []byte, off int64) (int, error) {
		if bad {
			panic("a bug of the source's")
		}
		return len(p), nil
	}), "a", 1, 100000)
	buf := make([]byte, 50000)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the source's panic has gone")
			}
		}()
		_, _ = r.ReadAt(buf, 0)
	}()
	bad = false
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if n, err := r.ReadAtContext(ctx, buf, 0); n != len(buf) || err != nil {
		t.Errorf("after a panic: got %d bytes, %v", n, err)
	}
}

// TestAMissIsCountedOnce, though the block is looked for again when nobody else can be reading it.
func TestAMissIsCountedOnce(t *testing.T) {
	h := open(t, 8)
	b := newCache(t, h, Config{BlockSize: 4096})
	r := b.ReaderAt(bytes.NewReader(make([]byte, 4096)), "a", 1, 4096)
	for range 2 {
		if _, err := r.ReadAt(make([]byte, 4096), 0); err != nil {
			t.Fatal(err)
		}
	}
	if s := h.Stats(); s.Misses != 1 || s.Hits != 1 || s.Rebuilds != 1 {
		t.Errorf("got %d misses, %d hits and %d rebuilds, want one of each", s.Misses, s.Hits, s.Rebuilds)
	}
	if p := h.Profiles(); len(p) != 1 || p[0].Name != "blocks" || p[0].Hits != 1 || p[0].Rebuilds != 1 {
		t.Errorf("the cache's account says %+v, want a hit and a rebuild", p)
	}
	b.Close()
	if p := h.Profiles(); len(p) != 0 {
		t.Errorf("a closed cache still has an account: %+v", p)
	}
}
