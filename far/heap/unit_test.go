package heap

import "testing"

// Who waits for room for what shrinks is refused only after that was tried for
// which something is kept, even if others who wait are told that there is none.
func TestWhoShrinksIsRefusedAfterATryOnly(t *testing.T) {
	var l Logs
	l.round = &round{done: make(chan struct{})}
	other, shrinks := l.join(ForMutator), l.join(ForShrink)
	l.look()
	if l.refuse(errStoreFull, false) {
		t.Error("refused though nothing was tried for what shrinks")
	}
	select {
	case <-shrinks.done:
		t.Fatal("the wait has ended")
	default:
	}
	if !l.refuse(errStoreFull, true) {
		t.Error("not refused after everything was tried")
	}
	for _, r := range []*round{other, shrinks} {
		<-r.done
		if r.err != errStoreFull {
			t.Errorf("got %v, want %v", r.err, errStoreFull)
		}
	}
}

// TestWhatIsDeadInAnOpenSegmentMakesRoom: a segment that is full, and of which half is dead, is the evacuator's although there is no other for who
// was writing there. It is the room that he waits for.
func TestWhatIsDeadInAnOpenSegmentMakesRoom(t *testing.T) {
	const size, record = 64 << 10, 1 << 10
	for _, dead := range []int64{size, size / 2, size/2 - record} {
		var l Logs
		if err := l.Init(16*size, 16*size, 0, size, 1); err != nil {
			t.Fatal(err)
		}
		defer l.Mapping.Close()
		fill := func(ol *OpenLog) (n int) {
			for ; ; n++ {
				if _, _, ok := l.Place(ol, record, ForShrink); !ok {
					return n
				}
			}
		}
		for range size / record {
			if _, _, ok := l.Place(&l.Shrunk, record, ForShrink); !ok {
				t.Fatal("there is no room for a segment of what shrinks")
			}
		}
		if fill(&l.Open[0]) == 0 {
			t.Fatal("there was no room for anything else")
		}
		full := l.Shrunk.Seg
		l.Segs[full].Live.Add(-dead)
		if _, _, ok := l.Place(&l.Shrunk, record, ForShrink); ok {
			t.Fatal("there is room still")
		}
		if got, want := l.Segs[full].evacuable(), dead >= size/2; got != want {
			t.Errorf("of %d bytes %d are dead, and there is no other segment: the evacuator may empty it: %v, want %v", size, dead, got, want)
		}
	}
}
