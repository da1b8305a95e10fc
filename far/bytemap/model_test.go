package bytemap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"polder/far/heap"
	"polder/far/store/storetest"
	"polder/internal/invariants"
)

// model is the map that a Map has to be equal to.
type model map[string]Entry

func (md model) live(k string) (Entry, bool) {
	e, ok := md[k]
	if ok && !e.Expire.IsZero() && !time.Now().Before(e.Expire) {
		delete(md, k)
		return Entry{}, false
	}
	return e, ok
}

func sameEntry(a, b Entry) bool {
	return bytes.Equal(a.Value, b.Value) && a.Tag == b.Tag &&
		(a.Expire.Equal(b.Expire) || a.Expire.UnixMilli() == b.Expire.UnixMilli())
}

// machine plays the same operations on a Map and on a model.
type machine struct {
	m  *Map
	md model
}

const modelKeys = 1500

func drawEntry(t *rapid.T) Entry {
	size := rapid.OneOf(
		rapid.IntRange(0, 100), rapid.IntRange(200, 2100), rapid.IntRange(2040, 40000),
	).Draw(t, "size")
	e := Entry{
		Value: value(rapid.Uint64().Draw(t, "seed"), size),
		Tag:   rapid.Uint8().Draw(t, "tag"),
	}
	if rapid.IntRange(0, 3).Draw(t, "ttl?") == 0 {
		ms := rapid.IntRange(-10, 2000).Draw(t, "ttl")
		e.Expire = time.UnixMilli(time.Now().UnixMilli() + int64(ms))
	}
	return e
}

func drawKey(t *rapid.T) string {
	n := rapid.IntRange(0, modelKeys-1).Draw(t, "key")
	if n == 0 {
		return ""
	}
	return fmt.Sprint("k", n, strings.Repeat("x", n%97))
}

func (ma *machine) fill(t *rapid.T) {
	seed := rapid.Uint64().Draw(t, "fill")
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range modelKeys {
		k := fmt.Sprint("k", i, strings.Repeat("x", i%97))
		e := Entry{Value: value(seed+uint64(i), r.IntN(1500))}
		if err := ma.m.Set(context.Background(), []byte(k), e); err != nil {
			t.Fatalf("Set(%q): %v", k, err)
		}
		ma.md[k] = e
	}
}

