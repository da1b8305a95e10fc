package far

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"polder/internal/arena"
	"polder/internal/invariants"
)

// words is the table of the words of pointers: off-heap memory of which pages
// are taken as they are needed, and in which nothing ever moves. A word's
// number is its place in the table, and is what headers of objects and Refs
// hold; word 0 is nobody's.
type words struct {
	mapping *arena.Mapping
	table   []uint64
	gens    *arena.Mapping // how often each was freed, with invariants only
	genOf   []uint32

	pages atomic.Int64 // taken from the front; changes under mu

	mu    sync.Mutex
	taken []uint64 // for every group of 64 words which are in use, under mu
	spare []uint32 // groups that have words to spare, under mu
	inUse int      // under mu
}

const (
	wordSize     = 8
	wordGroup    = 64 // words that are handed out together
	wordsPerPage = 4096 / wordSize
	// wordPage is what a page of words takes of the budget: the page, and its
	// bits in taken and spare.
	wordPage = 4096 + wordsPerPage/wordGroup*12
	// wordCost is what a new word takes of what a scope may take.
	wordCost = (wordPage + wordsPerPage - 1) / wordsPerPage
)

func (t *words) init(max int64) error {
	n := min(int(max/wordSize)&^(wordsPerPage-1), maxWords)
	m, err := arena.Anonymous(n*wordSize, n*wordSize >= arena.HugePageSize)
	if err != nil {
		return err
	}
	t.mapping, t.table = m, wordsOf(m.Bytes())
	if invariants.Enabled {
		if t.gens, err = arena.Anonymous(n*4, false); err != nil {
			return err
		}
		t.genOf = gensOf(t.gens.Bytes())
	}
	return nil
}

func (t *words) close() error {
	err := t.mapping.Close()
	if t.gens != nil {
		err = errors.Join(err, t.gens.Close())
	}
	return err
}

// maxWords is how many numbers of words there are.
const maxWords = 1 << 40

// number is the number of a word of the table.
func (t *words) number(p *uint64) uint64 { return wordOffset(t.table, p) }

// at is the word of a number.
func (t *words) at(n uint64) *uint64 { return &t.table[n] }

// has reports whether there is a word n.
func (t *words) has(n uint64) bool { return n != 0 && n < uint64(t.pages.Load())*wordsPerPage }

// wordCache is words that were handed out together and have not been used yet.
// It is guarded by the mutex of the allocation buffer that has it.
type wordCache struct {
	first uint64 // number of the first of the group
	left  uint64 // a bit for each that is left
}

// next returns the number of an unused word of c, filling it from t if it is
// empty, on behalf of who. It fails as logs.growIndex does.
func (t *words) next(c *wordCache, l *logs, who claim) (uint64, error) {
	if c.left == 0 {
		if err := t.refill(c, l, who); err != nil {
			return 0, err
		}
	}
	i := bits.TrailingZeros64(c.left)
	c.left &^= 1 << i
	return c.first + uint64(i), nil
}

func (t *words) refill(c *wordCache, l *logs, who claim) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.spare) == 0 {
		if err := t.grow(1, l, who); err != nil {
			return err
		}
		for g := len(t.taken) - 1; g >= len(t.taken)-wordsPerPage/wordGroup; g-- {
			t.spare = append(t.spare, uint32(g))
		}
	}
	g := t.spare[len(t.spare)-1]
	t.spare = t.spare[:len(t.spare)-1]
	c.first, c.left = uint64(g)*wordGroup, ^t.taken[g]
	t.inUse += bits.OnesCount64(c.left)
	t.taken[g] = ^uint64(0)
	return nil
}

// grow takes n more pages on behalf of who. t.mu must be held.
func (t *words) grow(n int, l *logs, who claim) error {
	pages := int(t.pages.Load())
	if (pages+n)*wordsPerPage > len(t.table) {
		return fmt.Errorf("cannot make a pointer: all %d words are in use: %w", len(t.table), ErrFull)
	}
	if err := l.growIndex(int64(n)*wordPage, who); err != nil {
		return err
	}
	for range n * wordsPerPage / wordGroup {
		t.taken = append(t.taken, 0)
	}
	if pages == 0 {
		t.taken[0] = 1 // word 0
	}
	for i := pages * wordsPerPage; i < (pages+n)*wordsPerPage; i++ {
		t.table[i] = uint64(freeWord)
	}
	t.pages.Add(int64(n))
	return nil
}

// run hands out n words in a row, in groups of their own.
func (t *words) run(n int, l *logs) (first uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pages := (n + wordsPerPage - 1) / wordsPerPage
	if t.pages.Load() == 0 {
		if err := t.grow(1, l, forMutator); err != nil { // so that word 0 is not in it
			return 0, err
		}
		for g := range wordsPerPage / wordGroup {
			t.spare = append(t.spare, uint32(g))
		}
	}
	if err := t.grow(pages, l, forMutator); err != nil {
		return 0, err
	}
	g := len(t.taken) - pages*wordsPerPage/wordGroup
	first = uint64(g) * wordGroup
	for left := n; g < len(t.taken); g, left = g+1, left-wordGroup {
		switch {
		case left >= wordGroup:
			t.taken[g] = ^uint64(0)
		case left > 0:
			t.taken[g] = 1<<left - 1
			t.spare = append(t.spare, uint32(g))
		default:
			t.spare = append(t.spare, uint32(g))
		}
	}
	t.inUse += n
	return first, nil
}

// put takes word n back, which nobody may use any more and which is marked
// free.
func (t *words) put(n uint64) {
	if invariants.Enabled {
		atomic.AddUint32(&t.genOf[n], 1)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g := n / wordGroup
	if t.taken[g] == ^uint64(0) {
		t.spare = append(t.spare, uint32(g))
	}
	t.taken[g] &^= 1 << (n % wordGroup)
	t.inUse--
}

// count returns the number of words in use and those in whole.
func (t *words) count() (inUse int, pages int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inUse, t.pages.Load()
}

// pointers is the number of pointers that have been made and not freed.
func (h *Heap) pointers() int {
	n, _ := h.words.count()
	for _, ols := range [][]openLog{h.logs.objects, h.logs.streams} {
		for i := range ols {
			ols[i].mu.Lock()
			n -= bits.OnesCount64(h.cacheOf(&ols[i]).left)
			ols[i].mu.Unlock()
		}
	}
	return n
}

// all calls fn for every word that has been taken from the table.
func (t *words) all(fn func(n uint64, w pword)) {
	for n := range uint64(t.pages.Load()) * wordsPerPage {
		fn(n, loadWord(&t.table[n]))
	}
}
