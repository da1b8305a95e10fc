package keyspace

import (
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/far"
	"polder/far/disk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = time.Minute

// newSpace makes a space of a heap over plenty of memory, which ends with the test.
func newSpace(t testing.TB) *Space {
	t.Helper()
	heap, err := far.NewHeap(far.NewMemStore(1<<20, 1<<10), far.Config{Local: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return open(t, heap, Journal{})
}

// newKept makes a space of a heap that is kept, with a journal.
func newKept(t testing.TB, j Journal) *Space {
	t.Helper()
	j.Dir = t.TempDir()
	store, err := disk.Open(disk.Config{Dir: t.TempDir(), SegmentSize: 128 << 10, Size: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	heap, err := far.Open(t.Context(), store, far.Config{Local: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return open(t, heap, j)
}

func open(t testing.TB, heap *far.Heap, j Journal) *Space {
	t.Helper()
	sp := New(Config{OpTimeout: testTimeout, Journal: j, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		sp.Close()
		if err := heap.Close(); err != nil {
			t.Errorf("closing the heap: %v", err)
		}
	})
	if err := sp.Open(t.Context(), heap); err != nil {
		t.Fatal(err)
	}
	return sp
}

// access makes an access that may wait.
func access(sp *Space) *Access {
	a := new(Access)
	a.Use(sp)
	a.Wait()
	return a
}
