package far

import (
	"fmt"
	"iter"

	"polder/internal/arena"
)

// hash is what the heap keeps of a key's hash: as many bits as a record has for a number,
// of which the low 32 are the tag and those above choose the shard.
type hash uint64

const hashBits = 40

func (h hash) tag() uint32 { return uint32(h) }

const bucketEntries = 5

// bucket is one cache line of a table. An empty place has the word 0.
type bucket struct {
	words [bucketEntries]word
	tags  [bucketEntries]uint32
	// over counts the entries whose home is this bucket or one before it, and
	// which lie behind it because it was full. At zero a search ends.
	over uint32
}

// table is an open hash table in memory of its own. An entry's home bucket is
// its tag scaled to the number of buckets, so that the tags of successive
// buckets ascend whatever the size of the table: it can grow by any factor
// without looking at a key, and a scan in the order of tags survives growth.
// Not safe for concurrent use; the zero table is empty and has no room.
type table struct {
	buckets []bucket
	mem     *arena.Mapping
	used    int
}

// place is the position of an entry in a table; none is no position.
type place int

const none place = -1

func (t *table) word(p place) *word {
	return &t.buckets[uint(p)/bucketEntries].words[uint(p)%bucketEntries]
}

func (t *table) tag(p place) uint32 {
	return t.buckets[uint(p)/bucketEntries].tags[uint(p)%bucketEntries]
}

func (t *table) home(tag uint32) int {
	return int(uint64(tag) * uint64(len(t.buckets)) >> 32)
}

// firstTag is the lowest tag whose home is bucket b.
func (t *table) firstTag(b int) uint64 {
	n := uint64(len(t.buckets))
	return (uint64(b)<<32 + n - 1) / n
}

// after is the bucket behind b.
func (t *table) after(b int) int {
	if b++; b == len(t.buckets) {
		return 0
	}
	return b
}

// bytes is the memory of the table.
func (t *table) bytes() int64 { return int64(len(t.buckets)) * bucketSize }

// places is how many entries there may be.
func (t *table) places() int { return len(t.buckets) * bucketEntries }

// roomy reports whether an insertion leaves the table at a good load.
func (t *table) roomy() bool { return t.used < len(t.buckets)*bucketEntries*7/8 }

// full reports whether an insertion must not be tried. The last places stay
// empty, since searches for them grow long.
func (t *table) full() bool { return t.used >= len(t.buckets)*bucketEntries*31/32 }

// filled reports whether there is no place left, but for one at which searches end.
func (t *table) filled() bool { return t.used+1 >= len(t.buckets)*bucketEntries }

// find returns the entry with this tag whose word agrees with want on
// whereMask.
func (t *table) find(tag uint32, want word) place {
	if len(t.buckets) == 0 {
		return none
	}
	b := t.home(tag)
	for range t.buckets {
		bk := &t.buckets[b]
		for i, g := range bk.tags {
			if g == tag && bk.words[i] != 0 && bk.words[i].where() == want.where() {
				return place(b*bucketEntries + i)
			}
		}
		if bk.over == 0 {
			break
		}
		b = t.after(b)
	}
	return none
}

// matches iterates over the entries with this tag.
func (t *table) matches(tag uint32) iter.Seq[place] {
	return func(yield func(place) bool) {
		if len(t.buckets) == 0 {
			return
		}
		b := t.home(tag)
		for range t.buckets {
			bk := &t.buckets[b]
			for i, g := range bk.tags {
				if g == tag && bk.words[i] != 0 && !yield(place(b*bucketEntries+i)) {
					return
				}
			}
			if bk.over == 0 {
				return
			}
			b = t.after(b)
		}
	}
}

// all iterates over all entries. They may be removed meanwhile.
func (t *table) all() iter.Seq[place] {
	return func(yield func(place) bool) {
		for p := range place(len(t.buckets) * bucketEntries) {
			if *t.word(p) != 0 && !yield(p) {
				return
			}
		}
	}
}

// within iterates over the entries with tags from lo up to hi. They may be removed meanwhile.
func (t *table) within(lo, hi uint64) iter.Seq[place] {
	return func(yield func(place) bool) {
		if len(t.buckets) == 0 {
			return
		}
		for home := t.home(uint32(lo)); home < len(t.buckets) && t.firstTag(home) < hi; home++ {
			for b, left := home, len(t.buckets); left > 0; b, left = t.after(b), left-1 {
				bk := &t.buckets[b]
				for i, g := range bk.tags {
					if bk.words[i] != 0 && t.home(g) == home && uint64(g) >= lo && uint64(g) < hi && !yield(place(b*bucketEntries+i)) {
						return
					}
				}
				if bk.over == 0 {
					break
				}
			}
		}
	}
}

// insert adds an entry. The table must not be full.
func (t *table) insert(tag uint32, w word) {
	b := t.home(tag)
	for {
		bk := &t.buckets[b]
		for i, g := range bk.words {
			if g == 0 {
				bk.words[i], bk.tags[i] = w, tag
				t.used++
				return
			}
		}
		bk.over++
		b = t.after(b)
	}
}

// remove deletes the entry at p.
func (t *table) remove(p place) {
	at := int(p) / bucketEntries
	for b := t.home(t.tag(p)); b != at; b = t.after(b) {
		t.buckets[b].over--
	}
	bk := &t.buckets[at]
	bk.words[int(p)%bucketEntries], bk.tags[int(p)%bucketEntries] = 0, 0
	t.used--
}

// grownBytes is the memory of the next larger table: a quarter more, in pages.
func (t *table) grownBytes() int64 {
	page := int64(arena.PageSize)
	return (t.bytes()*5/4 + page) / page * page
}

// shrunkBytes is the memory of a table that holds the entries at a good load,
// in pages, or that of this one if it is not much too large.
func (t *table) shrunkBytes() int64 {
	if t.used*3 > len(t.buckets)*bucketEntries || t.bytes() <= int64(arena.PageSize) {
		return t.bytes()
	}
	page := int64(arena.PageSize)
	return (int64(t.used)*bucketSize*3/(2*bucketEntries) + page) / page * page
}

// resize moves the entries to a new table of size bytes, which must hold them.
func (t *table) resize(size int64) error {
	mem, err := arena.Anonymous(int(size), size >= arena.HugePageSize)
	if err != nil {
		return fmt.Errorf("cannot grow the index: %w", err)
	}
	bigger := table{buckets: bucketsOf(mem.Bytes()), mem: mem}
	for b := range t.buckets {
		bk := &t.buckets[b]
		for i, w := range bk.words {
			if w != 0 {
				bigger.insert(bk.tags[i], w)
			}
		}
	}
	old := *t
	*t = bigger
	return old.close()
}

// clear removes all entries and returns how many bytes of memory it has given
// back. A table of one page keeps it, unless it is the last time: most maps that are cleared are filled again,
// and to map a page takes longer than to fill it.
func (t *table) clear(last bool) int64 {
	if t.bytes() == int64(arena.PageSize) && !last {
		clear(t.buckets)
		t.used = 0
		return 0
	}
	n := t.bytes()
	if err := t.close(); err != nil {
		panic("BUG: " + err.Error())
	}
	return n
}

// close gives the memory back and leaves an empty table.
func (t *table) close() error {
	mem := t.mem
	*t = table{}
	if mem == nil {
		return nil
	}
	return mem.Close()
}
