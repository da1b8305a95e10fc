package copies_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/copies"
	"polder/far/store"
)

// TestAPlaceThatHasACopyOfEverySegment, beside those at nodes: it may have no room, fail or be slow, and the heap goes on; and when all nodes have
// lost everything it is read, and what it has is copied to them.
func TestAPlaceThatHasACopyOfEverySegment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newLender("disk 1", "", 1000)
		at := disk.place()
		at.Every = true
		c := newCluster(t, 3, copies.Config{Copies: 2, Places: []copies.Place{at}})
		await := func(what string, ok func(s copies.Stats) bool) {
			t.Helper()
			for began := time.Now(); !ok(c.store.Stats()); time.Sleep(100 * time.Millisecond) {
				if time.Since(began) > time.Hour {
					t.Fatalf("%s never comes true: %+v", what, c.store.Stats())
				}
			}
		}
		whole := func(s copies.Stats) bool {
			return c.store.Everywhere() && s.Endangered == 0 && s.Bare == 0 && s.Places[0].Copies == s.Segments
		}
		n := 0
		write := func() {
			t.Helper()
			for range keys / 4 {
				c.set(t, n%keys)
				n++
			}
		}
		for range 4 {
			write()
		}
		await("that everything is there", func(s copies.Stats) bool { return whole(s) && s.Segments > 0 })
		for _, trouble := range []struct {
			what  string
			begin func()
		}{
			{"it is full", func() { disk.set(&disk.full) }},
			{"it cannot be used", disk.cut},
			{"it is stopped", disk.stop},
		} {
			trouble.begin()
			write()
			write()
			if s := c.store.Stats(); c.store.Everywhere() || s.Bare == 0 || s.Endangered < s.Bare {
				t.Errorf("%s, and nothing is endangered: %+v", trouble.what, s)
			}
			disk.goOn()
			await("that everything is there again, after "+trouble.what, whole)
		}
		for _, l := range c.lenders {
			l.kill()
		}
		for i := range keys {
			c.check(t, i)
		}
		await("that nodes have two copies again", whole)
		disk.kill()
		for i := range keys {
			c.check(t, i)
		}
	})
}

// TestADiskIsReadOnlyIfNoNodeAnswers: also when it has been faster than they are while they could not be reached.
func TestADiskIsReadOnlyIfNoNodeAnswers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		nodes, disk := []*lender{newLender("a", "", 100), newLender("b", "", 100)}, newLender("disk 1", "", 100)
		at := disk.place()
		at.Every = true
		s, err := copies.Open(copies.Config{Copies: 2, Places: []copies.Place{nodes[0].place(), nodes[1].place(), at}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		g := alloc(t, s)
		want := []byte("all have it")
		if err := g.Write(t.Context(), want, 0); err != nil {
			t.Fatal(err)
		}
		read := func() (took time.Duration) {
			t.Helper()
			began := time.Now()
			op := [1]store.ReadOp{{Seg: g, Buf: make([]byte, len(want))}}
			if s.Read(t.Context(), op[:]); op[0].Err != nil || !slices.Equal(op[0].Buf, want) {
				t.Fatalf("got %q, %v", op[0].Buf, op[0].Err)
			}
			return time.Since(began)
		}
		delay := func(l *lender, d time.Duration) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.delay = d
		}
		delay(disk, 10*time.Microsecond)
		for _, l := range nodes {
			l.cut()
		}
		for range 200 {
			read()
		}
		const slow = 200 * time.Microsecond
		for _, l := range nodes {
			l.goOn()
			delay(l, slow)
		}
		time.Sleep(time.Minute)
		for i := range 20 {
			if took := read(); took < slow {
				t.Fatalf("read %d took %v, less than any node takes", i, took)
			}
		}
	})
}
