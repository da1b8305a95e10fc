package far

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"polder/far/heap"
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
		if got, want := tb.clear(), c.size-c.left; got != want {
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
	if heap.RecordSize(3, 255) != heap.RecordSize(3, 256) {
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

// sealed makes the far bytes of an entry.
func sealed(key, val []byte, addr uint64, flags uint16) []byte {
	r := record{key: key, value: val, expire: 12345, tag: 7, flags: flags}
	b := make([]byte, r.size())
	r.put(b, 0x123456789abc, 42)
	heap.Record(b).Seal(addr)
	return b
}

func TestEveryDamagedBitIsNoticed(t *testing.T) {
	const addr = 0x12345
	good := sealed([]byte("some key"), []byte("and its value"), addr, 0)
	e, err := heap.DecodeEntry(good, addr)
	if err != nil || string(e.Key()) != "some key" || string(e.Value()) != "and its value" || e.Tag() != 7 || e.Expire() != 12345 {
		t.Fatalf("got %q, %v", e, err)
	}
	for i := range 8 * e.End() {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := heap.DecodeEntry(bad, addr); err == nil {
			t.Errorf("bit %d may be damaged", i)
		}
		if i < 8*(heap.HeaderSize+e.Klen()) {
			if _, err := heap.DecodeHead(bad, addr); err == nil {
				t.Errorf("bit %d may be damaged in the head", i)
			}
		}
	}
	if _, err := heap.DecodeEntry(good, addr+1); err == nil {
		t.Error("bytes of another address were taken")
	}
}

func FuzzDecode(f *testing.F) {
	const addr = 77
	f.Add(sealed([]byte("k"), []byte("v"), addr, 0))
	f.Add(sealed(nil, nil, addr, 0))
	f.Add(sealed([]byte("k"), bigHead{1, 100000, 4096}.encode(), addr, heap.FlagBig))
	f.Add(sealed([]byte("k"), make([]byte, bigHeadSize), addr, heap.FlagBig))
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 100))
	h := &Heap{pieces: 4096, maxValue: 1 << 20}
	f.Fuzz(func(t *testing.T, b []byte) {
		// Far bytes lie in buffers with others behind them.
		b = append(make([]byte, 0, len(b)+64), b...)
		for _, decode := range []func([]byte, uint64) (heap.Record, error){heap.DecodeHead, heap.DecodeEntry} {
			e, err := decode(b, addr)
			if err != nil {
				continue
			}
			if heap.HeaderSize+len(e.Key()) > len(b) || e.Far() != addr {
				t.Fatalf("decoded %q from %q", e, b)
			}
			if e.Big() && h.checkBig(e) == nil && bigOf(e).count() < 2 {
				t.Fatalf("a large value of %d pieces", bigOf(e).count())
			}
		}
		if e, err := heap.DecodeEntry(b, addr); err == nil && e.End() > len(b) {
			t.Fatalf("decoded %d bytes from %d", e.End(), len(b))
		}
		if e, err := heap.DecodeEntry(b, entryAddr(b)); err == nil {
			// What is right comes out the same when it is written again.
			c := make(heap.Record, e.Size())
			copy(c, e)
			c.Seal(e.Far())
			if !bytes.Equal(c[:e.End()], e[:e.End()]) && !e.Staged() {
				t.Fatalf("got %q, want %q", c, e)
			}
		}
	})
}

// entryAddr is the address that b claims to be written to.
func entryAddr(b []byte) uint64 {
	if len(b) < heap.HeaderSize {
		return 0
	}
	return heap.Record(b).Far()
}
