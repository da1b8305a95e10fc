package far

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"polder/far/heap"
	"polder/far/record"
	"polder/internal/arena"
	"polder/internal/invariants"
)

func TestTableKeepsWhatItIsGiven(t *testing.T) {
	var tb table
	defer tb.close()
	if err := tb.resize(4096); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 3))
	want := map[word]uint32{}
	for i := range 20000 {
		switch {
		case len(want) > 0 && r.IntN(3) == 0:
			for w, tag := range want {
				p := tb.find(tag, w)
				if p == none {
					t.Fatalf("step %d: word %#x has gone", i, w)
				}
				tb.remove(p)
				delete(want, w)
				break
			}
		default:
			if !tb.roomy() {
				if err := tb.resize(tb.grownBytes()); err != nil {
					t.Fatal(err)
				}
			}
			tag := r.Uint32()
			if r.IntN(4) == 0 {
				tag = 1<<32 - 1 - tag%3 // the end of the table, and equal ones
			}
			w := newWord(uint64(i), 100, 0)
			tb.insert(tag, w)
			want[w] = tag
		}
	}
	for w, tag := range want {
		p := tb.find(tag, w)
		if p == none || *tb.word(p) != w || tb.tag(p) != tag {
			t.Fatalf("word %#x has gone", w)
		}
		tb.remove(p)
		delete(want, w)
		if size := tb.shrunkBytes(); size != tb.bytes() {
			if err := tb.resize(size); err != nil {
				t.Fatal(err)
			}
			for w, tag := range want {
				if tb.find(tag, w) == none {
					t.Fatalf("word %#x has gone as the table shrank", w)
				}
			}
		}
	}
	if tb.bytes() != 4096 {
		t.Errorf("%d bytes are left", tb.bytes())
	}
	if tb.used != 0 {
		t.Errorf("%d entries are left", tb.used)
	}
	for b := range tb.buckets {
		if tb.buckets[b].over != 0 {
			t.Errorf("bucket %d says that %d entries lie behind it", b, tb.buckets[b].over)
		}
	}
}

func TestAClearedTableIsEmptyAndKeepsAPageAtMost(t *testing.T) {
	page := int64(arena.PageSize)
	for _, c := range []struct{ size, left int64 }{{0, 0}, {page, page}, {3 * page, 0}} {
		var tb table
		defer tb.close()
		if c.size > 0 {
			if err := tb.resize(c.size); err != nil {
				t.Fatal(err)
			}
		}
		for i := range tb.buckets { // more than its bucket takes
			tb.insert(7, newWord(uint64(i), 1, 0))
		}
		if got, want := tb.clear(false), c.size-c.left; got != want {
			t.Errorf("a table of %d bytes gives back %d, want %d", c.size, got, want)
		}
		if got := tb.bytes(); got != c.left {
			t.Errorf("a table of %d bytes keeps %d, want %d", c.size, got, c.left)
		}
		for range tb.all() {
			t.Errorf("a table of %d bytes has an entry left", c.size)
		}
		for b := range tb.buckets {
			if tb.used != 0 || tb.buckets[b] != (bucket{}) {
				t.Fatalf("a table of %d bytes keeps bucket %d as %+v, and says that %d are used", c.size, b, tb.buckets[b], tb.used)
			}
		}
	}
}

func TestTableTakes16BytesAnEntry(t *testing.T) {
	var tb table
	defer tb.close()
	var bytes, entries float64
	for i := range 200000 {
		if !tb.roomy() {
			if err := tb.resize(tb.grownBytes()); err != nil {
				t.Fatal(err)
			}
		}
		tb.insert(rand.Uint32(), newWord(uint64(i), 1, 0))
		if i > 20000 { // beyond the grain of pages
			bytes += float64(tb.bytes())
			entries += float64(tb.used)
		}
	}
	if got := bytes / entries; got > 17 {
		t.Errorf("got %.1f bytes an entry, want 17 at most", got)
	}
}

