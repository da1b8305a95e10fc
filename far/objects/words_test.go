package objects

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"polder/far/heap"
	"polder/far/store"
)

// newWords makes a table, and logs that it takes its pages from.
func newWords(t *testing.T) (*words, *heap.Logs) {
	t.Helper()
	core, sp := new(heap.Heap), new(Space)
	cfg := heap.Config{Local: 8 << 20, MaxLocal: 8 << 20}
	st := store.NewMemStore(store.MinSegmentSize, 1)
	sz, err := heap.SizesFor(st, cfg)
	if err == nil {
		err = core.Init(st, cfg, sz, nil) // and it is not started: words need nothing but the account of the budget
	}
	if err == nil {
		err = sp.Init(core, sz, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(sp.words.close(), core.Unmap()); err != nil {
			t.Error(err)
		}
	})
	return &sp.words, &core.Logs
}

// A heap that is closed gives back a table of which nobody has used a word. Whoever makes a pointer meanwhile must not
// write to it.
func TestATableThatWasGivenBackHandsOutNoWords(t *testing.T) {
	ws, l := newWords(t)
	if err := ws.close(); err != nil {
		t.Fatal(err)
	}
	if n, err := ws.run(10, l); !errors.Is(err, heap.ErrClosed) {
		t.Errorf("a row: got word %d, %v, want ErrClosed", n, err)
	}
	if n, err := ws.next(new(wordCache), l, heap.ForMutator); !errors.Is(err, heap.ErrClosed) {
		t.Errorf("got word %d, %v, want ErrClosed", n, err)
	}
}

// Words that are in use are nobody else's, and those that were given back are used
// again, by themselves and in rows.
func TestWordsAreHandedOutOnce(t *testing.T) {
	t.Parallel()
	ws, l := newWords(t)
	r := rand.New(rand.NewPCG(2, 3))
	const caches = 4
	var cache [caches]wordCache
	type row struct{ first, n uint64 }
	var rows []row
	used := map[uint64]bool{}
	take := func(n uint64) {
		if n == 0 || used[n] || !ws.has(n) {
			t.Fatalf("word %d is handed out, which is in use or none", n)
		}
		used[n] = true
	}
	for range 4000 {
		switch k := r.IntN(caches + 2); {
		case k < caches:
			n, err := ws.next(&cache[k], l, heap.ForMutator)
			if err != nil {
				t.Fatal(err)
			}
			take(n)
			rows = append(rows, row{n, 1})
		case k == caches:
			n := r.IntN(1<<r.IntN(12)) + 1
			first, err := ws.run(n, l)
			if err != nil {
				t.Fatal(err)
			}
			for i := range uint64(n) {
				take(first + i)
			}
			rows = append(rows, row{first, uint64(n)})
		}
		for len(rows) > 40 {
			i := r.IntN(len(rows))
			for n := rows[i].first; n < rows[i].first+rows[i].n; n++ {
				delete(used, n)
				ws.put(n)
			}
			rows[i] = rows[len(rows)-1]
			rows = rows[:len(rows)-1]
		}
	}
	left, whole := 0, 0
	for i := range cache {
		for n := range wordGroup {
			if cache[i].left>>n&1 != 0 {
				left++
				take(cache[i].first + uint64(n))
			}
		}
	}
	for g, taken := range ws.taken {
		if taken == 0 {
			whole++
		}
		if got := ws.spare[g/64]>>(g%64)&1 != 0; got != (taken != ^uint64(0)) {
			t.Errorf("group %d has words to spare: got %v, of %064b", g, got, taken)
		}
	}
	if n, pages := ws.count(); n != len(used) || whole != ws.whole || pages > 200 {
		t.Errorf("%d words in use on %d pages, %d groups not in use; want %d on at most 200, %d", n, pages, ws.whole, len(used), whole)
	}
	for i := range cache {
		cache[i].left = 0
	}
	for n := range used {
		ws.put(n)
	}
}

// Who makes and frees arrays and vectors needs no more words for ever.
func TestRowsOfWordsAreUsedAgain(t *testing.T) {
	t.Parallel()
	ws, l := newWords(t)
	var most int64
	for i := range 300 {
		n := 1 + i*370%5000
		first, err := ws.run(n, l)
		if err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
		for k := range uint64(n) {
			ws.put(first + k)
		}
		_, pages := ws.count()
		most = max(most, pages)
	}
	if want := int64(5000/WordsPerPage + 2); most > want {
		t.Errorf("%d pages were needed for 5000 words at a time, want %d", most, want)
	}
}

// A row that is too long for the table says so, and not that the words are in use.
func TestARowThatIsTooLongSaysHowMuchIsLeft(t *testing.T) {
	t.Parallel()
	ws, l := newWords(t)
	first, err := ws.run(100, l)
	if err != nil {
		t.Fatal(err)
	}
	all := len(ws.table)
	_, err = ws.run(all, l)
	want := fmt.Sprintf("cannot make %d pointers in a row: of %d words, 100 are in use, and no more than %d are left", all, all, all-int(first)-2*wordGroup)
	if !errors.Is(err, heap.ErrMetadataFull) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}
