package far

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"

	"polder/codec"
	"polder/far/heap"
	"polder/far/record"
)

func newMap[K comparable, V any](t testing.TB, h *Heap, cfg MapConfig[K, V]) *Map[K, V] {
	t.Helper()
	m, err := NewMap[K, V](h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// padded has bytes that do not count when keys are compared.
type padded struct {
	A int8
	B int64
	_ int32
	C [2]int16
}

func TestAMapIsWhatWasStored(t *testing.T) {
	t.Parallel()
	for _, exclusive := range []bool{false, true} {
		t.Run(fmt.Sprint("exclusive=", exclusive), func(t *testing.T) {
			h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 40)
			ints := newMap(t, h, MapConfig[int32, [40]byte]{Exclusive: exclusive})
			words := newMap(t, h, MapConfig[string, string]{Exclusive: exclusive})
			raw := newMap(t, h, MapConfig[padded, []byte]{Exclusive: exclusive})
			wantInts, wantWords, wantRaw := map[int32][40]byte{}, map[string]string{}, map[padded]string{}
			r := rand.New(rand.NewPCG(4, 4))
			ctx := t.Context()
			const n = 3000
			for round := range ofModel(30_000) {
				i := r.IntN(n)
				k1, k2, k3 := int32(i), fmt.Sprint("key", i), padded{A: int8(i), B: int64(i), C: [2]int16{1, int16(i)}}
				switch r.IntN(8) {
				case 0, 1, 2:
					v := [40]byte{byte(round), 39: byte(i)}
					s := strings.Repeat(k2, r.IntN(60))
					if err := errors.Join(ints.Set(ctx, k1, v), words.Set(ctx, k2, s), raw.Set(ctx, k3, []byte(s))); err != nil {
						t.Fatal(err)
					}
					wantInts[k1], wantWords[k2], wantRaw[k3] = v, s, s
				case 3:
					got, err := ints.Delete(ctx, k1)
					if _, want := wantInts[k1]; got != want || err != nil {
						t.Fatalf("Delete(%d): got %v, %v, want %v", k1, got, err, want)
					}
					delete(wantInts, k1)
				case 4:
					err := words.Update(ctx, k2, func(old string, ok bool) (string, bool) {
						if want, there := wantWords[k2]; old != want || ok != there {
							t.Fatalf("Update(%q): got %q, %v", k2, old, ok)
						}
						return old + "+", len(old) < 1000
					})
					if err != nil {
						t.Fatal(err)
					}
					if old := wantWords[k2]; len(old) < 1000 {
						wantWords[k2] = old + "+"
					} else {
						delete(wantWords, k2)
					}
				default:
					v, ok, err := ints.Get(ctx, k1)
					if want, there := wantInts[k1]; v != want || ok != there || err != nil {
						t.Fatalf("Get(%d): got %v, %v, %v, want %v", k1, v, ok, err, want)
					}
					s, ok, err := words.Get(ctx, k2)
					if want, there := wantWords[k2]; s != want || ok != there || err != nil {
						t.Fatalf("Get(%q): got %q, %v, %v, want %q", k2, s, ok, err, want)
					}
					b, ok, err := raw.Append(ctx, k3, []byte("x"))
					if want, there := wantRaw[k3]; string(b) != "x"+want || ok != there || err != nil {
						t.Fatalf("Append(%v): got %q, %v, %v, want %q", k3, b, ok, err, want)
					}
					k4 := padded{A: int8(i), B: int64(r.IntN(n)), C: k3.C}
					var many [2][]byte
					var oks [2]bool
					err = raw.GetMany(ctx, []padded{k3, k4}, many[:], oks[:])
					for at, k := range []padded{k3, k4} {
						if want, there := wantRaw[k]; string(many[at]) != want || oks[at] != there || err != nil {
							t.Fatalf("GetMany(%v): got %q, %v, %v, want %q", k, many[at], oks[at], err, want)
						}
					}
				}
			}
			s := h.NewScope()
			defer s.Close()
			got1 := maps.Collect(ints.All(s))
			if err := s.Err(); !maps.Equal(got1, wantInts) || err != nil {
				t.Errorf("All: %d entries, want %d (%v)", len(got1), len(wantInts), err)
			}
			got := map[padded]bool{}
			for k := range raw.Keys(s) {
				got[k] = true
			}
			if err := s.Err(); len(got) != len(wantRaw) || raw.Len() != len(wantRaw) || err != nil {
				t.Errorf("Keys: %d, Len %d, want %d (%v)", len(got), raw.Len(), len(wantRaw), err)
			}
			if h.Stats().Fetches == 0 {
				t.Error("nothing was fetched")
			}
			words.Clear()
			if ok, err := words.Has(ctx, "key1"); ok || err != nil || words.Len() != 0 {
				t.Errorf("after Clear there is key1 (%v, %v), or %d others", ok, err, words.Len())
			}
		})
	}
}

func TestMapsRefuseWhatCannotBeFar(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 16), 16)
	type inner struct{ F [2]float32 }
	type outer struct {
		N  int
		In inner
	}
	if _, err := NewMap(h, MapConfig[outer, int]{}); err == nil || !strings.Contains(err.Error(), "In.F[]") {
		t.Errorf("a key with floats: got %v, want an error that names In.F[]", err)
	}
	if _, err := NewMap(h, MapConfig[*int, int]{}); err == nil {
		t.Error("a key that is a pointer is taken")
	}
	type directory struct{ Rooms []map[string]int }
	if _, err := NewMap(h, MapConfig[int, directory]{Name: "rooms"}); err == nil || !strings.Contains(err.Error(), `cannot make map "rooms": values: far.directory.Rooms[] is of type map[string]int`) {
		t.Errorf("a value with a map in it: got %v, want its field", err)
	}
}

