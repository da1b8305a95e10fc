package far

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/heap"
	"polder/internal/invariants"
)

// lives fails the test unless the entry of k has so long to live, and none at all if
// want is 0.
func lives[V any](t *testing.T, m *Map[int, V], k int, want time.Duration) {
	t.Helper()
	ctx := t.Context()
	ttl, ok, err := m.TTL(ctx, k)
	if err != nil || ok != (want != 0) || ok && ttl != want {
		t.Errorf("TTL of key %d: got %v, %v, %v, want %v", k, ttl, ok, err, want)
	}
	if has, err := m.Has(ctx, k); has != (want != 0) || err != nil {
		t.Errorf("Has of key %d: got %v, %v with %v to live", k, has, err, want)
	}
	if _, ok, err := m.Get(ctx, k); ok != (want != 0) || err != nil {
		t.Errorf("Get of key %d: got %v, %v with %v to live", k, ok, err, want)
	}
}

// Forever-1 is a Duration that overflows when it is rounded up to a millisecond.
func TestAnEntryWithTheLongestTTLDoesNotExpireAtOnce(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	m := newMap(t, h, MapConfig[int, int]{})
	if err := m.SetTTL(t.Context(), 1, 10, Forever-1); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := m.Get(t.Context(), 1); v != 10 || !ok || err != nil {
		t.Errorf("got %d, %v, %v, want 10", v, ok, err)
	}
}

func TestEntriesOfAMapLiveForTheirTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
		m := newMap(t, h, MapConfig[int, int]{})
		ctx := t.Context()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		expire := func(k int, ttl time.Duration, want bool) {
			t.Helper()
			if ok, err := m.Expire(ctx, k, ttl); ok != want || err != nil {
				t.Errorf("Expire of key %d: got %v, %v, want %v", k, ok, err, want)
			}
		}
		must(m.SetTTL(ctx, 1, 10, time.Minute))
		must(m.Set(ctx, 2, 20))
		must(m.SetTTL(ctx, 3, 30, 0))
		must(m.SetTTL(ctx, 4, 40, time.Nanosecond))
		must(m.SetTTL(ctx, 5, 50, Forever))
		lives(t, m, 1, time.Minute)
		lives(t, m, 2, Forever)
		lives(t, m, 3, 0)
		lives(t, m, 4, time.Millisecond) // no less
		lives(t, m, 5, Forever)
		lives(t, m, 6, 0)

		expire(2, time.Hour, true)
		lives(t, m, 2, time.Hour)
		expire(6, time.Hour, false)
		lives(t, m, 6, 0)
		expire(2, Forever, true)
		lives(t, m, 2, Forever)
		expire(2, -time.Second, true)
		lives(t, m, 2, 0)

		time.Sleep(40 * time.Second)
		must(m.Update(ctx, 1, func(old int, ok bool) (int, bool) { return old + 1, true }))
		lives(t, m, 1, 20*time.Second) // as it was
		if v, _, _ := m.Get(ctx, 1); v != 11 {
			t.Errorf("got %d, want 11", v)
		}
		time.Sleep(20 * time.Second)
		lives(t, m, 1, 0)
		must(m.Update(ctx, 1, func(old int, ok bool) (int, bool) {
			if ok || old != 0 {
				t.Errorf("Update of what has expired: got %d, %v, want nothing", old, ok)
			}
			return 12, true
		}))
		lives(t, m, 1, Forever)

		must(m.SetTTL(ctx, 1, 13, time.Minute))
		must(m.Set(ctx, 1, 14)) // Set is for ever
		lives(t, m, 1, Forever)
	})
}

// Entries expire whether they are local or far, large or small, and those that nobody
// asks for, too: their memory is given back.
func TestExpiredEntriesOfAMapGiveTheirMemoryBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 32)
		m := newMap(t, h, MapConfig[int, []byte]{})
		ctx := t.Context()
		const n = 1000
		for i := range n {
			size := 300
			if i%100 < 2 {
				size = 3 * tinyPiece
			}
			if err := m.SetTTL(ctx, i, value(uint64(i), size), time.Duration(i%2+1)*time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		for range n / 10 { // a far entry, and a large one, may get another time
			i := rand.IntN(n/2)*2 + 1
			if ok, err := m.Expire(ctx, i, 2*time.Minute); !ok || err != nil {
				t.Fatalf("Expire of key %d: got %v, %v", i, ok, err)
			}
		}
		time.Sleep(time.Minute)
		for i := range n {
			got, ok, err := m.Get(ctx, i)
			if err != nil || ok != (i%2 == 1) {
				t.Fatalf("key %d: got %v, %v after a minute", i, ok, err)
			}
			if ok && !bytes.Equal(got, value(uint64(i), len(got))) {
				t.Fatalf("key %d has another value", i)
			}
		}
		time.Sleep(10 * time.Minute) // nobody asks
		if s := h.Stats(); m.Len() != 0 || s.LocalLive != 0 || s.FarLive != 0 {
			t.Errorf("%d entries, %d bytes of local memory and %d of far memory are left, want none", m.Len(), s.LocalLive, s.FarLive)
		}
	})
}

// Also where there are so many entries that the tables cannot know all: those that only leaves know in far memory expire, asked for or not.
func TestEntriesThatOnlyLeavesKnowExpire(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	synctest.Test(t, func(t *testing.T) {
		h, err := NewHeap(heap.NewMemStore(1<<20, 200), Config{Local: heap.MinLocal})
		if err != nil {
			t.Fatal(err)
		}
		defer closeHeap(t, h)
		m := newMap(t, h, MapConfig[int, int]{})
		ctx := t.Context()
		const n = 100_000 // 1.2 MB of words
		for i := range n {
			ttl := 5 * time.Minute
			if i%2 == 0 {
				ttl = time.Hour
			}
			if err := m.SetTTL(ctx, i, i, ttl); err != nil {
				t.Fatalf("entry %d: %v", i, err)
			}
		}
		if s := h.Stats(); s.Settled == 0 || s.LeavesFar == 0 {
			t.Fatalf("all words of entries that expire are in tables: %+v", s.Lines)
		}
		for end := time.Now().Add(40 * time.Minute); m.Len() != n/2 && time.Now().Before(end); { // nobody asks
			time.Sleep(time.Minute)
		}
		if got := m.Len(); got != n/2 {
			t.Errorf("%d entries are left of %d, half of which have expired", got, n)
		}
		for i := range n / 100 {
			v, ok, err := m.Get(ctx, i)
			if err != nil || ok != (i%2 == 0) || ok && v != i {
				t.Fatalf("entry %d: got %d, %v, %v", i, v, ok, err)
			}
		}
		for end := time.Now().Add(3 * time.Hour); m.Len() > 0 && time.Now().Before(end); {
			time.Sleep(time.Minute)
		}
		time.Sleep(10 * time.Minute) // for the cleaner
		if got, far := m.Len(), h.Stats().FarLive; got != 0 || far > 1<<20 {
			t.Errorf("%d entries and %d bytes of far memory are left when all have expired", got, far)
		}
	})
}
