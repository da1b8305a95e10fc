package server

import (
	"slices"
	"testing"

	"polder/share/internal/wire"
	"polder/share/resource"
)

// unserved is a daemon that replays records and serves nobody.
func unserved(t *testing.T) *Server {
	t.Helper()
	s := newServer(Options{})
	t.Cleanup(s.cancel)
	var err error
	if s.res, err = resource.New(resource.Options{Specs: []resource.Spec{{Kind: resource.Memfd, Size: 16 << 20}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.res.Close() })
	return s
}

// The pages of a test's regions, and how many they have.
const (
	testPage  = 64 << 10
	testPages = 4
)

// region is the record of one of its own extent and pages.
func region(id, owner uint64, flags uint8) wire.Writer {
	var b wire.Writer
	return b.U8(recRegion).U64(id).String("memfd").U64(id * testPages * testPage).U64(testPages * testPage).U64(testPage).
		U32(uint32(1000 + id*testPages)).U64(owner).String("tenant").U8(flags)
}

func record(kind uint8) wire.Writer { return wire.Writer(nil).U8(kind) }

// history is records that make sense, one after the other.
func history() [][]byte {
	put := func(page uint32, key string) wire.Writer {
		return encodePut(encodePutHead(nil, 1), page, 100+int64(page), 1<<40, []byte(key))
	}
	return [][]byte{
		record(recBoot).String("a boot"),
		record(recNamespace).String("a namespace"),
		record(recNext).U64(50),
		encodeSession(nil, &session{id: 7, token: token{7}, pid: 77, start: 777, uid: 7777, tenant: "tenant", name: "seven"}),
		encodeSession(nil, &session{id: 8, token: token{8}, pid: 88, start: 888, uid: 8888, tenant: "tenant", name: "eight"}),
		region(1, 7, 0),
		record(recActive).U64(1),
		region(2, 7, 1),
		region(3, 7, 3), // Maru's
		put(0, "a"), put(1, "b"), put(2, "c"),
		record(recDelete).String("b"),
		record(recPin).U64(7).String("a"), record(recPin).U64(7).String("a"), record(recPin).U64(8).String("c"), record(recPin).U64(8).String("a"),
		record(recUnpin).U64(8).String("a"),
		encodeMaruPut(nil, 3, 1000, 100, "m"), encodeMaruPut(nil, 3, 1100, 100, "n"),
		record(recRetired).U64(2).U8(1),
		region(4, 8, 1),
		record(recReleased).U64(4),
	}
}

func replayed(t *testing.T, records [][]byte) *Server {
	t.Helper()
	s := unserved(t)
	for i, r := range records {
		if err := s.replay(r); err != nil {
			t.Fatalf("record %d of %d: %v", i, len(records), err)
		}
	}
	return s
}

// checkpoint is all records of a checkpoint: first those on which others rest.
func checkpoint(s *Server) (records [][]byte) {
	add := func(b []byte) { records = append(records, slices.Clone(b)) }
	s.snapshot(add)
	var b wire.Writer
	for e := range s.idx.All() {
		b = s.snapshotEntry(b, e, add)
	}
	return records
}

// TestACheckpointIsTheState replays what a daemon would have logged, takes a checkpoint
// of that, and replays the checkpoint: another one is the same.
func TestACheckpointIsTheState(t *testing.T) {
	s := replayed(t, history())
	first := checkpoint(s)
	again := replayed(t, first)
	second := checkpoint(again)
	sorted := func(records [][]byte) [][]byte {
		records = slices.Clone(records)
		slices.SortFunc(records, slices.Compare[[]byte])
		return records
	}
	if a, b := sorted(first), sorted(second); !slices.EqualFunc(a, b, slices.Equal[[]byte]) {
		t.Errorf("a checkpoint of %d records became one of\n%q, want\n%q", len(first), b, a)
	}
	for _, s := range []*Server{s, again} {
		if n := s.idx.Len(); n != 4 || s.idx.Get([]byte("b")) != nil {
			t.Errorf("there are %d keys, want a, c, m and n", n)
		}
		a, m := s.idx.Get([]byte("a")), s.idx.Get([]byte("m"))
		if a == nil || a.Length != 100 || a.Expires != 1<<40 || a.Page != 1004 || a.Region != 1 || a.Owner != 7 || !a.Pinned() {
			t.Errorf("key a is %+v", a)
		}
		if m == nil || !m.Maru() || m.Offset != 1000 || m.Length != 100 || m.Pinned() {
			t.Errorf("key m is %+v", m)
		}
		if ss := s.sessions[7]; ss == nil || ss.pid != 77 || ss.start != 777 || ss.uid != 7777 || ss.tenant != "tenant" || ss.name != "seven" || s.tokens[token{7}] != ss {
			t.Errorf("session 7 is %+v", ss)
		}
		for id, want := range map[uint64]resource.State{1: resource.Active, 2: resource.Active, 3: resource.Active, 4: resource.Deferred} {
			if r := s.res.Region(id); r == nil || r.State != want || r.Maru != (id == 3) || r.Retired != (id == 2) || r.Pages() != testPages {
				t.Errorf("region %d is %+v, want it %v", id, r, want)
			}
		}
		if got := s.res.Next(); got != 50 {
			t.Errorf("the next region is %d, want 50", got)
		}
		if s.bootID != "a boot" || s.pidNamespace != "a namespace" {
			t.Errorf("boot %q, namespace %q", s.bootID, s.pidNamespace)
		}
	}
	// What was pinned twice is pinned until it is unpinned twice.
	for i, want := range []bool{true, false} {
		if err := again.replay(record(recUnpin).U64(7).String("a")); err != nil {
			t.Fatal(err)
		}
		if got := again.idx.Get([]byte("a")).Pinned(); got != want {
			t.Errorf("key a is pinned: %v, want %v after %d of 2", got, want, i+1)
		}
	}
}

// TestRecordsThatMakeNoSenseAreRefused replays one after records that do.
func TestRecordsThatMakeNoSenseAreRefused(t *testing.T) {
	put := func(region uint64, page uint32, length int64, key string) wire.Writer {
		return encodePut(encodePutHead(nil, region), page, length, 0, []byte(key))
	}
	for name, r := range map[string][]byte{
		"a kind that there is not":             record(99),
		"an end of a session":                  record(recSessionEnd).U64(9),
		"a region that exists":                 region(1, 7, 0),
		"a region that begins to be used":      record(recActive).U64(9),
		"a region that is used already":        record(recActive).U64(1),
		"a region that is given back":          record(recReleased).U64(9),
		"a region that is freed while in use":  record(recFreed).U64(1),
		"a region without a pool":              append(record(recRegion).U64(9).String("none"), region(9, 7, 0)[1+8+2+5:]...),
		"a key of a region that there is not":  put(9, 0, 1, "new"),
		"a key that exists":                    put(1, 3, 1, "a"),
		"a key behind its region":              put(1, testPages, 1, "new"),
		"a key that is longer than a page":     put(1, 3, testPage+1, "new"),
		"a key of a negative length":           put(1, 3, -1, "new"),
		"a key of Maru's in a usual region":    encodeMaruPut(nil, 1, 0, 100, "new"),
		"a key of Maru's that exists":          encodeMaruPut(nil, 3, 0, 100, "a"),
		"a key of Maru's behind its region":    encodeMaruPut(nil, 3, testPages*testPage-99, 100, "new"),
		"a key of Maru's on another":           encodeMaruPut(nil, 3, 1099, 100, "new"),
		"a deletion of a key that is not":      record(recDelete).String("b"),
		"a pin of a key that is not":           record(recPin).U64(7).String("b"),
		"a pin of a session that is not":       record(recPin).U64(9).String("a"),
		"an end of a pin of somebody else's":   record(recUnpin).U64(8).String("a"),
		"a record that is cut":                 record(recRetired).U64(1),
		"a put that is cut":                    put(1, 3, 1, "new")[:20],
		"a freed region that still holds keys": nil,
	} {
		s := replayed(t, history())
		if r == nil {
			if err := s.replay(record(recReleased).U64(1)); err != nil {
				t.Fatal(err)
			}
			r = record(recFreed).U64(1)
		}
		if err := s.replay(r); err == nil {
			t.Errorf("%s: the record is taken", name)
		}
	}
}