type profile struct {
	Name   string
	Tags   []string
	Visits []struct {
		At   int64
		Page string
	}
	Score float64
}

func randomProfile(r *rand.Rand) (p profile) {
	word := func(n int) string { return strings.Repeat(string(rune('a'+r.IntN(26))), r.IntN(n)) }
	p.Name, p.Score = word(2000), r.NormFloat64()
	for range r.IntN(4) {
		p.Tags = append(p.Tags, word(10))
	}
	for range r.IntN(3) {
		p.Visits = append(p.Visits, struct {
			At   int64
			Page string
		}{r.Int64(), word(30)})
	}
	return p
}

// profileCodec stores profiles by JSON, as a program might.
type profileCodec struct{}

func (profileCodec) Append(b []byte, p profile) []byte {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return append(b, text...)
}

func (profileCodec) Decode(b []byte) (p profile, err error) { return p, json.Unmarshal(b, &p) }

// TestStructsWithStringsAndSlicesRoundTrip through far memory, by every way out of a map.
func TestStructsWithStringsAndSlicesRoundTrip(t *testing.T) {
	for name, c := range map[string]codec.Codec[profile]{"planned": nil, "by a codec": profileCodec{}} {
		t.Run(name, func(t *testing.T) {
			h := openObjects(t, heap.NewMemStore(tinySegment, 400), 16)
			m := newMap(t, h, MapConfig[string, profile]{Values: c})
			ctx, want, r := t.Context(), map[string]profile{}, rand.New(rand.NewPCG(1, 2))
			var keys []string
			for i := range 400 {
				k, v := fmt.Sprint("key ", i), randomProfile(r)
				if err := m.Set(ctx, k, v); err != nil {
					t.Fatal(err)
				}
				want[k], keys = v, append(keys, k)
			}
			same := func(how, k string, got profile, ok bool, err error) {
				if err != nil || !ok || !reflect.DeepEqual(got, want[k]) {
					t.Fatalf("%s of %s: got %+v, %v, %v, want %+v", how, k, got, ok, err, want[k])
				}
			}
			for _, k := range keys {
				v, ok, err := m.Get(ctx, k)
				same("Get", k, v, ok, err)
			}
			vs, ok := make([]profile, len(keys)), make([]bool, len(keys))
			err := m.GetMany(ctx, keys, vs, ok)
			for i, k := range keys {
				same("GetMany", k, vs[i], ok[i], err)
			}
			for _, k := range keys[:40] {
				if err := m.Update(ctx, k, func(v profile, ok bool) (profile, bool) {
					same("Update", k, v, ok, nil)
					v.Score++
					want[k] = v
					return v, true
				}); err != nil {
					t.Fatal(err)
				}
			}
			n := 0
			s := h.NewScope()
			defer s.Close()
			for k, v := range m.All(s) {
				same("All", k, v, true, nil)
				n++
			}
			if err := s.Err(); n < len(want) || err != nil {
				t.Fatalf("All: %d values, %v, want %d", n, err, len(want))
			}
			if h.Stats().Fetches == 0 {
				t.Fatal("nothing was far")
			}
		})
	}
}