// The evacuator reads the lengths of entries without a lock, so an entry must
// not be overwritten with one of other lengths, though it would fit.
func TestOnlyTheSameLengthsAreOverwritten(t *testing.T) {
	_, m := newTestHeap(t, heap.NewMemStore(testSegment, 10), Config{})
	at := func(n int) uint64 {
		mustSet(t, m, []byte("key"), make([]byte, n))
		sh := m.shard(m.hash([]byte("key")))
		sh.mu.Lock()
		defer sh.mu.Unlock()
		for p := range sh.t.matches(m.hash([]byte("key")).tag()) {
			return sh.t.word(p).addr()
		}
		t.Fatal("the key is not in the index")
		return 0
	}
	if entrySize(3, 255) != entrySize(3, 256) {
		t.Fatal("the sizes differ")
	}
	first := at(255)
	if again := at(255); again != first {
		t.Errorf("a value of the same length went from %#x to %#x, want it overwritten", first, again)
	}
	if other := at(256); other == first {
		t.Errorf("a value of another length was written over %#x", first)
	}
}

func TestLocalCallsDoNotAllocate(t *testing.T) {
	if invariants.Enabled {
		return // the race detector allocates
	}
	_, m := newTestHeap(t, heap.NewMemStore(testSegment, 100), Config{Local: 16 << 20})
	ctx := context.Background()
	k, v := []byte("key"), value(1, 1000)
	mustSet(t, m, k, v)
	buf := make([]byte, 0, 2000)
	for name, call := range map[string]func(){
		"Get":  func() { m.Get(ctx, k, buf) },
		"Set":  func() { m.Set(ctx, k, Entry{Value: v}) },
		"Miss": func() { m.Get(ctx, v[:20], buf) },
		"Stat": func() { m.Stat(ctx, k) },
		"Update": func() {
			m.Update(ctx, k, func(old Entry, found bool) (Entry, Verdict, error) { return old, Put, nil })
		},
		"Replace": func() { m.Delete(ctx, k); m.Set(ctx, k, Entry{Value: v}) },
	} {
		if got := testing.AllocsPerRun(1000, call); got != 0 {
			t.Errorf("%s: %v allocations, want none", name, got)
		}
	}
}

// What has become of a record in the place where it was read is the entry that it was made of. Its bytes
// may be anything, as long as their checksums are right.
func FuzzLocalize(f *testing.F) {
	add := func(r newEntry) {
		e := make(entry, r.size())
		r.put(e, 0x123456789a, 42)
		b := make([]byte, e.FarSize())
		e.putFar(b)
		f.Add(b)
	}
	add(newEntry{key: []byte("k"), value: []byte("v"), expire: 12345, tag: 7})
	add(newEntry{})
	add(newEntry{key: []byte("k"), value: bigHead{1, 100000, 4096}.encode(), flags: entryBig})
	add(newEntry{key: []byte("k"), value: make([]byte, bigHeadSize), flags: entryBig, expire: 1})
	add(newEntry{key: make([]byte, pieceKeySize), value: []byte("piece"), flags: entryPiece})
	h := &Heap{pieces: 4096, maxValue: 1 << 20}
	f.Fuzz(func(t *testing.T, b []byte) {
		const addr = 77
		if len(b) < record.HeaderSize {
			return
		}
		b = bytes.Clone(b)
		raw, head := record.Record(b), record.Record(b).KeyLen()
		if raw.Flags()&record.Expires != 0 {
			head += record.ExpirySize
		}
		if head > raw.Len() || record.HeaderSize+raw.Len() > len(b) {
			return
		}
		raw.Seal(0, 0)
		r, err := record.Decode(b, 0, 0)
		if err != nil {
			return
		}
		was := bytes.Clone(r)
		if k := r.Kind(); k != record.Entry && k != record.Piece {
			return
		}
		e := localize(r, addr)
		r = was
		if string(e.Key()) != string(r.Key()) || string(e.Value()) != string(r.Value()) || e.Expire() != r.Expiry() ||
			e.Tag() != r.Tag() || e.Owner() != r.Owner() || uint64(e.Hash()) != r.Number() || e.Far() != addr || !e.Clean() {
			t.Fatalf("got %q of %q", e, r)
		}
		again := make([]byte, e.FarSize())
		e.putFar(again)
		record.Record(again).SetVersion(r.Version())
		again[28] |= r[28] & byte(record.Moved)
		record.Record(again).Seal(0, 0)
		if !bytes.Equal(again[:len(r)], r) {
			t.Fatalf("got %q, want %q", again, r)
		}
		if e.Big() && h.checkBig(e.Value()) == nil && bigOf(e).count() < 2 {
			t.Fatalf("a large value of %d pieces", bigOf(e).count())
		}
	})
}
