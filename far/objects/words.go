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

// words is the table of the words of pointers. It lies in off-heap memory, takes pages of it as they are needed, and
// never moves anything. A word's number is its place in the table, and is what headers of objects and Refs hold.
// Nobody has word 0.
type words struct {
	mapping *arena.Mapping
	table   []uint64
	gens    *arena.Mapping // how often each word was freed, with invariants only
	genOf   []uint32

	pages atomic.Int64 // taken from the front; changes under mu

	mu    sync.Mutex
	taken []uint64 // which words of each group of 64 are in use; under mu
	spare []uint64 // which groups of each 64 have words to hand out; under mu
	first int      // spare has no bit set before this index; under mu
	whole int      // groups of which no word is in use, and that are not hidden; under mu
	inUse int      // words in use; under mu

	closed bool // the memory of the table was given back; under mu
}

const (
	WordSize     = 8
	wordGroup    = 64 // words that are handed out together
	WordsPerPage = 4096 / WordSize
	// wordPage is what a page of words takes of the budget: the page, its
	// bits in taken and spare, and its state.
	wordPage = pageBytes + pageGroups*8 + pageGroups/8 + pageStateSize

	pageGroups = WordsPerPage / wordGroup

	// wordCost is the bytes by which a new word uses up what its scope may take.
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

// close gives the memory of the table back. t.mu must be held.
func (t *words) close() error {
	t.closed = true
	err := t.mapping.Close()
	if t.gens != nil {
		err = errors.Join(err, t.gens.Close())
	}
	return err
}

// maxWords is how many numbers of words there can be.
const maxWords = 1 << 40

// number is the number of a word of the table.
func (t *words) number(p *uint64) uint64 { return wordOffset(t.table, p) }

// at is the word of a number.
func (t *words) at(n uint64) *uint64 { return &t.table[n] }

// has reports whether there is a word n.
func (t *words) has(n uint64) bool { return n != 0 && n < uint64(t.pages.Load())*WordsPerPage }

// wordCache is words that were handed out together and have not been used yet. The mutex of the allocation buffer
// that has the cache guards it; sleeper.mu guards the sleeper's.
type wordCache struct {
	first uint64 // number of the first of the group
	left  uint64 // a bit for each word that is left
}

// next takes an unused word from c and returns its number. If c is empty, next first refills it from t, on behalf of
// who, which fails as grow does.
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

// take sets which words of group g are in use to the bits of words. t.mu must be held.
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
	if t.closed {
		return heap.ErrClosed
	}
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

// run hands out n adjacent words, n at least 1, from groups of which no word is in use.
func (t *words) run(n int, l *heap.Logs) (first uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pages.Load() == 0 {
		if err := t.grow(1, l, heap.ForMutator); err != nil { // so that the run cannot begin with word 0
			return 0, err
		}
	}
	groups := (n + wordGroup - 1) / wordGroup
	g, missing := t.stretch(groups)
	if left := len(t.table) - g*wordGroup; n > left {
		return 0, fmt.Errorf("cannot make %d pointers in a row: of %d words, %d are in use, and no more than %d are left in a row at the end: %w",
			n, len(t.table), t.inUse, left, heap.ErrMetadataFull)
	}
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

// stretch finds n adjacent groups of which no word is in use. It returns the first of them, and by how many groups
// the table has to grow so that all of them exist. t.mu must be held.
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

// put takes word n back. The word is marked free, and nobody may use it any more.
func (t *words) put(n uint64) {
	t.generation(n)
	t.mu.Lock()
	defer t.mu.Unlock()
	g := int(n / wordGroup)
	t.take(g, t.taken[g]&^(1<<(n%wordGroup)))
	t.inUse--
}

// generation counts, in builds with invariants, that word n is freed.
func (t *words) generation(n uint64) {
	if invariants.Enabled {
		atomic.AddUint32(&t.genOf[n], 1)
	}
}

// count returns the number of words in use and the number of pages that were taken.
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

// agrees reports whether the table agrees with ws, the words of a page: exactly those that are not free are in use.
// t.mu must be held.
func (t *words) agrees(page uint64, ws *[WordsPerPage]uint64) bool {
	for i, w := range ws {
		if t.isTaken(page, i) == Word(w).Free() {
			return false
		}
	}
	return true
}

// hide keeps the words of a page from being handed out. t.mu must be held.
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

// hidden reports whether group g, of which no word is in use, belongs to a page that is asleep. t.mu must be held.
func (t *words) hidden(g int) bool { return t.spare[g/64]>>(g%64)&1 == 0 }