// rude is a codec that uses the map that it is of, and panics.
type rude struct{ use func() }

func (c *rude) Append(b []byte, v *int) []byte { return append(b, byte(*v)) }

func (c *rude) Decode([]byte) (*int, error) {
	c.use()
	panic("rude")
}

// TestACodecRunsUnderNoLock: it may use the map, and what it breaks is its caller's.
func TestACodecRunsUnderNoLock(t *testing.T) {
	h, ballast := newTinyHeap(t, heap.NewMemStore(tinySegment, 4000), tiny.Logs+256<<10)
	c := &rude{}
	m := newMap(t, h, MapConfig[int, *int]{Values: c})
	ctx, one := t.Context(), 1
	c.use = func() {
		for _, k := range []int{7, 8} {
			if _, ok, err := m.Append(ctx, k, nil); !ok || err != nil {
				t.Errorf("Append: %v, %v", ok, err)
			}
		}
		if err := m.Set(ctx, 7, &one); err != nil {
			t.Error(err)
		}
	}
	s := h.NewScope()
	defer s.Close()
	for name, read := range map[string]func(){
		"Get":     func() { _, _, _ = m.Get(ctx, 7) },
		"GetMany": func() { _ = m.GetMany(ctx, []int{7, 8}, make([]*int, 2), make([]bool, 2)) },
		"Update":  func() { _ = m.Update(ctx, 7, func(v *int, ok bool) (*int, bool) { return v, ok }) },
		"All": func() {
			for range m.All(s) {
				t.Error("a value came out")
			}
		},
	} {
		for _, where := range []string{"local", "far"} {
			for _, k := range []int{7, 8} {
				if err := m.Set(ctx, k, &one); err != nil {
					t.Fatal(err)
				}
			}
			if where == "far" {
				evacuateBy(t, m.b, ballast)
			}
			func() {
				defer func() {
					if got := recover(); got != "rude" {
						t.Errorf("%s of what is %s: got %v, want the codec's panic", name, where, got)
					}
				}()
				read()
			}()
			if _, err := m.Delete(ctx, 7); err != nil {
				t.Errorf("%s of what is %s: Delete afterwards: %v", name, where, err)
			}
		}
	}
}

