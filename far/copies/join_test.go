package copies_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"polder/far/copies"
	"polder/far/store"
)

// A place that is added gets the copies that there was no place for.
func TestAPlaceThatIsAddedGetsWhatIsMissing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newCluster(t, 1, copies.Config{Copies: 2, Joins: true})
		c.fill(t)
		if st := c.store.Stats(); st.Segments == 0 || st.Endangered != st.Segments {
			t.Errorf("%d of %d segments are endangered with one place for two copies", st.Endangered, st.Segments)
		}
		l := newLender("joins", "", 1000)
		if err := c.store.Add(l.place()); err != nil {
			t.Fatal(err)
		}
		if err := c.store.Add(l.place()); err == nil || !strings.Contains(err.Error(), `"joins"`) {
			t.Errorf("adding a place again: got %v", err)
		}
		c.healed(t, time.Minute)
		if got, want := l.store.Lent(), c.store.Stats().Segments; got < want {
			t.Errorf("the place that was added has %d copies of %d segments", got, want)
		}
		c.lenders[0].kill()
		c.checkAll(t)
	})
}

// A place that is added is empty, and would get every new copy if it did not wait for its turn.
func TestAPlaceThatIsAddedGetsCopiesLittleByLittle(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		const ramp, n = time.Minute, 40
		c := newCluster(t, 3, copies.Config{Ramp: ramp})
		for range 100 {
			alloc(t, c.store)
		}
		l := newLender("joins", "", 1000)
		if err := c.store.Add(l.place()); err != nil {
			t.Fatal(err)
		}
		for _, at := range []struct{ least, most int }{{0, 2}, {n/2 - 3, n/2 + 3}, {n, n}} {
			was := l.store.Lent()
			for range n {
				alloc(t, c.store)
			}
			if got := l.store.Lent() - was; got < at.least || got > at.most {
				t.Errorf("it got %d copies of %d segments, want %d to %d", got, n, at.least, at.most)
			}
			time.Sleep(ramp / 2)
		}
	})
}

// A place that was added gets copies of what was there before, too, until it is about as full as the others: nothing new is written. They stay in zones
// of their own, move to and fro no more, and a damaged one takes no good one's place.
func TestAPlaceThatIsAddedGetsItsShareOfWhatIsThere(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		a, b := newLender("a", "east", 200), newLender("b", "west", 200)
		joins := newLender("joins", "west", 200)
		s, err := copies.Open(copies.Config{Places: []copies.Place{a.place(), b.place()}, Ramp: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var all []store.Segment
		for i := range 120 {
			g := alloc(t, s)
			if err := g.Write(t.Context(), fmt.Appendf(nil, "%8d", i), 0); err != nil {
				t.Fatal(err)
			}
			all = append(all, g)
		}
		a.damageAt(2) // whose copies stay: what moves must not be copied from them
		if err := s.Add(joins.place()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		if n := joins.store.Lent(); n != 0 {
			t.Errorf("it has %d copies of what was there before, before it has its share of what is new", n)
		}
		time.Sleep(time.Minute)
		n, kept := joins.store.Lent(), b.store.Lent()
		if n < 30 || n > 60 || n+kept != 120 || a.store.Lent() != 120 {
			t.Errorf("%d copies have moved and %d have not, which are as many as the %d of another zone, want about half", n, kept, a.store.Lent())
		}
		done := s.Stats().Repaired
		time.Sleep(time.Minute)
		if more := s.Stats().Repaired - done; more != 0 {
			t.Errorf("%d more are moved when all are about as full", more)
		}
		for i, g := range all {
			op := store.ReadOp{Seg: g, Buf: make([]byte, 8)}
			if want := fmt.Sprintf("%8d", i); !s.Reread(t.Context(), op, func() bool { return string(op.Buf) == want }) {
				t.Errorf("the good copy of segment %d is not there", i)
			}
		}
	})
}

func TestAPlaceIsRemovedWhenItIsOfNoUse(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := newCluster(t, 3, copies.Config{})
		c.fill(t)
		c.healed(t, time.Minute)
		l := c.lenders[0]
		refused := func(name, want string, err error) {
			t.Helper()
			if got := c.store.Remove(name); got == nil || !strings.Contains(got.Error(), want) || err != nil && !errors.Is(got, err) {
				t.Errorf("removing %s: got %v, want that it %s", name, got, want)
			}
		}
		refused("nobody", "none of that name", nil)
		refused(l.name, "can be used", copies.ErrInUse)
		l.cut()
		refused(l.name, "copies", copies.ErrInUse)
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // until others have them
			err := c.store.Remove(l.name)
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
		if n := len(c.store.Stats().Places); n != 2 {
			t.Errorf("there are %d places, want 2", n)
		}
		c.fill(t)
		c.checkAll(t)

		// Places come and go without end, but not all within a minute.
		var err error
		added := 0
		for ; err == nil && added < 2*copies.MaxPlaces; added++ {
			down := newLender(fmt.Sprint("brief ", added), "", 1)
			down.cut()
			if err = c.store.Add(down.place()); err == nil {
				err = c.store.Remove(down.name)
			}
		}
		if added < copies.MaxPlaces-4 || added > copies.MaxPlaces || err == nil || !strings.Contains(err.Error(), "the most") {
			t.Errorf("after %d places: %v", added, err)
		}
		time.Sleep(time.Minute)
		if err := c.store.Add(newLender("later", "", 1000).place()); err != nil {
			t.Error(err)
		}
		c.checkAll(t)
	})
}
