package bytemap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/record"
	"polder/far/store"
)

// findingStore is a store that finds entries by leaves, and answers as lie has changed it.
type findingStore struct {
	heap.Store
	lie func(l []store.Lookup)
}

func (f *findingStore) Finds(heap.Segment) bool { return true }

func (f *findingStore) Find(ctx context.Context, l *store.Lookups) {
	at := func(seg heap.Segment, seed uint32, off, n int) record.Record {
		op := []heap.ReadOp{{Seg: seg, Off: off, Buf: make([]byte, n)}}
		f.Read(ctx, op)
		r, err := record.Decode(op[0].Buf, seed, off)
		if op[0].Err != nil || err != nil {
			return nil
		}
		return r
	}
	for i := range l.Finds {
		q := &l.Finds[i]
		page := at(q.Seg, q.Seed, q.Off, q.N)
		if page == nil {
			continue
		}
		q.Leaf = page
		leaf, _ := index.Unchecked(page.Body())
		for k := leaf.Find(uint32(q.Hash)); k < leaf.Len() && leaf.At(k).Tag == uint32(q.Hash); k++ {
			w := leaf.At(k).Word
			if w.IsLost() {
				continue
			}
			seg, seed := l.Segment(w.Addr())
			if seg == nil {
				continue
			}
			off := int(w.Addr()%l.Units) * heap.Unit
			if e := at(seg, seed, off, min(w.Size(), int(l.Units)*heap.Unit-off)); e != nil && e.Number() == q.Hash {
				q.Entry, q.At, q.Leaf = e, w.Addr(), nil
			}
		}
	}
	f.lie(l.Finds)
}

// TestNothingWrongThatIsFoundIsBelieved: a random program has the results of Go's map, whatever the store says that it
// has found: what is not right is read instead.
func TestNothingWrongThatIsFoundIsBelieved(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	flip := func(b []byte) []byte {
		if len(b) > 0 {
			b = bytes.Clone(b)
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
		return b
	}
	each := func(change func(l *store.Lookup)) func([]store.Lookup) {
		return func(l []store.Lookup) {
			for i := range l {
				change(&l[i])
			}
		}
	}
	st := &findingStore{Store: heap.NewMemStore(64<<10, 4000), lie: func([]store.Lookup) {}}
	h, m := openEarly(t, st, 400<<10)
	ctx := within(t, 2*time.Minute)
	want := fillEarly(t, ctx, m, earlyKeys)
	for _, c := range []struct {
		name string
		lie  func(l []store.Lookup)
		none bool // is found
	}{
		{"the truth", func([]store.Lookup) {}, false},
		{"nothing", each(func(l *store.Lookup) { l.Entry, l.Leaf = nil, nil }), true},
		{"damaged bytes", each(func(l *store.Lookup) { l.Entry, l.Leaf = flip(l.Entry), flip(l.Leaf) }), true},
		{"short records", each(func(l *store.Lookup) { l.Entry, l.Leaf = l.Entry[:len(l.Entry)/2], l.Leaf[:len(l.Leaf)/2] }), true},
		{"addresses of nothing", each(func(l *store.Lookup) { l.At = r.Uint64() >> r.IntN(64) }), true},
		{"other keys' entries", func(l []store.Lookup) {
			for i := range len(l) / 2 {
				j := len(l) - 1 - i
				l[i].Entry, l[i].At, l[j].Entry, l[j].At = l[j].Entry, l[j].At, l[i].Entry, l[i].At
			}
		}, false}, // there may be one in the middle
		{"other keys' leaves", func(l []store.Lookup) {
			for i := range len(l) / 2 {
				j := len(l) - 1 - i
				l[i].Leaf, l[j].Leaf = l[j].Leaf, l[i].Leaf
			}
		}, false},
		{"leaves for entries", each(func(l *store.Lookup) { l.Entry, l.Leaf = l.Leaf, l.Entry }), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			settleAll(t, ctx, m)
			st.lie = c.lie
			before := h.found.Load()
			for range ofModel(24) {
				some := make([][]byte, 64)
				for i := range some {
					some[i] = fmt.Append(nil, "key", r.IntN(earlyKeys+earlyKeys/8))
				}
				m.GetMany(ctx, some, func(i int, e Entry, err error) {
					if v, there := want[string(some[i])]; there != (err == nil) || string(e.Value) != v || !there && !errors.Is(err, ErrNotFound) {
						t.Fatalf("%s is %q, %v, want %q, %v", some[i], e.Value, err, v, there)
					}
				})
				for i, k := range some[:8] {
					v, there := want[string(k)]
					if e, err := m.Get(ctx, k, nil); there != (err == nil) || string(e.Value) != v {
						t.Fatalf("%s is %q, %v, want %q, %v", k, e.Value, err, v, there)
					}
					if i%4 == 0 {
						if _, err := m.Delete(ctx, k); err != nil {
							t.Fatal(err)
						}
						delete(want, string(k))
						continue
					}
					v = fmt.Sprint("another", r.Uint64())
					if err := m.Set(ctx, k, Entry{Value: []byte(v)}); err != nil {
						t.Fatal(err)
					}
					want[string(k)] = v
				}
			}
			if got := h.found.Load() - before; c.none && got > 0 || c.name == "the truth" && got == 0 {
				t.Errorf("%d entries were found, want none: %v", got, c.none)
			}
		})
	}
	st.lie = func([]store.Lookup) {}
	sameKeys(t, ctx, m, want)
}

// TestWhatWasWrittenAfterTheCallIsNotFound: an entry in a segment that is younger than the call is not what the leaf knows.
func TestWhatWasWrittenAfterTheCallIsNotFound(t *testing.T) {
	t.Parallel()
	var kept []store.Lookup
	s := &findingStore{heap.NewMemStore(64<<10, 4000), func(l []store.Lookup) { kept = append(kept, slices.Clone(l)...) }}
	h, m := openEarly(t, s, 400<<10)
	ctx := within(t, 2*time.Minute)
	want := fillEarly(t, ctx, m, earlyKeys)
	for k := range want {
		if _, err := m.Get(ctx, []byte(k), nil); err != nil {
			t.Fatal(err)
		}
		if len(kept) > 0 && kept[len(kept)-1].Entry != nil {
			break
		}
	}
	if len(kept) == 0 {
		t.Fatal("nothing was found")
	}
	l := kept[len(kept)-1]
	// check has made an entry of it, where it lay: it is read again.
	seg := h.core.Far.Seg(l.At)
	op := []heap.ReadOp{{Seg: seg.Seg, Off: h.core.Far.Offset(l.At), Buf: make([]byte, len(l.Entry))}}
	s.Read(ctx, op)
	r, err := seg.Decode(op[0].Buf, op[0].Off)
	if err != nil {
		t.Fatal(err)
	}
	key := bytes.Clone(r.Key())
	for _, c := range []struct {
		before uint64
		found  bool
	}{{seg.Position() - 1, false}, {seg.Position(), true}} {
		l.Entry = bytes.Clone(op[0].Buf)
		if e := (&finds{before: c.before}).check(m, &l, key); (e != nil) != c.found {
			t.Errorf("an entry of segment %d, asked for after segment %d: found: %v, want %v", seg.Position(), c.before, e != nil, c.found)
		}
	}
}
