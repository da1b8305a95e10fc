package far

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/heap"
	"polder/far/objects"
	"polder/internal/failpoint"
)

// An error that something is full says what: far memory, or what the local budget has
// to hold of everything that is far.
func TestErrorsSayWhatIsFull(t *testing.T) {
	cases := []struct {
		name     string
		segments int
		fill     func(h *Heap, m *ByteMap, i int) error
		want     error
	}{
		{"entries in a small store", 8, func(h *Heap, m *ByteMap, i int) error {
			return m.Set(within(t, 30*time.Second), key(i), Entry{Value: value(uint64(i), 1000)})
		}, heap.ErrStoreFull},
		{"objects in a small store", 8, func(h *Heap, m *ByteMap, i int) error {
			_, err := New(within(t, 30*time.Second), h, [1000]byte{byte(i)})
			return err
		}, heap.ErrStoreFull},
		{"entries whose index outgrows the budget", 1 << 16, func(h *Heap, m *ByteMap, i int) error {
			return m.Set(within(t, 30*time.Second), key(i), Entry{})
		}, heap.ErrMetadataFull},
		{"pointers that outgrow the budget", 1 << 16, func(h *Heap, m *ByteMap, i int) error {
			_, err := New(within(t, 30*time.Second), h, point{})
			return err
		}, heap.ErrMetadataFull},
		{"rows of pointers that outgrow the budget", 1 << 16, func(h *Heap, m *ByteMap, i int) error {
			_, err := NewArray[[64]byte](within(t, 30*time.Second), h, 4000, StructureConfig{Group: 1})
			return err
		}, heap.ErrMetadataFull},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := openObjects(t, heap.NewMemStore(tinySegment, c.segments), 16)
			m := h.NewByteMap("test")
			var err error
			for i := 0; err == nil && i < 1<<20; i++ {
				err = c.fill(h, m, i)
			}
			if !errors.Is(err, heap.ErrFull) {
				t.Fatalf("got %v, want one that Is ErrFull", err)
			}
			for _, e := range []error{heap.ErrStoreFull, heap.ErrMetadataFull, heap.ErrLocalFull} {
				if errors.Is(err, e) != (e == c.want) {
					t.Errorf("got %v; Is(%v) is %v", err, e, errors.Is(err, e))
				}
			}
			if said := strings.Contains(err.Error(), "far memory is full"); said != (c.want == heap.ErrStoreFull) {
				t.Errorf("got %v, which is not what is full", err)
			}
		})
	}
}

// Where the store has room and nothing local can make way, it is local memory that
// is full.
func TestLocalMemoryCanBeFullByItself(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	l := &h.core.Logs
	for ok := true; ok; {
		_, ok = l.Take(heap.ForMutator, heap.Locked, -1) // in use by somebody
	}
	err := h.core.WaitRoom(t.Context())
	if !errors.Is(err, heap.ErrLocalFull) || !errors.Is(err, heap.ErrFull) || errors.Is(err, heap.ErrStoreFull) {
		t.Errorf("got %v, want %v", err, heap.ErrLocalFull)
	}
}

// The evacuator finds nothing that may go, and before it can say so, others fill all the room
// that there was: with what may go.
func TestWhatWasFilledMeanwhileMayGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reached, goOn := make(chan struct{}), make(chan struct{})
		var once sync.Once
		failpoint.Set(func(name string) {
			if name == "far.stuck" {
				once.Do(func() {
					close(reached)
					<-goOn
				})
			}
		})
		t.Cleanup(func() { failpoint.Set(nil) }) // when the heap has been closed
		h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
		h.core.Forced.Store(true)
		h.core.Logs.Wake()
		<-reached
		ended := make(chan error, 1)
		go func() {
			var err error
			for i := 0; i < 10000 && err == nil; i++ { // more than the budget holds
				_, err = New(t.Context(), h, point{X: int64(i)})
			}
			ended <- err
		}()
		synctest.Wait() // until it waits for room
		close(goOn)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The evacuator finds nothing that may go in a store that is full, and before it can say so,
// most of what is local dies: that is room.
func TestWhatDiedMeanwhileMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var armed atomic.Bool
		reached, goOn := make(chan struct{}), make(chan struct{})
		failpoint.Set(func(name string) {
			if name == "far.stuck" && armed.CompareAndSwap(true, false) {
				close(reached)
				<-goOn
			}
		})
		t.Cleanup(func() { failpoint.Set(nil) }) // when the heap has been closed
		h := openObjects(t, heap.NewMemStore(tinySegment, 8), 16)
		var all []Ptr[point]
		var err error
		for err == nil {
			var p Ptr[point]
			if p, err = New(t.Context(), h, point{X: int64(len(all))}); err == nil {
				all = append(all, p)
			}
		}
		if !errors.Is(err, ErrFull) {
			t.Fatalf("got %v, want ErrFull", err)
		}
		armed.Store(true)
		for waits := true; waits; { // what is left of the room goes first
			if p, err := New(NoWait, h, point{}); err == nil {
				all = append(all, p)
			}
			h.core.Forced.Store(true)
			h.core.Logs.Wake()
			select {
			case <-reached:
				waits = false
			case <-time.After(time.Millisecond):
			}
		}
		time.Sleep(time.Minute) // until what it said last does not hold any more
		ended := make(chan error, 1)
		go func() {
			_, err := New(t.Context(), h, point{})
			ended <- err
		}()
		synctest.Wait() // until it waits for room
		for _, p := range all {
			if objects.Load(p.word()).Local() {
				p.Free()
			}
		}
		close(goOn)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
