package index

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"

	"polder/internal/arena"
)

// BucketEntries is how many places a bucket has.
const BucketEntries = 5

// Bucket is one cache line of a table. An empty place has the word 0.
type Bucket struct {
	Words [BucketEntries]Word
	Tags  [BucketEntries]uint32
	// Over counts the entries whose home is this bucket or one before it, and
	// which lie behind it because it was full. At zero a search ends.
	Over uint32
}

// Table is an open hash table in memory of its own. An entry's home bucket is
// its tag scaled to the number of buckets, so that the tags of successive
// buckets ascend whatever the size of the table: it can grow by any factor
// without looking at a key, and a scan in the order of tags survives growth.
// Not safe for concurrent use; the zero table is empty and has no room.
type Table struct {
	Buckets []Bucket
	mem     *arena.Mapping
	Used    int // entries
}

// Place is the position of an entry in a table.
type Place int

// None is the place of an entry that a table does not have.
const None Place = -1

// Word is the word at p.
func (t *Table) Word(p Place) *Word {
	return &t.Buckets[uint(p)/BucketEntries].Words[uint(p)%BucketEntries]
}

// Touch raises the hot counter of the word at p. A word that is as hot as can be is not stored again: other processors
// may have its line.
func (t *Table) Touch(p Place) {
	w := t.Word(p)
	if hotter := w.Touched(); hotter != *w {
		*w = hotter
	}
}

// Tag is the tag of the entry at p.
func (t *Table) Tag(p Place) uint32 {
	return t.Buckets[uint(p)/BucketEntries].Tags[uint(p)%BucketEntries]
}

// Home is the bucket where a search for tag begins.
func (t *Table) Home(tag uint32) int {
	return int(uint64(tag) * uint64(len(t.Buckets)) >> 32)
}

// FirstTag is the lowest tag whose home is bucket b.
func (t *Table) FirstTag(b int) uint64 {
	n := uint64(len(t.Buckets))
	return (uint64(b)<<32 + n - 1) / n
}

// After is the bucket behind b.
func (t *Table) After(b int) int {
	if b++; b == len(t.Buckets) {
		return 0
	}
	return b
}

// Bytes is the memory of the table.
func (t *Table) Bytes() int64 { return int64(len(t.Buckets)) * bucketSize }

// Places is how many entries there may be.
func (t *Table) Places() int { return len(t.Buckets) * BucketEntries }

// Places is how many places a table of size bytes has.
func Places(size int64) int { return int(size/bucketSize) * BucketEntries }

// Roomy reports whether an insertion leaves the table at a good load.
func (t *Table) Roomy() bool { return t.Used < len(t.Buckets)*BucketEntries*7/8 }

// Full reports whether an insertion must not be tried. The last places stay
// empty, since searches for them grow long.
func (t *Table) Full() bool { return t.Used >= len(t.Buckets)*BucketEntries*31/32 }

// Filled reports whether there is no place left, but for one at which searches end.
func (t *Table) Filled() bool { return t.Used+1 >= len(t.Buckets)*BucketEntries }

// Find returns the entry with this tag whose word agrees with want on
// where it lies.
func (t *Table) Find(tag uint32, want Word) Place {
	if len(t.Buckets) == 0 {
		return None
	}
	b := t.Home(tag)
	for range t.Buckets {
		bk := &t.Buckets[b]
		for i, g := range bk.Tags {
			if g == tag && bk.Words[i] != 0 && bk.Words[i].where() == want.where() {
				return Place(b*BucketEntries + i)
			}
		}
		if bk.Over == 0 {
			break
		}
		b = t.After(b)
	}
	return None
}

// Matches iterates over the entries with this tag.
func (t *Table) Matches(tag uint32) iter.Seq[Place] {
	return func(yield func(Place) bool) {
		if len(t.Buckets) == 0 {
			return
		}
		b := t.Home(tag)
		for range t.Buckets {
			bk := &t.Buckets[b]
			for i, g := range bk.Tags {
				if g == tag && bk.Words[i] != 0 && !yield(Place(b*BucketEntries+i)) {
					return
				}
			}
			if bk.Over == 0 {
				return
			}
			b = t.After(b)
		}
	}
}

// Knows reports whether a word makes tag known.
func (t *Table) Knows(tag uint32) bool {
	for p := range t.Matches(tag) {
		if t.Word(p).Tells() {
			return true
		}
	}
	return false
}

