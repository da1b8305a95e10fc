package disk

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"polder/far/store"
)

// TestCopiesAreReopenedByName, and their directory is neither taken for that of a heap, nor for another one, nor used with segments of another size.
func TestCopiesAreReopenedByName(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Dir: dir, SegmentSize: 256 << 10}
	c, err := OpenCopies(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(c.Name(), store.DiskName) {
		t.Errorf("it is called %q", c.Name())
	}
	if _, err := OpenCopies(cfg); !errors.Is(err, ErrInUse) {
		t.Errorf("it was opened twice: %v", err)
	}
	seg, err := c.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("what nodes have "), 1000)
	if err := seg.Write(t.Context(), want, 777); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := seg.Write(ended, want, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a write that nobody waits for: %v", err)
	}
	name, called := seg.Name(), c.Name()
	closeStore(t, c.Store)

	if c, err = OpenCopies(cfg); err != nil {
		t.Fatal(err)
	}
	if c.Name() != called {
		t.Errorf("it is called %q now, and was %q", c.Name(), called)
	}
	if seg, err = c.Reopen(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	ops := []store.ReadOp{{Seg: seg, Off: 777, Buf: got}}
	if c.Read(t.Context(), ops); ops[0].Err != nil || !bytes.Equal(got, want) {
		t.Errorf("what was written is not there: %v", ops[0].Err)
	}
	closeStore(t, c.Store)

	if _, err := OpenCopies(Config{Dir: dir, SegmentSize: 512 << 10}); err == nil || !strings.Contains(err.Error(), "--chunk") {
		t.Errorf("segments of another size: %v", err)
	}
	if _, err := Inspect(dir); err == nil {
		t.Error("it is taken for a heap")
	}
	other, err := OpenCopies(Config{Dir: t.TempDir(), SegmentSize: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if other.Name() == called {
		t.Errorf("two directories are called %q", called)
	}
	closeStore(t, other.Store)

	heap := t.TempDir()
	s := open(t, Config{Dir: heap})
	if err := s.SetRoot(t.Context(), []byte("of a heap")); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	if _, err := OpenCopies(Config{Dir: heap, SegmentSize: 1 << 20}); err == nil || !strings.Contains(err.Error(), "lies nowhere else") {
		t.Errorf("the directory of a heap was opened for copies: %v", err)
	}
}
