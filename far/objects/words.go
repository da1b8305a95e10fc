package objects

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"polder/far/heap"
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
	spare []uint64 // for every 64 groups which have words to spare, under mu
	first int      // none of spare before it has any, under mu
	whole int      // groups of which no word is in use, under mu
	inUse int      // under mu
}

const (
	WordSize     = 8
	wordGroup    = 64 // words that are handed out together
	WordsPerPage = 4096 / WordSize
	// wordPage is what a page of words takes of the budget: the page, its
	// bits in taken and spare, and its state.
	wordPage = pageBytes + pageGroups*8 + pageGroups/8 + pageStateSize

	pageGroups = WordsPerPage / wordGroup

	// wordCost is what a new word takes of what a scope may take.
	wordCost = (wordPage + WordsPerPage - 1) / WordsPerPage
)

func (t *words) init(max int64) error {
	n := min(int(max/WordSize)&^(WordsPerPage-1), maxWords)
	m, err := arena.Anonymous(n*WordSize, n*WordSize >= arena.HugePageSize)
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
func (t *words) has(n uint64) bool { return n != 0 && n < uint64(t.pages.Load())*WordsPerPage }

// wordCache is words that were handed out together and have not been used yet.
// It is guarded by the mutex of the allocation buffer that has it.
type wordCache struct {
	first uint64 // number of the first of the group
	left  uint64 // a bit for each that is left
}

// next returns the number of an unused word of c, filling it from t if it is
// empty, on behalf of who. It fails as logs.growIndex does.
func (t *words) next(c *wordCache, l *heap.Logs, who heap.Claim) (uint64, error) {
	if c.left == 0 {
		if err := t.refill(c, l, who); err != nil {
			return 0, err
		}
	}
	i := bits.TrailingZeros64(c.left)
	c.left &^= 1 << i
	return c.first + uint64(i), nil
}

func (t *words) refill(c *wordCache, l *heap.Logs, who heap.Claim) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.first < len(t.spare) && t.spare[t.first] == 0 {
		t.first++
	}
	if t.first == len(t.spare) {
		if err := t.grow(1, l, who); err != nil {
			return err
		}
	}
	g := t.first*64 + bits.TrailingZeros64(t.spare[t.first])
	c.first, c.left = uint64(g)*wordGroup, ^t.taken[g]
	t.inUse += bits.OnesCount64(c.left)
	t.take(g, ^uint64(0))
	return nil
}

// take makes words of group g those that are in use. t.mu must be held.
func (t *words) take(g int, words uint64) {
	was := t.taken[g]
	t.taken[g] = words
	if words == ^uint64(0) {
		t.spare[g/64] &^= 1 << (g % 64)
	} else {
		t.spare[g/64] |= 1 << (g % 64)
		t.first = min(t.first, g/64)
	}
	switch {
	case was == 0 && words != 0:
		t.whole--
	case was != 0 && words == 0:
		t.whole++
	}
}

// grow takes n more pages on behalf of who. t.mu must be held.
func (t *words) grow(n int, l *heap.Logs, who heap.Claim) error {
	pages := int(t.pages.Load())
	if (pages+n)*WordsPerPage > len(t.table) {
		return fmt.Errorf("cannot make a pointer: all %d words are in use: %w", len(t.table), heap.ErrMetadataFull)
	}
	if err := l.GrowIndex(heap.Words, int64(n)*wordPage, who); err != nil {
		return err
	}
	for i := pages * WordsPerPage; i < (pages+n)*WordsPerPage; i++ {
		t.table[i] = uint64(freeWord)
	}
	t.spare = append(t.spare, make([]uint64, ((pages+n)*pageGroups+63)/64-len(t.spare))...)
	for g := pages * pageGroups; g < (pages+n)*pageGroups; g++ {
		t.taken = append(t.taken, 0)
		t.spare[g/64] |= 1 << (g % 64)
		t.whole++
	}
	t.first = min(t.first, pages*pageGroups/64)
	if pages == 0 {
		t.take(0, 1) // word 0
	}
	t.pages.Add(int64(n))
	return nil
}