// Alone reports whether no other word than that at p makes its tag known.
func (t *Table) Alone(p Place) bool {
	for q := range t.Matches(t.Tag(p)) {
		if q != p && t.Word(q).Tells() {
			return false
		}
	}
	return true
}

// Soil clears Settled in the words with this tag: the table must not forget them.
func (t *Table) Soil(tag uint32) {
	for p := range t.Matches(tag) {
		*t.Word(p) &^= Settled
	}
}

// Gone returns the place of the word that says that there is no entry with this tag, None if there is none.
func (t *Table) Gone(tag uint32) Place {
	for p := range t.Matches(tag) {
		if t.Word(p).IsGone() {
			return p
		}
	}
	return None
}

// All iterates over all entries. They may be removed meanwhile.
func (t *Table) All() iter.Seq[Place] {
	return func(yield func(Place) bool) {
		for p := range Place(len(t.Buckets) * BucketEntries) {
			if *t.Word(p) != 0 && !yield(p) {
				return
			}
		}
	}
}

// Count is the number of words for which is returns true.
func (t *Table) Count(is func(Word) bool) (n int) {
	for p := range t.All() {
		if is(*t.Word(p)) {
			n++
		}
	}
	return n
}

// Within iterates over the entries with tags from lo up to hi. They may be removed meanwhile.
func (t *Table) Within(lo, hi uint64) iter.Seq[Place] {
	return func(yield func(Place) bool) {
		if len(t.Buckets) == 0 {
			return
		}
		for home := t.Home(uint32(lo)); home < len(t.Buckets) && t.FirstTag(home) < hi; home++ {
			for b, left := home, len(t.Buckets); left > 0; b, left = t.After(b), left-1 {
				bk := &t.Buckets[b]
				for i, g := range bk.Tags {
					if bk.Words[i] != 0 && t.Home(g) == home && uint64(g) >= lo && uint64(g) < hi && !yield(Place(b*BucketEntries+i)) {
						return
					}
				}
				if bk.Over == 0 {
					break
				}
			}
		}
	}
}

// Insert adds an entry. The table must not be full.
func (t *Table) Insert(tag uint32, w Word) {
	b := t.Home(tag)
	for {
		bk := &t.Buckets[b]
		for i, g := range bk.Words {
			if g == 0 {
				bk.Words[i], bk.Tags[i] = w, tag
				t.Used++
				return
			}
		}
		bk.Over++
		b = t.After(b)
	}
}

// Remove deletes the entry at p.
func (t *Table) Remove(p Place) {
	at := int(p) / BucketEntries
	for b := t.Home(t.Tag(p)); b != at; b = t.After(b) {
		t.Buckets[b].Over--
	}
	bk := &t.Buckets[at]
	bk.Words[int(p)%BucketEntries], bk.Tags[int(p)%BucketEntries] = 0, 0
	t.Used--
}

// Tighten fills the place of an entry that was removed at p. It moves there an entry that lies behind that bucket
// because the buckets from its home to there were full; then it fills the place of the moved entry in the same way,
// and so on. Otherwise, in a table in which entries come and go, entries would lie ever farther from their homes, and
// a search would go through most of the table. Other entries have other places afterwards, so nobody may be
// iterating.
func (t *Table) Tighten(p Place) {
	for b := int(p) / BucketEntries; t.Buckets[b].Over > 0; {
		to := slices.Index(t.Buckets[b].Words[:], 0)
		if to < 0 {
			return
		}
		c, from := t.displaced(b)
		src, dst := &t.Buckets[c], &t.Buckets[b]
		dst.Words[to], dst.Tags[to] = src.Words[from], src.Tags[from]
		src.Words[from], src.Tags[from] = 0, 0
		for ; b != c; b = t.After(b) {
			t.Buckets[b].Over--
		}
	}
}

// displaced returns the first entry behind bucket b whose home is b or before it. There is one, since the Over of b
// is not 0.
func (t *Table) displaced(b int) (c, i int) {
	for away := 1; ; away++ {
		c = (b + away) % len(t.Buckets)
		for i, w := range t.Buckets[c].Words {
			if w == 0 {
				continue
			}
			if from := c - t.Home(t.Buckets[c].Tags[i]); from >= away || from < 0 && from+len(t.Buckets) >= away {
				return c, i
			}
		}
	}
}

