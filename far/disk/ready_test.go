package disk

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"polder/far/store"
)

// readySlots waits until n slots are ready, and returns them.
func (s *Store) readySlots(t *testing.T, n int) []int {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		got := slices.Clone(s.ready)
		s.mu.Unlock()
		if len(got) == n {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d slots are ready, want %d", len(got), n)
		}
	}
}

// TestWhatIsLentHasBeenWrittenTo where writes are to survive a loss of power: a few slots are filled with zeros in advance, and what is given
// back is lent again as it is. What earlier segments have had there does not show.
func TestWhatIsLentHasBeenWrittenTo(t *testing.T) {
	s := open(t, Config{Dir: t.TempDir(), Sync: true, Fresh: true})
	defer closeStore(t, s)
	first := alloc(t, s)
	slots := s.readySlots(t, leastReady)
	b, err := os.ReadFile(s.path("data"))
	if err != nil {
		t.Fatal(err)
	}
	for _, slot := range slots {
		if zeros := b[slot*DefaultSegment : (slot+1)*DefaultSegment]; !bytes.Equal(zeros, make([]byte, DefaultSegment)) {
			t.Errorf("slot %d is ready, and has something in it", slot)
		}
	}
	next := alloc(t, s)
	if got := next.(*segment).slot; !slices.Contains(slots, got) {
		t.Errorf("slot %d was lent, which is none of those that are ready, %d", got, slots)
	}
	used := bytes.Repeat([]byte("used"), block)
	if err := first.Write(t.Context(), used, 0); err != nil {
		t.Fatal(err)
	}
	if err := first.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := alloc(t, s)
	if again.(*segment).slot != first.(*segment).slot {
		t.Error("what was given back is not lent again")
	}
	if b, err = os.ReadFile(s.path("data")); err != nil || !bytes.Contains(b, used) {
		t.Error("the room of what was given back is gone")
	}
	if err := again.Write(t.Context(), []byte("new"), 100); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, block)
	ops := []store.ReadOp{{Seg: again, Buf: got}}
	want := append(append(make([]byte, 100), "new"...), make([]byte, block-103)...)
	if s.Read(t.Context(), ops); ops[0].Err != nil || !bytes.Equal(got, want) {
		t.Errorf("the block that was written to has %q, %v", bytes.Trim(got, "\x00"), ops[0].Err)
	}
}

// TestSlotsThatAreReadyTakeNoRoomFromOthers: all that may be used can be borrowed, and only so much is kept of what was given back.
func TestSlotsThatAreReadyTakeNoRoomFromOthers(t *testing.T) {
	const most = mostReady + 8
	s := open(t, Config{Dir: t.TempDir(), SegmentSize: store.MinSegmentSize, Size: most * store.MinSegmentSize, Sync: true, Fresh: true})
	defer closeStore(t, s)
	for range 2 {
		var segs []store.Segment
		for range most {
			segs = append(segs, alloc(t, s))
			time.Sleep(time.Millisecond)
		}
		if _, err := s.Alloc(t.Context()); !errors.Is(err, store.ErrStoreFull) {
			t.Errorf("one more than all: %v, want ErrStoreFull", err)
		}
		for _, seg := range segs {
			if err := seg.Free(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.readySlots(t, mostReady)
	}
}
