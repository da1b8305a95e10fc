package copies_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"polder/far/copies"
	"polder/far/store"
	"polder/internal/invariants"
)

// TestWhatFaultsDoToACluster: places stop, are cut off, lose everything, are slow and lie, at random, but no more than one of
// them destroys something before what it had is repaired. With odd seeds two of them lend what is idle, and drop what they may. Nothing is
// lost, and in the end all is well.
func TestWhatFaultsDoToACluster(t *testing.T) {
	seeds, rounds := 8, 40
	if invariants.Enabled { // "make plain" has them all
		seeds, rounds = 2, 10
	}
	if os.Getenv("TEST_SOAK") != "" {
		seeds = 400
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { inVirtualTime(t, func(t *testing.T) { faults(t, uint64(seed), rounds) }) })
	}
}

func faults(t *testing.T, seed uint64, rounds int) {
	places, kinds := 5, 8
	if seed%2 == 1 {
		places, kinds = 6, 10
	}
	c := newCluster(t, places, copies.Config{})
	for _, l := range c.lenders[4:] {
		l.idle = seed%2 == 1
	}
	c.fill(t)
	c.healed(t, time.Minute)
	r := rand.New(rand.NewPCG(seed, 1))
	work := func(n int) {
		for range n {
			if i := r.IntN(keys); r.IntN(3) == 0 {
				c.set(t, i)
			} else {
				c.check(t, i)
			}
			if r.IntN(20) == 0 {
				time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
			}
		}
	}
	raw := &rawWriter{store: c.store, r: r}
	for range rounds {
		if r.IntN(2) == 0 { // what takes no time is hardly ever met by something else
			for _, l := range c.lenders {
				l.setDelay(time.Duration(1+r.IntN(200)) * time.Microsecond)
			}
		}
		l := c.lenders[r.IntN(len(c.lenders))]
		undo, away := func() {}, false
		switch r.IntN(kinds) {
		case 8, 9:
			for _, l := range c.lenders[4:] {
				l.drop()
			}
			if r.IntN(2) == 0 { // one of those that count goes at the same time
				c.lenders[r.IntN(4)].kill()
			}
		case 0:
			l.stop()
			away = true
		case 1:
			l.cut()
			away = true
		case 2:
			l.kill()
		case 3:
			l.setDelay(time.Duration(r.IntN(40)) * time.Millisecond)
		case 4:
			undo = l.damage(r)
		case 5:
			l.set(&l.full)
		case 6:
			l.set(&l.mute)
		case 7:
			l.leave(true)
		}
		work(300)
		raw.step(t)
		if r.IntN(3) == 0 {
			time.Sleep(time.Duration(r.IntN(20)) * time.Second)
			work(300)
			raw.step(t)
		}
		if away && r.IntN(3) == 0 { // the others make up for it
			time.Sleep(time.Minute)
			if st := c.store.Stats(); st.Endangered != 0 {
				t.Errorf("%d segments are endangered when %s has been away for a minute", st.Endangered, l.name)
			}
		}
		undo() // since nobody looks for what is not read
		for _, l := range c.lenders {
			l.goOn()
			l.tell()
		}
		c.healed(t, 2*time.Minute)
		time.Sleep(time.Second)
		if kinds > 8 {
			time.Sleep(10 * time.Second) // spare copies are made, too
		}
		c.kept(t, c.store.Stats().Segments)
	}
	c.checkAll(t)
	if st := c.store.Stats(); st.Lost != 0 || c.heap.Stats().Lost != 0 {
		t.Errorf("%d segments, %d entries are lost: %+v", st.Lost, c.heap.Stats().Lost, st)
	}
	c.heap.Close()
	raw.free(t)
	time.Sleep(time.Minute)
	c.kept(t, 0)
	c.store.Close()
}

// A rawWriter writes to segments of a store without a heap, which would not go on with one that was sealed.
type rawWriter struct {
	store *copies.Store
	r     *rand.Rand
	open  []rawSegment
}

type rawSegment struct {
	store.Segment
	has    []byte // what was acknowledged
	sealed bool
}

// step writes to each segment and checks what is in it, and gives some back and borrows others.
func (w *rawWriter) step(t *testing.T) {
	t.Helper()
	for len(w.open) < 8 {
		g, err := w.store.Alloc(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.open = append(w.open, rawSegment{Segment: g})
	}
	for i := range w.open {
		g := &w.open[i]
		for range w.r.IntN(3) {
			b := value(w.r.IntN(keys), 0)
			if len(g.has)+len(b) > segmentSize {
				break
			}
			switch err := g.Write(t.Context(), b, len(g.has)); {
			case err == nil && g.sealed:
				t.Fatalf("%s was written to after it had been sealed", g.Name())
			case err == nil:
				g.has = append(g.has, b...)
			default:
				g.sealed = true
			}
		}
		if len(g.has) == 0 {
			continue
		}
		op := [1]store.ReadOp{{Seg: g.Segment, Buf: make([]byte, len(g.has))}}
		good := func() bool { return bytes.Equal(op[0].Buf, g.has) }
		w.store.Read(t.Context(), op[:])
		if (op[0].Err != nil || !good()) && !w.store.Reread(t.Context(), op[0], good) {
			t.Fatalf("%s has not got what was written to it: %v", g.Name(), op[0].Err)
		}
	}
	if i := w.r.IntN(len(w.open)); w.r.IntN(2) == 0 {
		if err := w.open[i].Free(t.Context()); err != nil {
			t.Error(err)
		}
		w.open = append(w.open[:i], w.open[i+1:]...)
	}
}

func (w *rawWriter) free(t *testing.T) {
	t.Helper()
	for i := range w.open {
		if err := w.open[i].Free(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// kept checks that each segment has its copies, at places of their own, and that no place keeps anything else.
func (c *cluster) kept(t *testing.T, segments int) {
	t.Helper()
	st := c.store.Stats()
	if st.Segments != segments {
		t.Errorf("there are %d segments, want %d", st.Segments, segments)
	}
	all := 0
	defer func() {
		if all != segments*copies.DefaultCopies+st.Spares {
			t.Errorf("%d segments have %d copies, of which %d may vanish", segments, all, st.Spares)
		}
	}()
	for i, l := range c.lenders {
		l.mu.Lock()
		all += len(l.segments)
		if l.wrong != nil {
			t.Error(l.wrong)
		}
		if n := len(l.segments); st.Places[i].Copies != n {
			t.Errorf("%s has lent %d segments, of which %d are known", l.name, n, st.Places[i].Copies)
		}
		l.mu.Unlock()
	}
}