// GrownBytes is the memory of the next larger table: a quarter more, in pages.
func (t *Table) GrownBytes() int64 {
	page := int64(arena.PageSize)
	return (t.Bytes()*5/4 + page) / page * page
}

// TableBytes is the memory of a table that holds n entries at a good load, in pages.
func TableBytes(n int) int64 {
	page := int64(arena.PageSize)
	return (int64(n)*bucketSize*3/(2*BucketEntries) + page) / page * page
}

// DenseBytes is the memory of the smallest table that holds n entries without being full, in pages.
func DenseBytes(n int) int64 {
	page := int64(arena.PageSize)
	return (int64(n)*bucketSize*32/(31*BucketEntries) + page) / page * page
}

// ShrunkBytes is the memory of a table that holds the entries at a good load,
// in pages, or that of this one if it is not much too large.
func (t *Table) ShrunkBytes() int64 {
	if t.Used*3 > len(t.Buckets)*BucketEntries || t.Bytes() <= int64(arena.PageSize) {
		return t.Bytes()
	}
	return TableBytes(t.Used)
}

// Sample looks at some n buckets, and estimates from them how many bytes local entries have, and those of them that were
// used of late.
func (t *Table) Sample(n int) (local, hot float64) {
	all := len(t.Buckets)
	step := max(all/n, 1)
	if all == 0 {
		return 0, 0
	}
	// Where an entry lies follows from the hash of its key, so that buckets at equal distances are as good as random
	// ones.
	for b := rand.IntN(step); b < all; b += step {
		for _, w := range t.Buckets[b].Words {
			if w != 0 && !w.Far() {
				n := float64(w.Size() * step)
				local += n
				if w.Hot() > 0 {
					hot += n
				}
			}
		}
	}
	return local, hot
}

// Resize moves the entries to a new table of size bytes, which must hold them.
func (t *Table) Resize(size int64) error {
	mem, err := arena.Anonymous(int(size), size >= arena.HugePageSize)
	if err != nil {
		return fmt.Errorf("cannot grow the index: %w", err)
	}
	bigger := Table{Buckets: bucketsOf(mem.Bytes()), mem: mem}
	for b := range t.Buckets {
		bk := &t.Buckets[b]
		for i, w := range bk.Words {
			if w != 0 {
				bigger.Insert(bk.Tags[i], w)
			}
		}
	}
	old := *t
	*t = bigger
	return old.Close()
}

// Clear removes all entries and returns how many bytes of memory it has given back. A table of one page keeps its
// page, unless last is set: most maps that are cleared are filled again, and to map a page takes longer than to fill
// it.
func (t *Table) Clear(last bool) int64 {
	if t.Bytes() == int64(arena.PageSize) && !last {
		clear(t.Buckets)
		t.Used = 0
		return 0
	}
	n := t.Bytes()
	if err := t.Close(); err != nil {
		panic("BUG: " + err.Error())
	}
	return n
}

// Close gives the memory back and leaves an empty table.
func (t *Table) Close() error {
	mem := t.mem
	*t = Table{}
	if mem == nil {
		return nil
	}
	return mem.Close()
}

// Unknown is how many entries of leaf are not lost and have tags of which t knows nothing.
func (t *Table) Unknown(leaf Leaf) (n int) {
	for i := range leaf.Len() {
		if s := leaf.At(i); !s.Word.IsLost() && !t.Knows(s.Tag) {
			n++
		}
	}
	return n
}

// Agrees reports whether t still has the same words as was, which are the words that t had of one tag, in the order
// of settled words; and whether all of them can be settled, and busy holds for none. It also returns how many of them
// are entries and not Gone.
func (t *Table) Agrees(was []Slot, busy func(Word) bool) (live int, same bool) {
	var now [8]Word
	n := 0
	for p := range t.Matches(was[0].Tag) {
		w := *t.Word(p)
		if !w.Tells() {
			continue
		}
		if n == len(now) || !w.Settles() && !w.IsGone() || busy(w) {
			return 0, false
		}
		now[n] = w.AsSettled()
		n++
	}
	slices.Sort(now[:n])
	if same = n == len(was); !same {
		return 0, false
	}
	for i := range was {
		same = same && now[i] == was[i].Word.AsSettled()
		if !was[i].Word.IsGone() {
			live++
		}
	}
	return live, same
}
