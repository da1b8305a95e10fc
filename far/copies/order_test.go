package copies_test

import (
	"testing"
	"testing/synctest"
	"time"

	"polder/far/copies"
)

// TestTheMostEndangeredIsRepairedFirst: two of five places lose what they have, and a third one does when five of six copies have been made
// again. By then nothing had its last copy there.
func TestTheMostEndangeredIsRepairedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, copies.Config{Copies: 3})
		c.fill(t)
		c.healed(t, time.Minute)
		before := c.store.Stats()
		for _, l := range c.lenders {
			l.setDelay(10 * time.Millisecond)
		}
		c.lenders[0].kill()
		c.lenders[1].kill()
		lost := int64(before.Places[0].Copies + before.Places[1].Copies)
		for began := time.Now(); c.store.Stats().Repaired < lost*5/6; time.Sleep(time.Millisecond) {
			if time.Since(began) > time.Hour {
				t.Fatalf("of %d copies not five of six are made again: %+v", lost, c.store.Stats())
			}
		}
		if st := c.store.Stats(); st.Endangered == 0 {
			t.Fatalf("everything is repaired already: %+v", st)
		}
		c.lenders[2].kill()
		time.Sleep(time.Minute)
		if st := c.store.Stats(); st.Lost > 0 {
			t.Errorf("%d of %d segments are lost", st.Lost, before.Segments)
		}
		c.checkAll(t)
	})
}
