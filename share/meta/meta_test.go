package meta

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"polder/share/internal/shm"
)

func keysOf(x *Index, owner uint64) []string {
	var keys []string
	for e := range x.Oldest(owner) {
		keys = append(keys, e.Key)
	}
	return keys
}

func TestOldestFirst(t *testing.T) {
	x := NewIndex()
	for i := range 4 {
		x.Put(&Entry{Key: fmt.Sprint(i), Region: uint64(1 + i%2), Owner: 9, Page: uint32(i)})
	}
	x.Touch(x.Get([]byte("0")))
	if got := keysOf(x, 9); !slices.Equal(got, []string{"1", "2", "3", "0"}) {
		t.Fatalf("got %v, want 1 2 3 0", got)
	}
	x.Orphan(1) // of keys 0 and 2
	if got := keysOf(x, 9); !slices.Equal(got, []string{"1", "3"}) {
		t.Fatalf("the owner's: got %v, want 1 3", got)
	}
	for e := range x.OfRegion(1) {
		x.Delete(e)
	}
	if x.Len() != 2 || orphansOf(x) != nil || x.AtPage(0) != nil || x.AtPage(1) == nil {
		t.Fatalf("after deleting orphans: %d keys, want 2", x.Len())
	}
}

func orphansOf(x *Index) []uint64 { return slices.Collect(x.Orphans()) }

// TestRegionsWithoutOwnerAreOrderedByTheirLastUse, the last put, touch or unpinning
// of any of their keys.
func TestRegionsWithoutOwnerAreOrderedByTheirLastUse(t *testing.T) {
	x := NewIndex()
	for i := range 6 {
		x.Put(&Entry{Key: fmt.Sprint(i), Region: uint64(1 + i%3), Owner: uint64(8 + i%3/2), Page: uint32(i)})
	}
	x.Touch(x.Get([]byte("0"))) // of region 1
	x.Orphan(3)
	x.OrphanAll(8)
	x.OrphanAll(8)
	if got := orphansOf(x); !slices.Equal(got, []uint64{3, 2, 1}) {
		t.Fatalf("got %v, want 3 2 1", got)
	}
	x.Touch(x.Get([]byte("5")))
	if got := orphansOf(x); !slices.Equal(got, []uint64{2, 1, 3}) {
		t.Fatalf("after a key of region 3 was used: got %v, want 2 1 3", got)
	}
	x.Pin(x.Get([]byte("1")), 7, 2)
	if got := orphansOf(x); !slices.Equal(got, []uint64{1, 3}) {
		t.Fatalf("with a pin in region 2: got %v, want 1 3", got)
	}
	x.UnpinAll(7)
	if got := orphansOf(x); !slices.Equal(got, []uint64{1, 3, 2}) {
		t.Fatalf("without it: got %v, want 1 3 2", got)
	}
	if len(x.lru) != 0 {
		t.Errorf("%d lists are left, want none", len(x.lru))
	}
	for region := range x.Orphans() {
		for e := range x.OfRegion(region) {
			x.Delete(e)
		}
	}
	if len(x.regions) != 0 || x.Len() != 0 {
		t.Errorf("%d keys and %d regions are left, want none", x.Len(), len(x.regions))
	}
}

// TestWhatIsPinnedIsNotLookedAtToEvict: however much is pinned, who looks for what
// was not used for longest does not walk over it.
func TestWhatIsPinnedIsNotLookedAtToEvict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := NewIndex()
		owners := map[uint64]uint64{1: 8, 2: 8, 3: 9}
		used := map[string]int{}
		page := uint32(0)
		for clock := range rapid.IntRange(0, 60).Draw(t, "changes") {
			key := fmt.Sprint("k", rapid.IntRange(0, 7).Draw(t, "key"))
			region := rapid.Uint64Range(1, 3).Draw(t, "region")
			session := rapid.Uint64Range(1, 2).Draw(t, "session")
			e := x.Get([]byte(key))
			switch what := rapid.SampledFrom([]string{"put", "delete", "touch", "pin", "unpin", "end", "leave", "leave with all"}).Draw(t, "what"); {
			case what == "end":
				for e := range x.pinned[session] {
					if len(e.pins) == 1 {
						used[e.Key] = clock
					}
				}
				x.UnpinAll(session)
			case what == "leave":
				owners[region] = 0
				x.Orphan(region)
			case what == "leave with all":
				for id, owner := range owners {
					if owner == 7+session {
						owners[id] = 0
					}
				}
				x.OrphanAll(7 + session)
			case e == nil && what == "put":
				page++
				x.Put(&Entry{Key: key, Page: page, Region: region, Owner: owners[region]})
				used[key] = clock
			case e == nil:
			case what == "delete":
				x.Delete(e)
			case what == "touch":
				x.Touch(e)
				used[key] = clock
			case what == "pin":
				x.Pin(e, session, 1)
			case what == "unpin":
				if x.Unpin(e, session) && !e.Pinned() {
					used[key] = clock
				}
			}
		}
		want := map[uint64][]string{8: nil, 9: nil}
		var pinned, orphans []uint64
		for e := range x.All() {
			switch owner := owners[e.Region]; {
			case e.Pinned():
				pinned = append(pinned, e.Region)
			case owner == 0:
				orphans = append(orphans, e.Region)
			default:
				want[owner] = append(want[owner], e.Key)
			}
		}
		for owner, keys := range want {
			slices.Sort(keys)
			got := keysOf(x, owner)
			for i := range got[min(1, len(got)):] {
				if used[got[i]] > used[got[i+1]] {
					t.Errorf("of owner %d: %v are not in the order of their use, %v", owner, got, used)
				}
			}
			if slices.Sort(got); !slices.Equal(got, keys) {
				t.Errorf("of owner %d: got %v, want %v", owner, got, keys)
			}
		}
		slices.Sort(orphans)
		orphans = slices.DeleteFunc(slices.Compact(orphans), func(region uint64) bool { return slices.Contains(pinned, region) })
		got := orphansOf(x)
		if slices.Sort(got); !slices.Equal(got, orphans) {
			t.Errorf("without owner: got %v, want %v", got, orphans)
		}
	})
}