// run hands out n words in a row, at least one, in groups of their own.
func (t *words) run(n int, l *heap.Logs) (first uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pages.Load() == 0 {
		if err := t.grow(1, l, heap.ForMutator); err != nil { // so that word 0 is not in it
			return 0, err
		}
	}
	groups := (n + wordGroup - 1) / wordGroup
	g, missing := t.stretch(groups)
	if missing > 0 {
		if err := t.grow((missing+pageGroups-1)/pageGroups, l, heap.ForMutator); err != nil {
			return 0, err
		}
	}
	first = uint64(g) * wordGroup
	for left := n; left > 0; g, left = g+1, left-wordGroup {
		t.take(g, ^uint64(0)>>max(wordGroup-left, 0))
	}
	t.inUse += n
	return first, nil
}

// stretch returns the first of n groups in a row of which no word is in use, and
// how many of them the table has to grow by. t.mu must be held.
func (t *words) stretch(n int) (g, missing int) {
	if t.whole < n {
		g = len(t.taken)
		for g > 0 && t.taken[g-1] == 0 && !t.hidden(g-1) {
			g--
		}
		return g, n - (len(t.taken) - g)
	}
	free := 0
	for g, words := range t.taken {
		if free++; words != 0 || t.hidden(g) {
			free = 0
		}
		if free == n {
			return g + 1 - n, 0
		}
	}
	return len(t.taken) - free, n - free
}

// put takes word n back, which nobody may use any more and which is marked
// free.
func (t *words) put(n uint64) {
	t.generation(n)
	t.mu.Lock()
	defer t.mu.Unlock()
	g := int(n / wordGroup)
	t.take(g, t.taken[g]&^(1<<(n%wordGroup)))
	t.inUse--
}

// generation is called when word n is freed.
func (t *words) generation(n uint64) {
	if invariants.Enabled {
		atomic.AddUint32(&t.genOf[n], 1)
	}
}

// count returns the number of words in use and those in whole.
func (t *words) count() (inUse int, pages int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inUse, t.pages.Load()
}

// page is the words of a page.
func (t *words) page(n uint64) []uint64 { return t.table[n*WordsPerPage : (n+1)*WordsPerPage] }

// isTaken reports whether word i of a page is in use. t.mu must be held.
func (t *words) isTaken(page uint64, i int) bool {
	return t.taken[page*pageGroups+uint64(i/wordGroup)]>>(i%wordGroup)&1 != 0
}

// agrees reports whether those words of a page are in use that are not free. t.mu must be held.
func (t *words) agrees(page uint64, ws *[WordsPerPage]uint64) bool {
	for i, w := range ws {
		if t.isTaken(page, i) == Word(w).Free() {
			return false
		}
	}
	return true
}

// hide has no word of a page be handed out. t.mu must be held.
func (t *words) hide(page uint64) {
	for g := page * pageGroups; g < (page+1)*pageGroups; g++ {
		t.spare[g/64] &^= 1 << (g % 64)
		if t.taken[g] == 0 {
			t.whole--
		}
	}
}

// show undoes hide. t.mu must be held.
func (t *words) show(page uint64) {
	for g := page * pageGroups; g < (page+1)*pageGroups; g++ {
		if t.taken[g] == 0 {
			t.whole++
		}
		if t.taken[g] != ^uint64(0) {
			t.spare[g/64] |= 1 << (g % 64)
			t.first = min(t.first, int(g/64))
		}
	}
}

// giveBack takes back word n of a page that is hidden. t.mu must be held.
func (t *words) giveBack(n uint64) {
	t.generation(n)
	t.taken[n/wordGroup] &^= 1 << (n % wordGroup)
	t.inUse--
}

// hidden reports whether group g, of which no word is in use, is in a page that is asleep. t.mu must be held.
func (t *words) hidden(g int) bool { return t.spare[g/64]>>(g%64)&1 == 0 }
