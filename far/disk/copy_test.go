package disk

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

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

func openCopies(t *testing.T) *Copies {
	t.Helper()
	c, err := OpenCopies(Config{Dir: t.TempDir(), SegmentSize: store.MinSegmentSize})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// giveUp begins a write of p to seg, and gives it up. The write does not reach the disk before goOn is called. The
// test runs in a bubble of synctest, where it can wait until nothing else is under way.
func giveUp(t *testing.T, c *Copies, seg store.Segment, p string) (goOn func()) {
	t.Helper()
	all, none := c.bufs, make(chan []byte)
	ctx, cancel := context.WithCancel(t.Context())
	c.bufs = none
	f := seg.(store.Starter).Start(ctx, []byte(p), 0, func() {})
	synctest.Wait() // it waits for a buffer
	c.bufs = all
	cancel()
	if err := f.End(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("a write that was given up: %v", err)
	}
	return func() { none <- <-all }
}

func checkBytes(t *testing.T, c *Copies, seg store.Segment, want string) {
	t.Helper()
	ops := []store.ReadOp{{Seg: seg, Buf: make([]byte, len(want))}}
	if c.Read(t.Context(), ops); ops[0].Err != nil || string(ops[0].Buf) != want {
		t.Errorf("%s has %q, %v, want %q", seg.Name(), ops[0].Buf, ops[0].Err, want)
	}
}

// TestAWriteThatWasGivenUpIsNotTheLast of several: a write that was begun later takes effect later, too.
func TestAWriteThatWasGivenUpIsNotTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCopies(t)
		defer closeStore(t, c.Store)
		seg := alloc(t, c)
		goOn := giveUp(t, c, seg, "first")
		second := seg.(store.Starter).Start(t.Context(), []byte("later"), 0, func() {})
		synctest.Wait()
		if second.Landed() {
			t.Error("a write has ended, and one that was begun before it has not")
		}
		goOn()
		if err := second.End(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		checkBytes(t, c, seg, "later")
	})
}

// TestASlotIsLentAgainWhenItsWritesHaveEnded, and not when the segment is given back: whoever gives it back does not
// wait for a write that was given up.
func TestASlotIsLentAgainWhenItsWritesHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCopies(t)
		defer closeStore(t, c.Store)
		seg := alloc(t, c)
		goOn := giveUp(t, c, seg, "stale")
		if err := seg.Free(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if lent, _ := c.Stats(); lent != store.MinSegmentSize {
			t.Errorf("%d bytes are lent, want those that are still being written to, %d", lent, store.MinSegmentSize)
		}
		next := alloc(t, c)
		if err := next.Write(t.Context(), []byte("fresh"), 0); err != nil {
			t.Fatal(err)
		}
		goOn()
		synctest.Wait()
		checkBytes(t, c, next, "fresh")
		if lent, _ := c.Stats(); lent != store.MinSegmentSize {
			t.Errorf("%d bytes are lent when the write has ended, want only the next segment, %d", lent, store.MinSegmentSize)
		}
		if again := alloc(t, c); again.Name() != seg.Name() {
			t.Errorf("%s is lent next, want what was given back, %s", again.Name(), seg.Name())
		}
		if err := seg.Write(t.Context(), []byte("after"), 0); err == nil {
			t.Error("a segment that was given back was written to")
		}
		if err := seg.Free(t.Context()); err == nil {
			t.Error("a segment was given back twice")
		}
	})
}

// TestCloseWaitsForWhatWasGivenUp: writes, and the giving back of their segments.
func TestCloseWaitsForWhatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCopies(t)
		seg := alloc(t, c)
		goOn := giveUp(t, c, seg, "stale")
		if err := seg.Free(t.Context()); err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("the store was closed during a write: %v", err)
			return
		default:
		}
		goOn()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if lent, _ := c.Stats(); lent != 0 {
			t.Errorf("%d bytes are lent, want none", lent)
		}
	})
}

// TestCloseTellsOfASegmentThatCouldNotBeGivenBack when its writes had ended, and nobody waited for it any more.
func TestCloseTellsOfASegmentThatCouldNotBeGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCopies(t)
		seg := alloc(t, c)
		goOn := giveUp(t, c, seg, "stale")
		for range 2 {
			if err := seg.Free(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		goOn()
		if err, want := c.Close(), seg.Name()+" of "+c.cfg.Dir+" was given back"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}
