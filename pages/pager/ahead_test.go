package pager

import (
	"errors"
	"testing"

	"polder/pages"
	"polder/pages/internal/ahead"
)

// TestReadAheadGoesOverWhatIsThere: a stream comes by pages that are there in no time, and then finds those behind them.
func TestReadAheadGoesOverWhatIsThere(t *testing.T) {
	c := newClient(t)
	for page := int64(10); page < 20; page++ {
		c.claimed(page)
	}
	c.m.readAhead(job{ahead: ahead.Window{First: 10, Stride: 1, Count: 4, N: 1}, stream: true}, make([]byte, pages.MaxRead*pages.Size))
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for page := 20; page < 28; page++ {
		if got, want := resident(c.m.index[page]), page < 24; got != want {
			t.Errorf("that page %d was read ahead is %v, want %v", page, got, want)
		}
	}
}

// TestAMarkGoesWithThePagesBesideIt: that it was touched, as they all were, does not spare it.
func TestAMarkGoesWithThePagesBesideIt(t *testing.T) {
	c := newClient(t)
	at := c.claimed(30)
	c.m.placeMark(at, filled(7))
	c.touch("read", 30)
	c.says("7")
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if f := c.m.frames[at]; f.used || f.state != clean {
		t.Errorf("its frame is %+v, want it clean, and not spared", f)
	}
	if m := c.m.marks; m.frames != [maxMarks]uint32{} {
		t.Errorf("there are marks for frames %v, want none", m.frames)
	}
}

// TestAStreamEndsWithItsMapping: a worker that comes to the mark of a stream while its mapping ends, after the last jobs were
// given to workers, leaves the stream alone.
func TestAStreamEndsWithItsMapping(t *testing.T) {
	c := newClient(t)
	c.m.end(errors.New("it is over"))
	for open := true; open; {
		_, open = <-c.m.jobs
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for page := range int64(8) {
		c.m.follow(page)
	}
}
