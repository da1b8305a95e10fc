package objects

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/record"
	"polder/internal/ended"
	"polder/internal/sizeclass"
)

// Space is the objects of a heap. Init makes it usable.
type Space struct {
	core    *heap.Heap
	words   words
	sleep   sleeper
	caches  []wordCache              // of Logs.Objects, and then of Logs.Streams
	classes atomic.Pointer[[]*Class] // by id; replaced under mu
	most    int                      // bytes of an object's data; immutable
	// maxLocal is the most bytes that a local object has, also one that is being read into. It is immutable.
	maxLocal int
	keeps    atomic.Bool  // there are classes that outlive the process
	lacks    atomic.Int64 // see Lacks

	mu      sync.Mutex
	retired []retiredClass    // classes whose numbers are free, or will be; under mu
	past    ended.Sums[Stats] // of classes that have ended; under mu
}

// Init makes sp the objects of core, whose memory is divided as sz says. With early set, words go far as soon as they
// may, for tests.
func (sp *Space) Init(core *heap.Heap, sz heap.Sizes, early bool) error {
	sp.core = core
	sp.sleep.init(sp, early)
	sp.classes.Store(&[]*Class{})
	if err := sp.words.init(max(sz.Most, sz.Logs)); err != nil {
		return err
	}
	sp.caches = make([]wordCache, 2*sz.Open)
	sp.most = min(sz.SegSize-object.Header, sz.Staging-record.SegmentSize-record.HeaderSize)
	sp.most = min(sp.most, sz.SegSize-object.Header-record.HeaderSize-heap.Unit) // with its size class
	sp.most = sizeclass.Size(sizeclass.Of(sp.most)-1) - record.HeaderSize - heap.Unit
	sp.maxLocal = sz.SegSize - object.Header
	return nil
}

// End frees all words: whoever dereferences a pointer from now on finds that the heap is closed.
func (sp *Space) End() {
	sp.All(func(n uint64, w Word) {
		if !w.Asleep() {
			storeWord(sp.words.at(n), freeWord)
		}
	})
	sp.sleep.end()
}

// Close gives the memory of the words back, unless any word was ever used: pointers outlive the heap, and have to
// find something.
func (sp *Space) Close() error {
	t := &sp.words
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mapping == nil || t.pages.Load() != 0 {
		return nil
	}
	return t.close()
}

// MaxObject is the most bytes that an object can have.
func (sp *Space) MaxObject() int { return sp.most }

// Number is the number of the word p, which At finds again. It is never 0.
func (sp *Space) Number(p *uint64) uint64 { return sp.words.number(p) }

// At is the word of a number.
func (sp *Space) At(n uint64) *uint64 { return sp.words.at(n) }

// Has reports whether p is a word of the heap.
func (sp *Space) Has(p *uint64) bool { return isIn(sp.words.table, p) }

// Taken returns the n adjacent words from word first on. It fails if one of them is not in use.
func (sp *Space) Taken(first uint64, n int) ([]uint64, error) {
	t := &sp.words
	t.mu.Lock()
	defer t.mu.Unlock()
	all := uint64(t.pages.Load()) * WordsPerPage
	if first == 0 || n < 0 || first >= all || uint64(n) > all-first {
		return nil, fmt.Errorf("there are no %d words from %d on", n, first)
	}
	for i := first; i < first+uint64(n); i++ {
		if !t.isTaken(i/WordsPerPage, int(i%WordsPerPage)) {
			return nil, fmt.Errorf("word %d of those from %d on is nobody's", i, first)
		}
	}
	return t.table[first : first+uint64(n) : first+uint64(n)], nil
}

// Generation is how often the word p was freed, in builds with invariants.
func (sp *Space) Generation(p *uint64) uint32 {
	return atomic.LoadUint32(&sp.words.genOf[sp.words.number(p)])
}

// MustServe panics if the pointer of word p cannot be dereferenced in s.
func (sp *Space) MustServe(s *heap.Scope, p *uint64) {
	sp.core.MustBeOpen(s)
	if p != nil && !sp.Has(p) {
		panic("BUG: a far pointer is dereferenced in a scope of another heap")
	}
}

// cacheOf is the cache of words that belongs to an allocation buffer.
func (sp *Space) cacheOf(ol *heap.OpenLog) *wordCache {
	ols, first := sp.core.Logs.Objects, 0
	if ol.Kind == heap.Streamed {
		ols, first = sp.core.Logs.Streams, len(ols)
	}
	return &sp.caches[first+ol.ID&(len(ols)-1)]
}

// All calls fn with every word of the pages that were taken, whether it is in use or not.
func (sp *Space) All(fn func(n uint64, w Word)) {
	for n := range uint64(sp.words.pages.Load()) * WordsPerPage {
		fn(n, Load(&sp.words.table[n]))
	}
}

// Pointers is the number of pointers that have been made and not freed.
func (sp *Space) Pointers() int {
	n := sp.sleep.pointers()
	for _, ols := range [][]heap.OpenLog{sp.core.Logs.Objects, sp.core.Logs.Streams} {
		for i := range ols {
			ols[i].Mu.Lock()
			n -= bits.OnesCount64(sp.cacheOf(&ols[i]).left)
			ols[i].Mu.Unlock()
		}
	}
	return n
}

// Sample looks at up to n random words. It returns how many of them are of local objects, as found, and which part of
// these objects was used since the evacuator last passed over them.
func (sp *Space) Sample(n int) (hot float64, found int) {
	all := int(sp.words.pages.Load()) * WordsPerPage
	if all == 0 {
		return 0, 0
	}
	used := 0
	for range min(n, all) {
		if w := Load(&sp.words.table[rand.IntN(all)]); w.Local() {
			found++
			if w.Coldness() == 0 {
				used++
			}
		}
	}
	return float64(used) / float64(max(found, 1)), found
}

// Audit adds what the words refer to to t. It fails if an object does not agree with its word, or the number of words
// in use with what was counted. Nothing may be under way.
func (sp *Space) Audit(t *heap.Tally) error {
	inUse := 0
	var bad error
	add := func(n uint64, w Word) {
		if w.Asleep() {
			return
		}
		if !w.Free() {
			inUse++
		}
		switch {
		case w.Far():
			t.AddFar(w.FarAddr(), w.FarSize())
		case w.Local():
			o := sp.core.Logs.Object(w.Addr())
			if object.HeadNumber(o.Head()) != n {
				bad = fmt.Errorf("word %d refers to the object of word %d", n, object.HeadNumber(o.Head()))
				return
			}
			t.AddLocal(uint64(w.Addr()-sp.core.Logs.Base-object.Header)/heap.Unit, object.Size(object.HeadLen(o.Head())), false)
			if a := object.TailFar(*o.Tail()); a != 0 {
				t.AddFar(a, object.FarSize(object.HeadLen(o.Head())))
			}
		}
	}
	sp.All(add)
	bytes, all := sp.sleep.audit(add)
	t.Index[heap.Words] = sp.words.pages.Load()*wordPage + bytes
	t.Unsure = t.Unsure || !all || sp.Leaks()
	if bad != nil || !all {
		return bad
	}
	cached := bits.OnesCount64(sp.sleep.cache.left)
	for i := range sp.caches {
		cached += bits.OnesCount64(sp.caches[i].left)
	}
	if n, _ := sp.words.count(); n != inUse+cached {
		return fmt.Errorf("%d words are in use and %d handed out, but counted are %d", inUse, cached, n)
	}
	return nil
}
