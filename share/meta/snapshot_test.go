package meta

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"
)

// kept is what a log says of an entry.
type kept struct {
	page    uint32
	expires int64
	pins    string
}

func keptOf(e *Entry) kept {
	return kept{e.Page, e.Expires, fmt.Sprint(maps.Collect(e.Pins()))} // fmt sorts maps
}

// TestSnapshotIsOfTheMomentItBegan changes the index at random in the pauses of
// a snapshot, which must not notice.
func TestSnapshotIsOfTheMomentItBegan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := NewIndex()
		page := uint32(0)
		change := func(t *rapid.T) {
			few := rapid.IntRange(0, 5) // so that it comes to several changes of one key
			key := fmt.Sprint("k", rapid.OneOf(few, rapid.IntRange(0, 3*snapshotStep)).Draw(t, "key"))
			session := rapid.Uint64Range(1, 2).Draw(t, "session")
			e := x.Get([]byte(key))
			switch what := rapid.SampledFrom([]string{"put", "delete", "put anew", "pin", "unpin", "end", "leave", "leave with all"}).Draw(t, "what"); {
			case e == nil && what == "put":
				page++
				x.Put(&Entry{Key: key, Page: page, Region: uint64(page % 4), Owner: 1 + uint64(page%4), Length: 1})
			case what == "end":
				x.UnpinAll(session)
			case what == "leave":
				x.Orphan(session)
			case what == "leave with all":
				x.OrphanAll(1 + session)
			case e == nil:
			case what == "delete":
				x.Delete(e)
			case what == "put anew":
				x.Delete(e)
				page++
				x.Put(&Entry{Key: key, Page: page, Region: uint64(page % 4), Owner: 1 + uint64(page%4), Length: 1})
			case what == "pin":
				x.Pin(e, session, 1)
			case what == "unpin":
				x.Unpin(e, session)
			}
		}
		for i := range rapid.IntRange(0, 3*snapshotStep).Draw(t, "keys") {
			page++
			x.Put(&Entry{Key: fmt.Sprint("k", i), Page: page, Region: uint64(page % 4), Owner: 1 + uint64(page%4), Length: 1})
		}
		for range 2 { // the second must not trust the marks of the first
			for range rapid.IntRange(0, 20).Draw(t, "changes before") {
				change(t)
			}
			want := map[string]kept{}
			for e := range x.All() {
				want[e.Key] = keptOf(e)
			}
			got := map[string]kept{}
			x.Snapshot(func(e *Entry) {
				if _, twice := got[e.Key]; twice {
					t.Fatalf("%s is saved twice", e.Key)
				}
				got[e.Key] = keptOf(e)
			}, func() bool {
				for range rapid.IntRange(0, 20).Draw(t, "changes") {
					change(t)
				}
				return true
			})
			if !maps.Equal(got, want) {
				t.Fatalf("the snapshot has %d entries, or others, want %d:\n%v\n%v", len(got), len(want), got, want)
			}
		}
		for e := range x.All() {
			x.Delete(e)
		}
		if x.Logged() != 0 {
			t.Fatalf("an empty index needs %d bytes of log, want 0", x.Logged())
		}
	})
}
