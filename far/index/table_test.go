package index

import (
	"math/rand/v2"
	"testing"

	"polder/internal/arena"
)

func TestTableKeepsWhatItIsGiven(t *testing.T) {
	var tb Table
	defer tb.Close()
	if err := tb.Resize(4096); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 3))
	want := map[Word]uint32{}
	for i := range 20000 {
		switch {
		case len(want) > 0 && r.IntN(3) == 0:
			for w, tag := range want {
				p := tb.Find(tag, w)
				if p == None {
					t.Fatalf("step %d: word %#x has gone", i, w)
				}
				tb.Remove(p)
				if r.IntN(2) == 0 {
					tb.Tighten(p)
				}
				delete(want, w)
				break
			}
		default:
			if !tb.Roomy() {
				if err := tb.Resize(tb.GrownBytes()); err != nil {
					t.Fatal(err)
				}
			}
			tag := r.Uint32()
			if r.IntN(4) == 0 {
				tag = 1<<32 - 1 - tag%3 // the end of the table, and equal ones
			}
			w := NewWord(uint64(i), 100, 0)
			tb.Insert(tag, w)
			want[w] = tag
		}
	}
	for w, tag := range want {
		p := tb.Find(tag, w)
		if p == None || *tb.Word(p) != w || tb.Tag(p) != tag {
			t.Fatalf("word %#x has gone", w)
		}
		tb.Remove(p)
		delete(want, w)
		if size := tb.ShrunkBytes(); size != tb.Bytes() {
			if err := tb.Resize(size); err != nil {
				t.Fatal(err)
			}
			for w, tag := range want {
				if tb.Find(tag, w) == None {
					t.Fatalf("word %#x has gone as the table shrank", w)
				}
			}
		}
	}
	if tb.Bytes() != 4096 {
		t.Errorf("%d bytes are left", tb.Bytes())
	}
	if tb.Used != 0 {
		t.Errorf("%d entries are left", tb.Used)
	}
	for b := range tb.Buckets {
		if tb.Buckets[b].Over != 0 {
			t.Errorf("bucket %d says that %d entries lie behind it", b, tb.Buckets[b].Over)
		}
	}
}

// In a table in which entries come and go searches stay about as short as in one that has just been filled.
func TestSearchesStayShortWhereEntriesComeAndGo(t *testing.T) {
	var tb Table
	defer tb.Close()
	if err := tb.Resize(64 << 10); err != nil {
		t.Fatal(err)
	}
	buckets := func() (n int) { // that searches for absent entries go through, one for each home
		for home := range tb.Buckets {
			for b := home; ; b = tb.After(b) {
				n++
				if tb.Buckets[b].Over == 0 {
					break
				}
			}
		}
		return n
	}
	r := rand.New(rand.NewPCG(5, 6))
	var present []Place
	fill := func() {
		for i := uint64(0); tb.Roomy(); i++ {
			tb.Insert(r.Uint32(), NewWord(i, 100, 0))
		}
	}
	fill()
	fresh := buckets()
	for range 50 {
		present = present[:0]
		for p := range tb.All() {
			present = append(present, p)
		}
		r.Shuffle(len(present), func(i, j int) { present[i], present[j] = present[j], present[i] })
		for _, p := range present[:len(present)/8] {
			if *tb.Word(p) != 0 { // it may have been moved
				tb.Remove(p)
				tb.Tighten(p)
			}
		}
		fill()
	}
	if got := buckets(); got > 2*fresh {
		t.Errorf("searches in %d buckets went through %d when the table had been filled, and go through %d", len(tb.Buckets), fresh, got)
	}
}

func TestAClearedTableIsEmptyAndKeepsAPageAtMost(t *testing.T) {
	page := int64(arena.PageSize)
	for _, c := range []struct{ size, left int64 }{{0, 0}, {page, page}, {3 * page, 0}} {
		var tb Table
		defer tb.Close()
		if c.size > 0 {
			if err := tb.Resize(c.size); err != nil {
				t.Fatal(err)
			}
		}
		for i := range tb.Buckets { // more than its bucket takes
			tb.Insert(7, NewWord(uint64(i), 1, 0))
		}
		if got, want := tb.Clear(false), c.size-c.left; got != want {
			t.Errorf("a table of %d bytes gives back %d, want %d", c.size, got, want)
		}
		if got := tb.Bytes(); got != c.left {
			t.Errorf("a table of %d bytes keeps %d, want %d", c.size, got, c.left)
		}
		for range tb.All() {
			t.Errorf("a table of %d bytes has an entry left", c.size)
		}
		for b := range tb.Buckets {
			if tb.Used != 0 || tb.Buckets[b] != (Bucket{}) {
				t.Fatalf("a table of %d bytes keeps bucket %d as %+v, and says that %d are used", c.size, b, tb.Buckets[b], tb.Used)
			}
		}
	}
}

// TestADenseTableIsTheSmallestThatIsNotFull, whatever it holds.
func TestADenseTableIsTheSmallestThatIsNotFull(t *testing.T) {
	for _, n := range []int{0, 1, 309, 310, 311, 5000, 54321} {
		var tb Table
		if err := tb.Resize(DenseBytes(n)); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			tb.Insert(rand.Uint32(), NewWord(uint64(i), 1, 0))
		}
		if tb.Full() {
			t.Errorf("a table of %d bytes for %d entries is full", DenseBytes(n), n)
		}
		if less := DenseBytes(n) - int64(arena.PageSize); less > 0 && n < Places(less)*31/32 {
			t.Errorf("%d entries have a table of %d bytes, and %d would do", n, DenseBytes(n), less)
		}
		if err := tb.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTableTakes16BytesAnEntry(t *testing.T) {
	var tb Table
	defer tb.Close()
	var bytes, entries float64
	for i := range 200000 {
		if !tb.Roomy() {
			if err := tb.Resize(tb.GrownBytes()); err != nil {
				t.Fatal(err)
			}
		}
		tb.Insert(rand.Uint32(), NewWord(uint64(i), 1, 0))
		if i > 20000 { // beyond the grain of pages
			bytes += float64(tb.Bytes())
			entries += float64(tb.Used)
		}
	}
	if got := bytes / entries; got > 17 {
		t.Errorf("got %.1f bytes an entry, want 17 at most", got)
	}
}
