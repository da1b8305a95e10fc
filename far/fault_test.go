package far

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/index"
	"polder/internal/buddy"
)

var errInjected = errors.New("injected")

// faultStore is a MemStore whose memory can be made to fail in every way that
// borrowed memory does.
type faultStore struct {
	*heap.MemStore

	full      atomic.Bool
	failAlloc atomic.Bool
	failRead  atomic.Bool
	failWrite atomic.Bool
	failFree  atomic.Bool
	flaky     atomic.Int64 // of 1000 operations, fail so many

	flakyWrites atomic.Int64 // of 1000 writes, fail so many, after twice their time

	corrupt atomic.Int64 // of 1000 reads, damage so many
	delay   atomic.Int64 // ns that every read and write takes
	reads   atomic.Int64
	ops     atomic.Int64

	mu   sync.Mutex
	gate chan struct{} // if not nil, reads wait until it is closed
	segs map[*faultSegment]bool
}

func newFaultStore(size, segments int) *faultStore {
	return &faultStore{MemStore: heap.NewMemStore(size, segments), segs: map[*faultSegment]bool{}}
}

func chance(perMille *atomic.Int64) bool {
	n := perMille.Load()
	return n > 0 && rand.Int64N(1000) < n
}

func (s *faultStore) Alloc(ctx context.Context) (heap.Segment, error) {
	switch {
	case s.full.Load():
		return nil, fmt.Errorf("%w: told so", heap.ErrStoreFull)
	case s.failAlloc.Load() || chance(&s.flaky):
		return nil, errInjected
	}
	seg, err := s.MemStore.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	f := &faultSegment{Segment: seg, store: s, lost: make(chan struct{})}
	s.mu.Lock()
	s.segs[f] = true
	s.mu.Unlock()
	return f, nil
}

// loseThat loses the segments that hold the far copies of the entries in m that
// want asks for.
func (s *faultStore) loseThat(m *ByteMap, want func(w index.Word) bool) int {
	gone := map[heap.Segment]bool{}
	for i := range m.shards() {
		sh := m.at(i)
		sh.mu.Lock()
		for p := range index.Place(len(sh.t.Buckets) * index.BucketEntries) {
			if w := *sh.t.Word(p); w.Far() && want(w) {
				gone[m.h.core.Far.Seg(w.Addr()).Seg] = true
			}
		}
		sh.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.segs {
		if gone[f] {
			close(f.lost)
			delete(s.segs, f)
		}
	}
	return len(gone)
}

// hold makes reads wait until the function that it returns is called.
func (s *faultStore) hold() (release func()) {
	gate := make(chan struct{})
	s.mu.Lock()
	s.gate = gate
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.gate = nil
		s.mu.Unlock()
		close(gate)
	}
}

// wait takes the time that an operation takes.
func (s *faultStore) wait(ctx context.Context) error {
	d := time.Duration(s.delay.Load())
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *faultStore) Read(ctx context.Context, ops []heap.ReadOp) {
	s.reads.Add(1)
	s.ops.Add(int64(len(ops)))
	if err := s.wait(ctx); err != nil {
		for i := range ops {
			ops[i].Err = err
		}
		return
	}
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			for i := range ops {
				ops[i].Err = ctx.Err()
			}
			return
		}
	}
	for i := range ops {
		op := &ops[i]
		f := op.Seg.(*faultSegment)
		if f.isLost() || s.failRead.Load() || chance(&s.flaky) {
			op.Err = errInjected
			continue
		}
		inner := []heap.ReadOp{{Seg: f.Segment, Off: op.Off, Buf: op.Buf}}
		s.MemStore.Read(ctx, inner)
		op.Err = inner[0].Err
		if chance(&s.corrupt) {
			op.Buf[rand.IntN(min(len(op.Buf), 40))] ^= 1 << rand.IntN(8)
		}
	}
}

// lose takes away every segment that is lent and that pick wants, and returns
// how many that were.
func (s *faultStore) lose(pick func(i int) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, n := 0, 0
	for f := range s.segs {
		if pick(i) {
			close(f.lost)
			delete(s.segs, f)
			n++
		}
		i++
	}
	return n
}

type faultSegment struct {
	heap.Segment
	store *faultStore
	lost  chan struct{}
}

func (f *faultSegment) isLost() bool {
	select {
	case <-f.lost:
		return true
	default:
		return false
	}
}

func (f *faultSegment) Write(ctx context.Context, p []byte, off int) error {
	if f.isLost() || f.store.failWrite.Load() || chance(&f.store.flaky) {
		return errInjected
	}
	if err := f.store.wait(ctx); err != nil {
		return err
	}
	if chance(&f.store.flakyWrites) {
		_ = f.store.wait(ctx) // those behind it come first
		return errInjected
	}
	return f.Segment.Write(ctx, p, off)
}

func (f *faultSegment) Free(ctx context.Context) error {
	if f.store.failFree.Load() {
		return errInjected
	}
	f.store.mu.Lock()
	delete(f.store.segs, f)
	f.store.mu.Unlock()
	return f.Segment.Free(ctx)
}

func (f *faultSegment) Lost() <-chan struct{} { return f.lost }

// tiny is a layout so small that a few hundred kilobytes of entries go through
// everything that a heap does. Keys must not be longer than a kilobyte.
var tiny = layout{
	Sizes: heap.Sizes{
		SegSize: 16 << 10,
		Staging: 16 << 10,
		Fetch:   2 * buddy.MaxBuf,
		Logs:    (12*16 + 8*4) << 10,
		Open:    1,
	},
	shards: 8,
}

const tinySegment = 32 << 10 // of its store

// newTinyHeap makes a heap whose logs hold local bytes.
func newTinyHeap(t testing.TB, store heap.Store, local int64) (*Heap, *ByteMap) {
	t.Helper()
	h, m := openTiny(t, store, local)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, m
}