func (ma *machine) actions() map[string]func(*rapid.T) {
	ctx := context.Background()
	m, md := ma.m, ma.md
	get := func(t *rapid.T, k string) {
		e, err := m.Get(ctx, []byte(k), []byte("prefix"))
		want, ok := md.live(k)
		switch {
		case !ok && !errors.Is(err, ErrNotFound):
			t.Fatalf("Get(%q): got %v, want ErrNotFound", k, err)
		case ok && err != nil:
			t.Fatalf("Get(%q): %v", k, err)
		case ok:
			v, had := bytes.CutPrefix(e.Value, []byte("prefix"))
			e.Value = v
			if !had || !sameEntry(e, want) {
				t.Fatalf("Get(%q): got %d bytes, tag %d, expire %v; want %d, %d, %v", k,
					len(e.Value), e.Tag, e.Expire, len(want.Value), want.Tag, want.Expire)
			}
		}
	}
	return map[string]func(*rapid.T){
		"fill": func(t *rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
				ma.fill(t)
			}
		},
		"get": func(t *rapid.T) { get(t, drawKey(t)) },
		"set": func(t *rapid.T) {
			k, e := drawKey(t), drawEntry(t)
			if err := m.Set(ctx, []byte(k), e); err != nil {
				t.Fatalf("Set(%q): %v", k, err)
			}
			md[k] = e
			get(t, k)
		},
		"get many": func(t *rapid.T) {
			ks := rapid.SliceOfN(rapid.Custom(drawKey), 1, 300).Draw(t, "keys")
			keys := make([][]byte, len(ks))
			for i, k := range ks {
				keys[i] = []byte(k)
			}
			asked := make([]int, len(ks))
			m.GetMany(ctx, keys, func(i int, e Entry, err error) {
				asked[i]++
				want, ok := md.live(ks[i])
				switch {
				case !ok && !errors.Is(err, ErrNotFound), ok && err != nil:
					t.Fatalf("GetMany(%q): got %v, there: %v", ks[i], err, ok)
				case ok && !sameEntry(e, want):
					t.Fatalf("GetMany(%q): got %d bytes, tag %d, expire %v; want %d, %d, %v", ks[i],
						len(e.Value), e.Tag, e.Expire, len(want.Value), want.Tag, want.Expire)
				}
			})
			for i, n := range asked {
				if n != 1 {
					t.Fatalf("GetMany answered for key %d of %d, %q, %d times", i, len(ks), ks[i], n)
				}
			}
		},
		"stat": func(t *rapid.T) {
			k := drawKey(t)
			e, size, err := m.Stat(ctx, []byte(k))
			want, ok := md.live(k)
			if ok != (err == nil) || !ok && !errors.Is(err, ErrNotFound) {
				t.Fatalf("Stat(%q): got %v, there: %v", k, err, ok)
			}
			if ok && (size != len(want.Value) || e.Tag != want.Tag || e.Value != nil) {
				t.Fatalf("Stat(%q): got %d, %+v, want %d, %+v", k, size, e, len(want.Value), want)
			}
		},
		"delete": func(t *rapid.T) {
			k := drawKey(t)
			got, err := m.Delete(ctx, []byte(k))
			_, want := md.live(k)
			if err != nil || got != want {
				t.Fatalf("Delete(%q): got %v, %v, want %v", k, got, err, want)
			}
			delete(md, k)
		},
		"update": func(t *rapid.T) {
			k, e := drawKey(t), drawEntry(t)
			verdict := Verdict(rapid.IntRange(0, 2).Draw(t, "verdict"))
			appending := rapid.Bool().Draw(t, "append")
			err := m.Update(ctx, []byte(k), func(old Entry, found bool) (Entry, Verdict, error) {
				want, ok := md.live(k)
				if found != ok || found && !sameEntry(old, want) {
					t.Fatalf("Update(%q): got %v, %d bytes, want %v, %d bytes", k, found, len(old.Value), ok, len(want.Value))
				}
				if appending {
					e.Value = append(slices.Clone(old.Value), "more"...)
				}
				return e, verdict, nil
			})
			if err != nil {
				t.Fatalf("Update(%q): %v", k, err)
			}
			switch verdict {
			case Put:
				md[k] = e
			case Remove:
				delete(md, k)
			}
			get(t, k)
		},
		"heads, then no wait": func(t *rapid.T) {
			k := drawKey(t)
			if err := m.FetchHeads(ctx, [][]byte{[]byte(k), []byte("no such key")}); err != nil {
				t.Fatalf("FetchHeads(%q): %v", k, err)
			}
			e, ok := md.live(k)
			_, size, err := m.Stat(heap.NoWait, []byte(k))
			switch {
			case errors.Is(err, heap.ErrWouldBlock):
			case ok != (err == nil) || ok && size != len(e.Value):
				t.Fatalf("Stat(%q) after FetchHeads: %d bytes, %v, want %d, %v", k, size, err, len(e.Value), ok)
			}
			found, err := m.Delete(heap.NoWait, []byte(k))
			switch {
			case errors.Is(err, heap.ErrWouldBlock):
				get(t, k)
				return
			case err != nil || found != ok:
				t.Fatalf("Delete(%q) after FetchHeads: %v, %v, want %v", k, found, err, ok)
			}
			delete(md, k)
			get(t, k)
		},
		"fetch then no wait": func(t *rapid.T) {
			k := drawKey(t)
			if err := m.Prefetch(ctx, []byte(k), []byte("no such key")); err != nil {
				t.Fatalf("Fetch(%q): %v", k, err)
			}
			_, err := m.Get(heap.NoWait, []byte(k), nil)
			if _, ok := md.live(k); ok && err != nil && !errors.Is(err, heap.ErrWouldBlock) {
				t.Fatalf("Get(%q) after Fetch: %v", k, err)
			}
		},
		"no wait": func(t *rapid.T) {
			k, e := drawKey(t), drawEntry(t)
			switch err := m.Set(heap.NoWait, []byte(k), e); {
			case err == nil:
				md[k] = e
			case !errors.Is(err, heap.ErrWouldBlock):
				t.Fatalf("Set(%q): %v", k, err)
			}
			get(t, k)
		},
		"list": func(t *rapid.T) {
			got := map[string]bool{}
			for k, err := range allKeys(ctx, m) {
				if err != nil {
					t.Fatal(err)
				}
				if got[string(k)] {
					t.Fatalf("All: %q twice", k)
				}
				got[string(k)] = true
			}
			n := 0
			for k := range md {
				if _, ok := md.live(k); ok {
					n++
					if !got[k] {
						t.Fatalf("All: %q is missing", k)
					}
				}
			}
			if len(got) != n {
				t.Fatalf("All: got %d keys, want %d", len(got), n)
			}
			if l := m.Len(); l < n {
				t.Fatalf("Len: got %d, want at least %d", l, n)
			}
			if n > 0 {
				k, err := m.Random(ctx, nil)
				if err != nil || !got[string(k)] {
					t.Fatalf("Random: got %q, %v", k, err)
				}
			}
		},
		"wait": func(t *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 1500).Draw(t, "ms")) * time.Millisecond)
		},
		"clear": func(t *rapid.T) {
			if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
				m.Clear()
				clear(md)
				if l := m.Len(); l != 0 {
					t.Fatalf("Len after Clear: %d", l)
				}
			}
		},
		"": func(t *rapid.T) {
			if s := m.h.core.Stats(); s.Resident > s.Budget {
				t.Fatalf("resident %d of %d bytes", s.Resident, s.Budget)
			}
		},
	}
}

