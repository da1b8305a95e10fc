package meta

import (
	"fmt"
	"slices"
	"testing"

	"polder/share/internal/shm"
)

func keysOf(x *Index, owner uint64) []string {
	var keys []string
	for e := range x.Oldest(owner) {
		keys = append(keys, e.Key)
	}
	return keys
}

func TestOldestFirstAndOrphansKeepTheirOrder(t *testing.T) {
	x := NewIndex()
	for i := range 4 {
		x.Put(&Entry{Key: fmt.Sprint(i), Region: uint64(1 + i%2), Owner: 9, Page: uint32(i)})
	}
	x.Touch(x.Get([]byte("0")))
	if got := keysOf(x, 9); !slices.Equal(got, []string{"1", "2", "3", "0"}) {
		t.Fatalf("got %v, want 1 2 3 0", got)
	}
	x.Orphan(1, 9) // of keys 0 and 2
	if got := keysOf(x, 9); !slices.Equal(got, []string{"1", "3"}) {
		t.Fatalf("the owner's: got %v, want 1 3", got)
	}
	if got := keysOf(x, 0); !slices.Equal(got, []string{"2", "0"}) {
		t.Fatalf("orphans: got %v, want 2 0", got)
	}
	for e := range x.Oldest(0) {
		x.Delete(e)
	}
	if x.Len() != 2 || len(keysOf(x, 0)) != 0 || x.AtPage(0) != nil || x.AtPage(1) == nil {
		t.Fatalf("after deleting orphans: %d keys, want 2", x.Len())
	}
}

// TestAnOwnerLeavesWithAllItsRegions: keys of several regions keep their order, and
// what is put into one of them, or touched, afterwards is on the same list.
func TestAnOwnerLeavesWithAllItsRegions(t *testing.T) {
	x := NewIndex()
	for i := range 6 {
		x.Put(&Entry{Key: fmt.Sprint(i), Region: uint64(1 + i%3), Owner: uint64(8 + i%3/2), Page: uint32(i)})
	}
	x.Orphan(3, 9) // of keys 2 and 5
	x.OrphanAll(8)
	x.OrphanAll(8)
	if got := keysOf(x, 0); !slices.Equal(got, []string{"2", "5", "0", "1", "3", "4"}) {
		t.Fatalf("got %v, want 2 5 0 1 3 4", got)
	}
	x.Touch(x.Get([]byte("0")))
	if got := keysOf(x, 0); !slices.Equal(got, []string{"2", "5", "1", "3", "4", "0"}) {
		t.Fatalf("after 0 was used: got %v, want 2 5 1 3 4 0", got)
	}
	if len(x.lru) != 1 {
		t.Errorf("%d lists are left, want 1", len(x.lru))
	}
	for e := range x.Oldest(0) {
		x.Delete(e)
	}
	if len(x.owners) != 0 || x.Len() != 0 {
		t.Errorf("%d keys and %d regions are left, want none", x.Len(), len(x.owners))
	}
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
