package pager

import (
	"math/rand/v2"
	"testing"
)

// memoryOf is so many frames, of which none is kept free, with a policy; pages come to them in an order.
type memoryOf struct {
	*policy
	pages  []int
	index  map[int]uint32 // as mapping.index
	free   []uint32
	misses int
}

func newMemoryOf(frames int) *memoryOf {
	m := &memoryOf{policy: newPolicy(frames, 0, frames/16), pages: make([]int, frames), index: map[int]uint32{}}
	for at := range frames {
		m.free = append(m.free, uint32(at))
	}
	return m
}

func (m *memoryOf) use(page int) {
	was := m.index[page]
	if resident(was) {
		return
	}
	m.misses++
	if len(m.free) == 0 {
		at := m.next()
		m.chose(at)
		m.index[m.pages[at]] = m.gone(at)
		m.free = append(m.free, at)
	}
	at := m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	m.pages[at], m.index[page] = page, at+1
	m.came(at, was)
}

// TestWhatIsInALoopStays, as far as there is memory, if the loop is too large; and what is used often stays beside what
// is used once. The oldest page is another matter: it is the one that the loop needs next.
func TestWhatIsInALoopStays(t *testing.T) {
	const frames, uses = 2048, 16 * 4096
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name        string
		page        func(i int) int
		atMost      int // misses
		oldestFirst int // misses if the oldest page goes first
	}{
		{"a loop of twice the memory", func(i int) int { return i % 4096 }, uses * 2 / 3, uses},
		{"a loop by steps", func(i int) int { return i * 7 % 4096 }, uses * 2 / 3, uses},
		{"a loop of little more than the memory", func(i int) int { return i % 2200 }, uses * 25 / 100, uses},
		{"one loop, then another that there is memory for", func(i int) int {
			if i < uses/2 {
				return i % 4096
			}
			return 1<<20 + i%1900
		}, uses * 4 / 10, uses/2 + 1900},
		{"a scan beside a few pages that are used often", func(i int) int {
			if i%2 == 0 {
				return 1<<20 + i
			}
			return random.IntN(1000)
		}, uses * 60 / 100, uses * 65 / 100},
		{"at random", func(i int) int { return random.IntN(4096) }, uses * 53 / 100, uses * 53 / 100},
	} {
		m := newMemoryOf(frames)
		for i := range uses {
			m.use(c.page(i))
		}
		t.Logf("%s: %d of %d uses find no page", c.name, m.misses, uses)
		if m.misses > c.atMost {
			t.Errorf("%s: %d of %d uses find no page, want at most %d (with the oldest page evicted it would be some %d)", c.name, m.misses, uses, c.atMost, c.oldestFirst)
		}
	}
}

// TestThePolicyComesToAllPages if it is asked again and again because none of them can be evicted.
func TestThePolicyComesToAllPages(t *testing.T) {
	m := newMemoryOf(1024)
	for page := range 3000 {
		m.use(page)
	}
	for range 3 {
		said := map[uint32]bool{}
		for range 2 * 1024 {
			said[m.next()] = true
		}
		if len(said) != 1024 {
			t.Errorf("it has said %d of 1024 pages", len(said))
		}
		at := m.next()
		m.chose(at)
		m.stays(at)
	}
}

// TestOfThoseThatAreChosenTogetherFewWereKept, also where there is one more of those than may be: all but one are young.
func TestOfThoseThatAreChosenTogetherFewWereKept(t *testing.T) {
	m := newMemoryOf(1024)
	for page := range 1024 {
		m.use(page)
	}
	m.next() // makes as many kept as may be
	at := m.at[m.end()].next
	m.forget(at)
	m.become(at, kept)
	wereKept := 0
	for range 64 {
		at := m.next()
		if m.at[at].is == kept {
			wereKept++
		}
		m.chose(at)
	}
	if wereKept < 1 || wereKept > 64/sample+2 {
		t.Errorf("%d of 64 pages that are chosen together were kept, want one too many and one of %d", wereKept, sample)
	}
}

// TestALoopOverAMappingFindsAPartOfIt: the mapping asks its policy, and tells it all that happens.
func TestALoopOverAMappingFindsAPartOfIt(t *testing.T) {
	s, addr := newPager(t, 64, Config{Size: 8 << 20, Frames: 4 << 20})
	const count, rounds = 2048, 4
	r := mapMemory(t, addr, count*4096, count/2*4096)
	b := []byte{1}
	for page := range int64(count) {
		if _, err := r.WriteAt(b, page*4096); err != nil {
			t.Fatal(err)
		}
	}
	before := s.stats.evicted.Load()
	for range rounds {
		for page := range int64(count) {
			if _, err := r.ReadAt(b, page*4096); err != nil || b[0] != 1 {
				t.Fatalf("page %d has %d: %v", page, b[0], err)
			}
		}
	}
	if n := s.stats.evicted.Load() - before; n > rounds*count*95/100 {
		t.Errorf("%d pages were evicted in %d rounds over %d pages, of which half may be local", n, rounds, count)
	} else {
		t.Logf("%d pages were evicted in %d rounds over %d pages", n, rounds, count)
	}
}
