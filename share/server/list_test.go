package server

import (
	"fmt"
	"slices"
	"testing"

	"polder/internal/failpoint"
)

// putMany puts keys of a byte each, without the log.
func putMany(t *testing.T, s *Server, region uint64, keys []string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.res.Region(region)
	for i, key := range keys {
		s.idx.Put(s.newMaruEntry(r, int64(i)*16, 16, key))
		r.Refs++
	}
}

// listAll lists as a client does: in pages, each from the last key of the one before.
func listAll(s *Server, prefix string, between func(page int)) (keys []string) {
	after := ""
	for page := 0; ; page++ {
		infos := s.keyInfos(prefix, after, maxList)
		if len(infos) == 0 {
			return keys
		}
		for _, k := range infos {
			keys = append(keys, k.Key)
		}
		after = keys[len(keys)-1]
		between(page)
	}
}

// TestAListOfManyKeysIsMadeByLookingAtThemAFewTimes, not once for each page of it.
func TestAListOfManyKeysIsMadeByLookingAtThemAFewTimes(t *testing.T) {
	s := still(t, nil)
	_, r := guest(t, s, "owner", "owner")
	const n = listAhead + 3*listStep
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("k%07d", i))
	}
	putMany(t, s, r.ID, want)
	_, second := guest(t, s, "other", "other")
	putMany(t, s, second.ID, []string{"other"})
	pauses := 0
	failpoint.Set(func(name string) {
		if name == "daemon.list-paused" {
			pauses++
		}
	})
	defer failpoint.Set(nil)
	if got := listAll(s, "k", func(int) {}); !slices.Equal(got, want) {
		t.Errorf("%d keys are listed, want %d in order", len(got), len(want))
	}
	if most := 2 * n / listStep; pauses > most {
		t.Errorf("%d keys were looked at in %d steps of %d, want at most %d", n, pauses, listStep, most)
	}
}

// TestAListHasWhatIsThereAllTheWhile, although keys come and go while it is made, and
// several are made at a time.
func TestAListHasWhatIsThereAllTheWhile(t *testing.T) {
	s := still(t, nil)
	g, r := guest(t, s, "owner", "owner")
	other, second := guest(t, s, "other", "other")
	const n = 5 * maxList
	var keys, stay []string
	for i := range n {
		keys = append(keys, fmt.Sprintf("k%04d", i))
		if i < maxList || i >= 4*maxList {
			stay = append(stay, keys[i])
		}
	}
	putMany(t, s, r.ID, keys)
	for i := range 2 * maxListings {
		if got := len(listAll(s, fmt.Sprint("k00", i), func(int) {})); got != 10 {
			t.Fatalf("%d keys begin with k00%d, want 10", got, i)
		}
	}
	if got := s.keyInfos("k9", "", maxList); len(got) != 0 {
		t.Fatalf("%d keys begin with k9, want none", len(got))
	}
	got := listAll(s, "", func(page int) {
		if page > 0 {
			return
		}
		for _, key := range keys[maxList : 4*maxList] { // more than a page
			if ok, err := g.Delete(key); !ok || err != nil {
				t.Fatalf("%q is not deleted: %v, %v", key, ok, err)
			}
		}
		other.mustRegister(t, second, "k9")
	})
	if got = slices.DeleteFunc(got, func(key string) bool { return key == "k9" }); !slices.Equal(got, stay) {
		t.Errorf("the list has %d keys, want the %d that were there all the while", len(got), len(stay))
	}
	if got := s.keyInfos("k9", "", maxList); len(got) != 1 {
		t.Errorf("a list that was begun after a key was put has %d keys, want that one", len(got))
	}
	if len(s.listings) > maxListings {
		t.Errorf("%d listings are kept, want at most %d", len(s.listings), maxListings)
	}
	for _, l := range s.listings {
		l.used = l.used.Add(-2 * listingKept)
	}
	if s.dropListings(); len(s.listings) != 0 {
		t.Errorf("%d listings are kept for ever", len(s.listings))
	}
}

func TestRegionsAreListedInPages(t *testing.T) {
	s := still(t, nil)
	var want, got []uint64
	for i := range 5 {
		_, r := guest(t, s, fmt.Sprint("owner", i), "owner")
		want = append(want, r.ID)
	}
	for after := ""; ; {
		infos := s.regionInfos(after, 2)
		if len(infos) == 0 {
			break
		}
		for _, r := range infos {
			got = append(got, r.ID)
		}
		after = fmt.Sprintf("%016x", got[len(got)-1])
	}
	if !slices.Equal(got, want) {
		t.Errorf("got regions %v, want %v", got, want)
	}
}
