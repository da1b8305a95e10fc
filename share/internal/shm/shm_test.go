package shm

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"polder/internal/arena"
)

func TestWordsGrowAndKeepTheirState(t *testing.T) {
	w := Word(40)
	for _, s := range []PageState{Live, Dying, Free, Live} {
		next := w.To(s)
		if next.State() != s || next>>2 != w>>2+1 {
			t.Fatalf("%d to %d: got %d", w, s, next)
		}
		w = next
	}
}

func both(t *testing.T) (client, daemon *Lease) {
	t.Helper()
	client, err := NewLease()
	if err != nil {
		t.Fatal(err)
	}
	daemon, err = OpenLease(client.File())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); daemon.Close() })
	return client, daemon
}

func held(l *Lease) []uint32 {
	var pages []uint32
	l.Held(func(p uint32) { pages = append(pages, p) })
	slices.Sort(pages)
	return pages
}

func TestLeaseShowsTheDaemonWhatIsHeld(t *testing.T) {
	c, d := both(t)
	a, _ := c.Hold(100)
	b, _ := c.Hold(200)
	if got := held(d); !slices.Equal(got, []uint32{100, 200}) {
		t.Fatalf("got %v, want 100, 200", got)
	}
	c.Drop(a)
	if got := held(d); !slices.Equal(got, []uint32{200}) {
		t.Fatalf("got %v, want 200", got)
	}
	c.Drop(b)
	for range Slots {
		if _, ok := c.Hold(1); !ok {
			t.Fatal("a slot is missing")
		}
	}
	if _, ok := c.Hold(1); ok {
		t.Fatal("more is held than there are slots")
	}
}

func TestTouchesAreReadOnceAndMayBeLost(t *testing.T) {
	c, d := both(t)
	c.Touch(5)
	c.Touch(6)
	count := func() (n int) {
		d.Touched(func(uint32) { n++ })
		return n
	}
	if n := count(); n != 2 {
		t.Fatalf("got %d touches, want 2", n)
	}
	if n := count(); n != 0 {
		t.Fatalf("got %d touches again, want 0", n)
	}
	for range 3 * ring {
		c.Touch(7)
	}
	if n := count(); n != ring {
		t.Fatalf("got %d touches, want the last %d", n, ring)
	}
}

func TestMemoryThatCannotBeTrustedIsRefused(t *testing.T) {
	fd, err := arena.NewMemfd("x", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	if _, err := OpenLease(fd.File()); err == nil {
		t.Error("memory that can shrink was accepted")
	}
	if err := fd.SealSize(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLease(fd.File()); err == nil {
		t.Error("memory that is too small was accepted")
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := OpenTable(f); err == nil {
		t.Error("a device was accepted as the table")
	}
}

// TestEitherSideSeesTheOther is the argument that the whole library rests on:
// a page is never taken back under a view.
func TestEitherSideSeesTheOther(t *testing.T) {
	c, d := both(t)
	table, err := NewTable()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	reader, err := OpenTable(table.File())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	const page = FirstPage + 3
	var bytes atomic.Uint64 // of the page: the generation that they are of
	live := Word(0).To(Live)
	table.Store(page, live)
	bytes.Store(uint64(live))

	const rounds = 20000
	var wg sync.WaitGroup
	var done atomic.Bool
	for range 2 {
		wg.Go(func() {
			for !done.Load() {
				want := reader.Load(page)
				if want.State() != Live {
					continue
				}
				slot, ok := c.Hold(page)
				if !ok {
					continue
				}
				if reader.Load(page) == want {
					for range 3 {
						if got := bytes.Load(); got != uint64(want) {
							t.Errorf("under a view of generation %d: bytes of %d", want, got)
						}
					}
				}
				c.Drop(slot)
			}
		})
	}
	for range rounds {
		dying := table.Load(page).To(Dying)
		table.Store(page, dying)
		if len(held(d)) == 0 {
			w := dying.To(Free).To(Live)
			bytes.Store(uint64(w)) // another's bytes
			table.Store(page, w)
		} else {
			// Somebody looks: the same bytes stay, under another word.
			for len(held(d)) > 0 {
			}
			w := dying.To(Free).To(Live)
			bytes.Store(uint64(w))
			table.Store(page, w)
		}
	}
	done.Store(true)
	wg.Wait()
}