// A Map does what a Go map does, whether 5, 20 or 100 per cent of it are local.
func TestMapIsAMap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(undated{t}, func(rt *rapid.T) {
			local := rapid.SampledFrom([]int64{0, 512 << 10, 4 << 20}).Draw(rt, "local")
			h, m := openTiny(rt, storetest.New(tinySegment, 400), local)
			ma := &machine{m: m, md: model{}}
			ma.fill(rt)
			rt.Repeat(ma.actions())
			if err := h.Close(); err != nil {
				rt.Fatal(err)
			}
		})
	})
}

// undated hides that a test has a deadline, which rapid would ask for and
// synctest does not tell.
type undated struct{ rapid.TB }

// The same script gives the same answers whatever the budget.
func TestAnswersDoNotDependOnTheBudget(t *testing.T) {
	t.Parallel()
	rounds, locals := 20000, []int64{0, 400 << 10, 1 << 20}
	if invariants.Enabled { // "make plain" has them all
		rounds, locals = 6000, locals[:2]
	}
	script := func(t *testing.T, local int64, segSize int) (answers uint32, stats testStats) {
		h, m := openTiny(t, heap.NewMemStore(segSize, 4000), local)
		defer h.Close()
		ctx := within(t, time.Minute)
		r := rand.New(rand.NewPCG(7, 7))
		sum := crc32.NewIEEE()
		for i := range rounds {
			k := fmt.Append(nil, "k", r.IntN(2000))
			switch r.IntN(10) {
			case 0, 1, 2:
				n := r.IntN(1000)
				if r.IntN(50) == 0 {
					n *= 20
				}
				if err := m.Set(ctx, k, Entry{Value: value(uint64(i), n), Tag: uint8(i)}); err != nil {
					t.Fatal(err)
				}
			case 3:
				ok, err := m.Delete(ctx, k)
				fmt.Fprintln(sum, ok, err)
			case 4:
				err := m.Update(ctx, k, func(old Entry, found bool) (Entry, Verdict, error) {
					if len(old.Value) > 100 {
						old.Value = old.Value[1:]
						return old, Put, nil
					}
					return Entry{Value: append([]byte("u"), old.Value...)}, Put, nil
				})
				if err != nil {
					t.Fatal(err)
				}
			case 5:
				_, n, err := m.Stat(ctx, k)
				fmt.Fprintln(sum, n, err)
			default:
				e, err := m.Get(ctx, k, nil)
				fmt.Fprintln(sum, e.Tag, err)
				sum.Write(e.Value)
			}
			if i%4000 == 0 {
				var keys []string
				for k, err := range allKeys(ctx, m) {
					if err != nil {
						t.Fatal(err)
					}
					keys = append(keys, string(k))
				}
				slices.Sort(keys)
				fmt.Fprintln(sum, keys, m.Len())
			}
		}
		return sum.Sum32(), h.Stats()
	}
	want, s := script(t, 16<<20, tinySegment)
	if s.Fetches != 0 {
		t.Fatalf("with everything local there were %d fetches", s.Fetches)
	}
	for _, local := range locals {
		for _, segSize := range []int{16 << 10, 256 << 10} {
			got, s := script(t, local, segSize)
			if got != want {
				t.Errorf("local %d, segments of %d: other answers", local, segSize)
			}
			if s.Fetches == 0 {
				t.Errorf("local %d: nothing was fetched", local)
			}
		}
	}
}
