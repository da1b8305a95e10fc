package far

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"polder/far/heap"
)

func newMap[K comparable, V any](t testing.TB, h *Heap, cfg MapConfig) *Map[K, V] {
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
			ints := newMap[int32, [40]byte](t, h, MapConfig{Exclusive: exclusive})
			words := newMap[string, string](t, h, MapConfig{Exclusive: exclusive})
			raw := newMap[padded, []byte](t, h, MapConfig{Exclusive: exclusive})
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
			var err error
			if got := maps.Collect(ints.All(ctx, &err)); !maps.Equal(got, wantInts) || err != nil {
				t.Errorf("All: %d entries, want %d (%v)", len(got), len(wantInts), err)
			}
			got := map[padded]bool{}
			for k := range raw.Keys(ctx, &err) {
				got[k] = true
			}
			if len(got) != len(wantRaw) || raw.Len() != len(wantRaw) || err != nil {
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
	if _, err := NewMap[outer, int](h, MapConfig{}); err == nil || !strings.Contains(err.Error(), "In.F[]") {
		t.Errorf("a key with floats: got %v, want an error that names In.F[]", err)
	}
	if _, err := NewMap[*int, int](h, MapConfig{}); err == nil {
		t.Error("a key that is a pointer is taken")
	}
	if _, err := NewMap[int, []int](h, MapConfig{}); err == nil || !strings.Contains(err.Error(), "[]byte") {
		t.Errorf("a value that is a slice: got %v", err)
	}
	if _, err := NewMap[int, map[int]int](h, MapConfig{}); err == nil {
		t.Error("a value that is a map is taken")
	}
}

func TestAnExclusiveMapKeepsNothingTwice(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	m := newMap[int, [100]byte](t, h, MapConfig{Exclusive: true})
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
	m := newMap[string, int](t, h, MapConfig{})
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
	var err error
	sum := 0
	for _, n := range m.All(ctx, &err) {
		sum += n
	}
	if sum != workers*rounds || err != nil {
		t.Errorf("counted %d, want %d (%v)", sum, workers*rounds, err)
	}
}

func TestMapAccessDoesNotAllocate(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	ints := newMap[int, [64]byte](t, h, MapConfig{})
	pads := newMap[padded, int](t, h, MapConfig{})
	words := newMap[string, []byte](t, h, MapConfig{})
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
	m := newMap[uint64, [64]byte](b, h, MapConfig{})
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
