package far

import (
	"errors"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
)

// promised is a heap with n scopes that are open, each of which may take a
// segment for certain, and all of the rest of whose local memory mutators have
// taken. The scopes keep the evacuator from making room.
func promised(t *testing.T, n int) (*Heap, []*heap.Scope) {
	t.Helper()
	lay := tiny
	lay.Logs = 128 * int64(lay.SegSize)
	local := lay.Local()
	h, err := newHeap(heap.NewMemStore(tinySegment, 1<<10), Config{Local: local, MaxLocal: local, ScopeBytes: lay.SegSize, HeldTooLong: time.Minute}, lay)
	if err != nil {
		t.Fatal(err)
	}
	scopes := make([]*heap.Scope, n)
	for i := range scopes {
		scopes[i] = h.NewScope()
		scopes[i].Enter()
	}
	t.Cleanup(func() {
		for _, s := range scopes {
			s.Leave()
			s.Close()
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := NewClass[[496]byte](h, ClassConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := c.New(NoWait, [496]byte{}); errors.Is(err, ErrWouldBlock) {
			return h, scopes
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// takeAll makes objects in every scope, in turn, as many as it was promised.
func takeAll[T any](t *testing.T, scopes []*heap.Scope) {
	t.Helper()
	c, err := NewClass[T](heapOfScope(scopes[0]), ClassConfig{})
	if err != nil {
		t.Fatal(err)
	}
	each := object.Size(c.c.Size) + wordCost
	for i := range scopes[0].H.Cfg.ScopeBytes / each {
		for j, s := range scopes {
			if _, _, err := c.NewIn(s); err != nil {
				t.Fatalf("scope %d has %d objects of %d bytes of the %d that it was promised: %v", j, i, each, s.H.Cfg.ScopeBytes, err)
			}
		}
	}
}

// A table of words that grows takes nothing that scopes were promised, nor do
// the words of what they make themselves.
func TestScopesGetTheirsWhileTheWordsGrow(t *testing.T) {
	h, scopes := promised(t, 6)
	c, err := NewClass[point](h, ClassConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.NewRun(NoWait, 2*h.core.Logs.SegSize/objects.WordSize); !errors.Is(err, ErrWouldBlock) {
		t.Errorf("a run of pointers as large as two segments: got %v, want ErrWouldBlock", err)
	}
	takeAll[point](t, scopes) // they need a word for every 41 bytes
}

func TestScopesGetTheirsWhileAnIndexGrows(t *testing.T) {
	h, scopes := promised(t, 6)
	m := h.NewByteMap("m")
	for i := range 1 << 16 {
		err := m.Set(NoWait, key(i), Entry{})
		if errors.Is(err, ErrWouldBlock) {
			takeAll[point](t, scopes)
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("there is no end of room for a map")
}

// What is set aside for scopes is not spread over the logs of what has no
// temporal locality, too.
func TestScopesGetTheirsInOneKindOfLogs(t *testing.T) {
	h, scopes := promised(t, 1)
	_, addr, err := h.core.NewSlot(scopes[0], heap.Streamed, object.Head(0, 16), 0, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer h.core.DropSlot(addr, 16)
	if got := h.core.Logs.SegmentOf(addr).Kind; got != heap.Scoped {
		t.Errorf("the object lies in a segment of kind %d, want %d", got, heap.Scoped)
	}
}

// The evacuator borrows what is set aside for it, and nothing that scopes were
// promised, until it has given back as much.
func TestTheEvacuatorTakesWhatIsSetAsideForIt(t *testing.T) {
	h, scopes := promised(t, 6)
	l := &h.core.Logs
	var mine []int
	for {
		s, ok := l.Take(heap.ForEvacuator, heap.Scoped, -1)
		if !ok {
			break
		}
		mine = append(mine, s)
	}
	if got := len(mine); got != l.Back {
		t.Errorf("the evacuator has %d segments, %d are set aside for it", got, l.Back)
	}
	takeAll[point](t, scopes)
	for _, s := range mine {
		l.Release(s)
	}
	if l.Owed != 0 {
		t.Errorf("the evacuator owes %d segments when it has given all back", l.Owed)
	}
}
