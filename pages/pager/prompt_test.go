package pager

import (
	"fmt"
	"testing"
	"time"

	"polder/far/store/storetest"
	"polder/pages"
	"polder/pool/pooltest"
)

// farPages makes a client. Its pages are far and begin with their number plus one, but for the last two, which were
// never written.
func farPages(t *testing.T) (*client, *storetest.Store) {
	t.Helper()
	store := storetest.New(256<<10, 64)
	c := newClientOver(t, store)
	other, err := c.m.s.cfg.Volumes.Volume("other", 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	for page := range int64(len(c.m.index)) - 2 {
		if err := c.m.volume.Write(t.Context(), filled(byte(page+1)), page*pages.Size); err != nil {
			t.Fatal(err)
		}
	}
	for off := int64(0); off < other.Size(); off += pages.Size { // so that the client's are far
		if err := other.Write(t.Context(), filled(1), off); err != nil {
			t.Fatal(err)
		}
	}
	return c, store
}

// TestFarPagesAreReadAtOnceWhereThatIsSoon, and by a worker otherwise.
func TestFarPagesAreReadAtOnceWhereThatIsSoon(t *testing.T) {
	for _, tt := range []struct {
		took   time.Duration
		atOnce bool
	}{{time.Nanosecond, true}, {2 * wakeTime, false}, {0, false}} {
		c, store := farPages(t)
		c.m.prompt.took.Store(int64(tt.took))
		before := store.Reads.Load()
		c.touch("read", 3)
		c.says("4")
		if store.Reads.Load() == before {
			t.Fatal("the page was not far")
		}
		c.m.mu.Lock()
		if got := c.m.prompt.ctx != nil; got != tt.atOnce {
			t.Errorf("far memory that took %v is read by who reads faults: %v, want %v", tt.took, got, tt.atOnce)
		}
		c.m.mu.Unlock()
		if got := time.Duration(c.m.prompt.took.Load()); got == tt.took {
			t.Errorf("the read changed nothing of what is known: %v", got)
		}
	}
}

// TestAReadThatTakesLongHoldsUpNoFault: another page is brought meanwhile, where far memory was quick before.
func TestAReadThatTakesLongHoldsUpNoFault(t *testing.T) {
	c, store := farPages(t)
	for page := range int64(2) {
		c.m.prompt.took.Store(1)
		release := store.Hold()
		reads := store.Reads.Load()
		c.touch("besides", page)
		for store.Reads.Load() == reads {
			time.Sleep(time.Millisecond)
		}
		c.touch("read", int64(len(c.m.index))-1-page)
		c.says("0")
		release()
		c.says(fmt.Sprint(page + 1))
	}
	page := int64(2)
	pooltest.Eventually(t, "a page is read at once again", func() bool {
		c.m.prompt.took.Store(1)
		c.touch("read", page)
		page++
		c.says(fmt.Sprint(page))
		c.m.mu.Lock()
		defer c.m.mu.Unlock()
		return c.m.prompt.ctx.Err() == nil
	})
}
