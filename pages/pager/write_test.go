package pager

import (
	"fmt"
	"testing"

	"polder/far/store/storetest"
	"polder/pages"
)

// placed puts pages into the memory, as if they had been read.
func (c *client) placed(first, end int64) {
	c.Helper()
	for page := first; page < end; page++ {
		c.m.place([]uint32{c.claimed(page)}, filled(byte(page)), false)
	}
}

// writes has the client write to a page, which placed has put there.
func (c *client) writes(page int64) {
	c.Helper()
	c.touch("write", page)
	c.says(fmt.Sprint(page + 1))
}

// waits is how many of the writes to pages from first to end, one after another, had to wait.
func (c *client) waits(first, end int64) int64 {
	c.Helper()
	before := c.m.s.stats.writes.Load()
	for page := first; page < end; page++ {
		c.writes(page)
	}
	return c.m.s.stats.writes.Load() - before
}

// TestWhoWritesToPagesInARowWaitsSeldom, in either direction; and those that it has not come to yet count as written to.
func TestWhoWritesToPagesInARowWaitsSeldom(t *testing.T) {
	for _, step := range []int64{1, -1} {
		c := newClient(t)
		const first, end = 10, 50
		c.placed(first, end)
		page := int64(first)
		if step < 0 {
			page = end - 1
		}
		for range end - first {
			c.writes(page)
			page += step
		}
		if got := c.m.s.stats.writes.Load(); got > 6 {
			t.Errorf("%d of %d writes waited, want at most 6", got, end-first)
		}
		c.m.mu.Lock()
		for page := first; page < end; page++ {
			if f := c.m.frames[c.m.index[page]-1]; f.state != dirty {
				t.Errorf("the state of page %d is %d, want dirty", page, f.state)
			}
		}
		c.m.mu.Unlock()
	}
}

// TestWhoWritesHereAndThereHasTheOthersProtected: pages that nobody writes to are not written out.
func TestWhoWritesHereAndThereHasTheOthersProtected(t *testing.T) {
	c := newClient(t)
	c.placed(10, 50)
	for _, page := range []int64{10, 17, 24, 31, 38, 45, 22, 41, 12} {
		c.writes(page)
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	count := 0
	for page := 10; page < 50; page++ {
		if c.m.frames[c.m.index[page]-1].state == dirty {
			count++
		}
	}
	if count != 9 {
		t.Errorf("%d pages count as written to, want 9", count)
	}
}

// TestWhoWritesToWhatComesGoesOn: where the pages that are there end, the next ones are waited for once they are there, no oftener
// than the first ones.
func TestWhoWritesToWhatComesGoesOn(t *testing.T) {
	c := newClient(t)
	c.placed(10, 30)
	c.waits(10, 30)
	c.placed(30, 60)
	if got := c.waits(30, 60); got > 3 {
		t.Errorf("%d of 30 writes waited, want at most 3", got)
	}
}

// TestWhatIsBeingEvictedStaysProtected: who writes to pages in a row, of which one is being evicted, does not write to that one
// until it is there again, and then goes on with those behind it.
func TestWhatIsBeingEvictedStaysProtected(t *testing.T) {
	c := newClient(t)
	c.placed(10, 15)
	at := c.evicting(15, 15)
	c.placed(16, 50)
	c.waits(10, 15)
	c.touch("write", 15)
	c.wanted(at)
	c.m.mu.Lock()
	if c.m.frames[at].state != evicting {
		t.Error("it is not being evicted any more")
	}
	c.m.mu.Unlock()
	c.m.drop([]uint32{at})
	c.says("16")
	if got := c.waits(16, 50); got > 6 {
		t.Errorf("%d of 34 writes behind it waited, want at most 6", got)
	}
}

// TestPagesAreWrittenOutTogether: what has to be known of those that they replace is read at once, wherever they lie.
func TestPagesAreWrittenOutTogether(t *testing.T) {
	store := storetest.New(256<<10, 64)
	c := newClientOver(t, store)
	ctx, page := t.Context(), filled(1)
	other, err := c.m.s.cfg.Volumes.Volume("other", 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	for off := int64(0); off < c.m.size; off += pages.Size {
		if err := c.m.volume.Write(ctx, page, off); err != nil {
			t.Fatal(err)
		}
	}
	for off := int64(0); off < other.Size(); off += pages.Size { // so that those are far
		if err := other.Write(ctx, page, off); err != nil {
			t.Fatal(err)
		}
	}
	var victims []uint32
	for i := range int64(batch) {
		at := c.claimed(i * 3)
		c.m.place([]uint32{at}, filled(byte(i*3)), true)
		victims = append(victims, at)
	}
	c.m.mu.Lock()
	for _, at := range victims {
		c.m.policy.chose(at)
		c.m.frames[at].state = evicting
		c.m.must(c.m.fd.Protect(c.m.addr(c.m.frames[at].page), pages.Size, true))
	}
	c.m.mu.Unlock()
	before := store.Reads.Load()
	if freed := c.m.writeOut(victims, make([]byte, batch*pages.Size)); freed != batch {
		t.Errorf("%d pages were written out, want %d", freed, batch)
	}
	if got := store.Reads.Load() - before; got > 3 {
		t.Errorf("%d reads of far memory to write out %d pages, want no more than 3", got, batch)
	}
}
