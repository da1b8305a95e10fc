package memnode

import (
	"testing"
	"time"

	"polder/internal/hostmem"
)

// A host of 16 MiB, 1 MiB of which is its reserve, is looked at as others need memory and let go of it. What is lent is
// used at once.
func TestANodeLendsWhatItsHostDoesNotNeed(t *testing.T) {
	const mib = 1 << 20
	type host struct {
		others  int64 // MiB
		stalled float64
	}
	l, now, used := NewLending(8*mib, mib), time.Unix(1000, 0), int64(0)
	look := func(h host) (most int64, again time.Duration) {
		m := hostmem.Memory{Total: 16 * mib, Available: 16*mib - h.others*mib - used, Stalled: h.stalled}
		most, again = l.Look(now, m, used)
		used = min(max(used, most), most) // clients borrow all there is, or have to give back
		now = now.Add(again)
		return most, again
	}
	want := func(what string, most, wantMost int64, again, wantAgain time.Duration) {
		t.Helper()
		if most != wantMost*mib || again != wantAgain {
			t.Errorf("%s: lends %d bytes and looks again after %v, want %d MiB, %v", what, most, again, wantMost, wantAgain)
		}
	}
	rest := func(h host, d time.Duration) (most int64, again time.Duration) {
		for end := now.Add(d); now.Before(end); {
			most, again = look(h)
		}
		return most, again
	}
	most, again := look(host{})
	want("nobody needs anything", most, 8, again, hostmem.Calm)
	most, again = look(host{others: 4})
	want("others need what is not lent", most, 8, again, hostmem.Calm)
	most, again = look(host{others: 10})
	want("others need more", most, 5, again, hostmem.Tense)
	most, again = look(host{others: 10})
	want("there is just enough", most, 5, again, hostmem.Tense)
	most, again = look(host{others: 16})
	want("others need all", most, 0, again, hostmem.Tense)
	most, again = look(host{})
	want("they have just let go of it", most, 0, again, hostmem.Calm)
	most, again = rest(host{}, LendAgain-100*time.Millisecond)
	want("they might need it again", most, 0, again, hostmem.Calm)
	most, again = rest(host{}, 200*time.Millisecond)
	want("they do not", most, 8, again, hostmem.Calm)

	used = 8 * mib
	most, _ = look(host{others: 7, stalled: 1}) // 1 MiB is free, and somebody waits for memory
	if most >= 8*mib {
		t.Errorf("lends %d bytes although somebody waits for memory, want less than 8 MiB", most)
	}

	l.Cap(2 * mib)
	if most, _ = rest(host{stalled: 1}, 10*time.Second); most != 2*mib {
		t.Errorf("lends %d bytes, want the 2 MiB that the operator says", most)
	}
	l.Cap(8 * mib)
	if most, _ = look(host{stalled: 1}); most != 8*mib {
		t.Errorf("lends %d bytes, want 8 MiB again", most)
	}
}

// What cannot be moved in time is said once, and that it has been moved after all.
func TestWhatIsNotMovedInTimeIsSaid(t *testing.T) {
	l, now := NewLending(1<<30, 1<<20), time.Unix(1000, 0)
	for i, c := range []struct {
		after      time.Duration
		over       int64
		late, news bool
	}{
		{0, 0, false, false},
		{time.Second, 5, false, false},
		{MoveWithin - 1, 5, false, false},
		{1, 3, true, true},
		{time.Hour, 3, true, false},
		{1, 0, false, true},
		{1, 5, false, false}, // and again
		{MoveWithin, 5, true, true},
	} {
		now = now.Add(c.after)
		if late, news := l.Yielded(now, Yielded{Over: c.over}); late != c.late || news != c.news {
			t.Errorf("step %d: late %v, news %v, want %v, %v", i, late, news, c.late, c.news)
		}
	}
}