func TestAnExclusiveMapKeepsNothingTwice(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	m := newMap(t, h, MapConfig[int, [100]byte]{Exclusive: true})
	ctx := t.Context()
	for i := range 5000 {
		if err := m.Set(ctx, i, [100]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5000 {
		if v, ok, err := m.Get(ctx, i); !ok || v[0] != byte(i) || err != nil {
			t.Fatalf("Get(%d): %v, %v, %v", i, v[0], ok, err)
		}
	}
	if n := h.Stats().EvacuatedClean; n != 0 {
		t.Errorf("%d entries had two copies", n)
	}
}

func TestMapsAreUsedByManyGoroutines(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 24)
	m := newMap(t, h, MapConfig[string, int]{})
	ctx := t.Context()
	var wg sync.WaitGroup
	const workers, rounds, keys = 8, 2000, 1000
	for range workers {
		wg.Go(func() {
			for i := range rounds {
				k := fmt.Sprint(strings.Repeat("k", 100), i%keys)
				if err := m.Update(ctx, k, func(n int, _ bool) (int, bool) { return n + 1, true }); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	s := h.NewScope()
	defer s.Close()
	sum := 0
	for _, n := range m.All(s) {
		sum += n
	}
	if err := s.Err(); sum != workers*rounds || err != nil {
		t.Errorf("counted %d, want %d (%v)", sum, workers*rounds, err)
	}
}

func TestMapAccessDoesNotAllocate(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	ints := newMap(t, h, MapConfig[int, [64]byte]{})
	pads := newMap(t, h, MapConfig[padded, int]{})
	words := newMap(t, h, MapConfig[string, []byte]{})
	ctx := context.Background()
	buf, word := make([]byte, 0, 100), strings.Repeat("w", 20)
	for name, fn := range map[string]func(){
		"Set":           func() { _ = ints.Set(ctx, 5, [64]byte{}) },
		"Get":           func() { _, _, _ = ints.Get(ctx, 5) },
		"Get of none":   func() { _, _, _ = ints.Get(ctx, 6) },
		"Set of padded": func() { _ = pads.Set(ctx, padded{A: 1}, 1) },
		"Get of padded": func() { _, _, _ = pads.Get(ctx, padded{A: 1}) },
		"Set of bytes":  func() { _ = words.Set(ctx, word, buf[:50]) },
		"Has":           func() { _, _ = ints.Has(ctx, 5) },
		"Set, Delete":   func() { _ = ints.Set(ctx, 7, [64]byte{}); _, _ = ints.Delete(ctx, 7) },
		"Append":        func() { _, _, _ = words.Append(ctx, word, buf) },
	} {
		fn()
		if n := testing.AllocsPerRun(100, fn); n >= 1 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func BenchmarkMap(b *testing.B) {
	h, err := NewHeap(heap.NewMemStore(1<<20, 64), Config{Local: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	m := newMap(b, h, MapConfig[uint64, [64]byte]{})
	ctx := context.Background()
	const n = 1 << 16
	plain := map[uint64][64]byte{}
	for i := range uint64(n) {
		plain[i] = [64]byte{}
		if err := m.Set(ctx, i, [64]byte{}); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		for i := range uint64(b.N) {
			_, _, _ = m.Get(ctx, i*0x9e3779b97f4a7c15>>48)
		}
	})
	b.Run("set", func(b *testing.B) {
		b.ReportAllocs()
		for i := range uint64(b.N) {
			_ = m.Set(ctx, i*0x9e3779b97f4a7c15>>48, [64]byte{})
		}
	})
	sum := 0
	b.Run("go", func(b *testing.B) {
		for i := range uint64(b.N) {
			v := plain[i*0x9e3779b97f4a7c15>>48]
			sum += int(v[0])
		}
	})
}

// TestGoingThroughAMapKeepsWhatIsUsed: All reads five times what local memory holds, and
// what was used before is local afterwards.
func TestGoingThroughAMapKeepsWhatIsUsed(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<12), 32)
	m := newMap(t, h, MapConfig[int, [100]byte]{})
	ctx := t.Context()
	const n, hot = 16_000, 500
	for i := range n {
		if err := m.Set(ctx, i, [100]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	use := func() (misses uint64) {
		before := m.Stats().Misses
		for i := range hot {
			if v, ok, err := m.Get(ctx, i); v[0] != byte(i) || !ok || err != nil {
				t.Fatalf("key %d: got %d, %v, %v", i, v[0], ok, err)
			}
		}
		return m.Stats().Misses - before
	}
	for missed, tries := uint64(hot), 0; missed > hot/10; missed, tries = use(), tries+1 {
		if tries == 50 {
			t.Fatalf("%d of %d keys are far after %d rounds of use", missed, hot, tries)
		}
		for i := range hot {
			done(t, m.Prefetch(ctx, i))
		}
		use()
	}
	s := h.NewScope()
	defer s.Close()
	seen := 0
	for k, v := range m.All(s) {
		if v[0] != byte(k) {
			t.Fatalf("key %d has value %d, want %d", k, v[0], byte(k))
		}
		seen++
	}
	if err := s.Err(); seen != n || err != nil {
		t.Fatalf("All: %d keys, %v, want %d", seen, err, n)
	}
	if missed := use(); missed > hot/4 {
		t.Errorf("All made %d of %d keys far that were used, want at most %d", missed, hot, hot/4)
	}
}

// TestIteratingOverAMapInAnOpenScopeIsRefused: it would wait for memory that the
// evacuator cannot make before the scope is left.
func TestIteratingOverAMapInAnOpenScopeIsRefused(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 16), 16)
	m := newMap(t, h, MapConfig[int, int]{})
	done(t, m.Set(t.Context(), 1, 1))
	s := h.NewScope()
	defer s.Close()
	s.Enter()
	defer s.Leave()
	for range m.All(s) {
		t.Error("All yields an entry")
	}
	if err := s.Err(); !errors.Is(err, ErrScopeOpen) {
		t.Errorf("All: got %v, want ErrScopeOpen", err)
	}
	for range m.Keys(s) {
		t.Error("Keys yields a key")
	}
	if err := s.Err(); !errors.Is(err, ErrScopeOpen) {
		t.Errorf("Keys: got %v, want ErrScopeOpen", err)
	}
}

// TestAValueThatIsUsedInPlaceStays: while a scope is open, what Deref has returned in it is what it was, whatever becomes
// of the key and of local memory meanwhile; and when it is left, the memory is there for others.
func TestAValueThatIsUsedInPlaceStays(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<12), 32)
	m := newMap(t, h, MapConfig[int32, [96]byte]{})
	texts := newMap(t, h, MapConfig[int32, string]{})
	ctx := t.Context()
	of := func(k int32, round byte) (v [96]byte) {
		for i := range v {
			v[i] = byte(k) + round
		}
		return v
	}
	textOf := func(k int32, round byte) string { return strings.Repeat(string('a'+rune(byte(k)+round)%16), 50) }
	s := h.NewScope()
	defer s.Close()
	const n, used = 6000, 40
	inPlace := 0
	for round := range byte(4) {
		// What is used now is local, and in place.
		for k := range int32(used) {
			done(t, m.Set(ctx, k, of(k, round)))
			done(t, texts.Set(ctx, k, textOf(k, round)))
		}
		s.Enter()
		var vs [used]*[96]byte
		var ts [used]*string
		for k := range int32(used) {
			vs[k], ts[k] = m.Deref(s, k), texts.Deref(s, k)
		}
		inPlace += int(h.core.Logs.Views())
		others := make(chan error)
		go func() {
			defer close(others)
			for k := range int32(n) {
				err := m.Set(ctx, k, of(k, round+100))
				if k < used && k%2 == 1 {
					_, err = m.Delete(ctx, k)
				}
				if err == nil {
					err = texts.Set(ctx, k, textOf(k, round+100))
				}
				if err != nil {
					others <- err
				}
			}
		}()
		for err := range others {
			t.Errorf("others in round %d: %v", round, err)
		}
		for k := range int32(used) {
			if vs[k] == nil || *vs[k] != of(k, round) || ts[k] == nil || *ts[k] != textOf(k, round) {
				t.Fatalf("round %d: key %d has changed while it is used in place: %v, %v, %v", round, k, vs[k], ts[k], s.Err())
			}
		}
		for k := range int32(used) { // what it is now
			if v := m.Deref(s, k); (v != nil) != (k%2 == 0) || v != nil && *v != of(k, round+100) {
				t.Fatalf("round %d: key %d is %v afterwards, %v", round, k, v, s.Err())
			}
		}
		s.Leave()
		if got := h.core.Logs.Views(); got != 0 {
			t.Fatalf("round %d: %d segments are kept for nobody", round, got)
		}
	}
	if inPlace == 0 {
		t.Error("nothing was used in place")
	}
	if evacuated := h.Stats().Evacuated; evacuated < n {
		t.Errorf("%d entries were evacuated meanwhile, want at least %d", evacuated, n)
	}
}

// TestLocalValuesAreUsedWithoutACopy: also by many scopes at once, which together may keep an eighth of local memory.
func TestLocalValuesAreUsedWithoutACopy(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<12), 32)
	m := newMap(t, h, MapConfig[uint32, [4]uint64]{})
	odd := newMap(t, h, MapConfig[uint64, [4]uint64]{})
	ctx := t.Context()
	done(t, m.Set(ctx, 1, [4]uint64{1, 2}))
	done(t, odd.Set(ctx, 1, [4]uint64{3, 4}))
	s := h.NewScope()
	defer s.Close()
	if n := testing.AllocsPerRun(100, func() {
		s.Enter()
		if v := m.Deref(s, 1); v == nil || v[1] != 2 {
			t.Errorf("got %v", v)
		}
		s.Leave()
	}); n > 0 {
		t.Errorf("a local value takes %v allocations, want none", n)
	}
	s.Enter()
	defer s.Leave()
	if a, b := m.Deref(s, 1), m.Deref(s, 1); a != b {
		t.Error("a local value is not used in place")
	}
	if a, b := odd.Deref(s, 1), odd.Deref(s, 1); a == b || *a != [4]uint64{3, 4} {
		t.Errorf("a value that is not aligned is %v, at %p and %p", *a, a, b)
	}
	if v := m.Deref(s, 2); v != nil || s.Err() != nil {
		t.Errorf("a key that is not there has %v", v)
	}
	for range 3 {
		so := h.NewScope()
		defer so.Close()
		so.Enter()
		defer so.Leave()
		for i := range uint32(400) {
			done(t, odd.Set(ctx, uint64(i), [4]uint64{}))
			done(t, m.Set(ctx, i, [4]uint64{uint64(i)}))
			if v := m.Deref(so, i); v == nil || v[0] != uint64(i) {
				t.Fatalf("key %d is %v, %v", i, v, so.Err())
			}
		}
	}
	size := int64(h.core.Logs.SegSize)
	if got, most := h.core.Logs.Views()*size, h.Local()/8; got > most || got <= most-size {
		t.Errorf("%d bytes are kept for scopes, want the most that may be, %d", got, most)
	}
	if got := panics(t, func() {
		newMap(t, openObjects(t, heap.NewMemStore(tinySegment, 16), 16), MapConfig[int, int]{}).Deref(s, 1)
	}); !strings.Contains(fmt.Sprint(got), "another heap") {
		t.Errorf("a scope of another heap: panics with %v", got)
	}
}

// gatedStore is a store of which writes wait for a gate.
type gatedStore struct {
	*heap.MemStore
	begun, gate chan struct{}
	once        sync.Once
	first       []byte // that is written, at
	at          int
}

type gatedSegment struct {
	heap.Segment
	store *gatedStore
}

func (s *gatedStore) Alloc(ctx context.Context) (heap.Segment, error) {
	seg, err := s.MemStore.Alloc(ctx)
	return gatedSegment{seg, s}, err
}

func (s *gatedStore) Read(ctx context.Context, ops []heap.ReadOp) {
	for i := range ops {
		ops[i].Seg = ops[i].Seg.(gatedSegment).Segment
	}
	s.MemStore.Read(ctx, ops)
}

func (g gatedSegment) Write(ctx context.Context, p []byte, off int) error {
	g.store.once.Do(func() {
		g.store.first, g.store.at = p, off
		close(g.store.begun)
	})
	<-g.store.gate
	return g.Segment.Write(ctx, p, off)
}

// TestAValueThatIsBeingWrittenIsUsedInPlace: its segment was chosen to be emptied before the value was used, and is kept
// all the same when nothing lives in it any more.
func TestAValueThatIsBeingWrittenIsUsedInPlace(t *testing.T) {
	store := &gatedStore{MemStore: heap.NewMemStore(tinySegment, 1<<12), begun: make(chan struct{}), gate: make(chan struct{})}
	h := openObjects(t, store, 32)
	m := newMap(t, h, MapConfig[int32, [96]byte]{})
	of := func(k int32) (v [96]byte) {
		for i := range v {
			v[i] = byte(k) + byte(i)
		}
		return v
	}
	s := h.NewScope()
	defer s.Close()
	s.Enter()
	defer s.Leave()
	const n = 8000
	filled := make(chan error, 1)
	go func() {
		for k := range int32(n) {
			if err := m.Set(context.Background(), k, of(k)); err != nil {
				filled <- err
				return
			}
		}
		filled <- nil
	}()
	<-store.begun
	used := map[int32]*[96]byte{}
	at := 0
	if store.at == 0 {
		at = record.SegmentSize
	}
	for at < len(store.first) && len(used) < 3 {
		r := record.Record(store.first[at:])
		k := int32(binary.LittleEndian.Uint32(r.Key()))
		used[k] = m.Deref(s, k)
		at += r.Size()
	}
	if len(used) == 0 || h.core.Logs.Views() == 0 {
		t.Error("nothing that is being written is used")
	}
	close(store.gate)
	if err := <-filled; err != nil {
		t.Fatal(err)
	}
	for k, v := range used {
		if *v != of(k) {
			t.Fatalf("key %d has become %v", k, *v)
		}
	}
}

func TestGetManyMakesTheValuesOfAbsentKeysZero(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	m := newMap(t, h, MapConfig[int, string]{})
	if err := m.Set(t.Context(), 1, "one"); err != nil {
		t.Fatal(err)
	}
	vs, ok := []string{"earlier", "earlier"}, []bool{true, true}
	if err := m.GetMany(t.Context(), []int{1, 2}, vs, ok); err != nil {
		t.Fatal(err)
	}
	if vs[0] != "one" || !ok[0] || vs[1] != "" || ok[1] {
		t.Errorf("got %q, %v, want the value of key 1, and none of key 2", vs, ok)
	}
}