func TestPinsAreCountedBySession(t *testing.T) {
	x := NewIndex()
	e := &Entry{Key: "k"}
	x.Put(e)
	x.Pin(e, 1, 1)
	logged := x.Logged()
	x.Pin(e, 1, 1000)
	if x.Logged() != logged {
		t.Errorf("1000 more pins need %d bytes more of a checkpoint, want none", x.Logged()-logged)
	}
	x.Pin(e, 2, 1)
	if x.Unpin(e, 3) {
		t.Fatal("a session unpinned what it had not pinned")
	}
	x.UnpinAll(1)
	if e.PinsOf(1) != 0 || !e.Pinned() {
		t.Fatalf("after session 1 has left: %d pins of it, pinned %v, want 0, true", e.PinsOf(1), e.Pinned())
	}
	if !x.Unpin(e, 2) || e.Pinned() {
		t.Fatal("the last pin does not go")
	}
}

func TestExpiryInOrder(t *testing.T) {
	x := NewIndex()
	for _, at := range []int64{30, 10, 0, 20} {
		x.Put(&Entry{Key: fmt.Sprint(at), Expires: at, Page: uint32(at)})
	}
	x.Delete(x.Get([]byte("20")))
	var got []string
	for e := x.Expired(100); e != nil; e = x.Expired(100) {
		got = append(got, e.Key)
		x.Delete(e)
	}
	if !slices.Equal(got, []string{"10", "30"}) {
		t.Fatalf("got %v, want 10 30", got)
	}
	if x.Expired(1<<60) != nil {
		t.Fatal("a key without expiry has expired")
	}
}

func TestPagesWaitForTheLogForReferencesAndForLeases(t *testing.T) {
	p, err := NewPages()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	lease, err := shm.NewLease()
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	seen, err := shm.OpenLease(lease.File())
	if err != nil {
		t.Fatal(err)
	}
	p.Attach(1, seen)
	const logged, synced, referred, held, unknown = 100, 101, 102, 103, 104
	for page := uint32(logged); page <= unknown; page++ {
		if !p.IsFree(page) {
			t.Fatalf("page %d is not free to begin with", page)
		}
		p.Live(page)
	}
	p.Ref(referred, 2)
	p.Ref(referred, 2)
	slot, _ := lease.Hold(held)
	p.Dying(logged, 1, 10, false)
	p.Dying(synced, 1, 10, true)
	p.Dying(referred, 1, 1, false)
	p.Dying(held, 1, 1, false)
	p.Unknown(unknown)
	p.Dying(unknown, 1, 0, false)
	if !p.Claim(unknown) || p.Claim(logged) {
		t.Fatal("only a page whose fate is unknown can be claimed")
	}
	freed := func(written, synced uint64, all bool) (n int) {
		p.Sweep(written, synced, all, func(uint64) Fate { n++; return Reuse })
		return n
	}
	if n := freed(9, 9, false); n != 0 {
		t.Fatalf("before the record is written: %d pages were freed, want 0", n)
	}
	if n := freed(10, 9, false); n != 1 || !p.IsFree(logged) {
		t.Fatalf("when it is written: %d pages were freed, want 1", n)
	}
	if n := freed(10, 10, false); n != 1 || !p.IsFree(synced) {
		t.Fatalf("when it is synced: %d pages were freed, want 1", n)
	}
	p.Unref(referred, 2)
	p.Retry(referred)
	if freed(10, 10, false) != 0 {
		t.Fatal("a page was freed that one of two views still shows")
	}
	p.Unref(referred, 2)
	p.Retry(referred)
	if n := freed(10, 10, false); n != 1 || !p.IsFree(referred) {
		t.Fatalf("without its reference: %d pages were freed, want 1", n)
	}
	lease.Drop(slot)
	if n := freed(10, 10, true); n != 1 || p.Waiting() != 0 {
		t.Fatalf("without its view: %d pages were freed, want 1; %d wait", n, p.Waiting())
	}
}
