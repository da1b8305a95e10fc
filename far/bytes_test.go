package far

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"polder/far/heap"
	"polder/internal/invariants"
)

// patterned is n bytes that tell where they belong.
func patterned(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 3))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestByteStringsOfAllSizes(t *testing.T) {
	t.Parallel()
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<12), 16)
	ctx := context.Background()
	piece := h.bytesPiece()
	for _, n := range []int{0, 1, 15, piece - 1, piece, piece + 1, 3*piece + 5, piece/8*piece/8 + 1} {
		want := patterned(n, uint64(n))
		s, err := NewBytes(ctx, h, want)
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		got, err := s.Append(ctx, []byte("x"))
		if err != nil || !bytes.Equal(got[1:], want) {
			t.Fatalf("%d bytes: got %d (%v), which are not the same", n, len(got)-1, err)
		}
		if l, err := s.Len(ctx); l != n || err != nil {
			t.Errorf("%d bytes: Len is %d, %v", n, l, err)
		}
		for _, off := range []int{0, n / 3, max(n-7, 0), n} {
			p := make([]byte, min(n, 2*piece))
			k, err := s.ReadAt(ctx, p, int64(off))
			if wantK := min(len(p), n-off); k != wantK || !bytes.Equal(p[:k], want[off:off+k]) ||
				err != nil && (err != io.EOF || k == len(p)) || err == nil && k < len(p) {
				t.Errorf("%d bytes: ReadAt(%d at %d) gave %d, %v", n, len(p), off, k, err)
			}
		}
		other := patterned(n/2, 7)
		if err := s.Replace(ctx, other); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Append(ctx, nil); err != nil || !bytes.Equal(got, other) {
			t.Fatalf("%d bytes, replaced: got %d bytes, %v", n, len(got), err)
		}
		if err := s.Free(ctx); err != nil {
			t.Error(err)
		}
		if n := h.Stats().Pointers; n != 0 {
			t.Fatalf("%d pointers are left", n)
		}
	}
	if h.Stats().Evacuated == 0 {
		t.Error("nothing was evacuated")
	}
}

// A string is read back that is several times as large as local memory.
func TestByteStringLargerThanLocalMemory(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	t.Parallel()
	longString(t, 32<<20)
}

// TestSoakLongestByteString does the same with the longest string there may be.
// It takes 2 GiB of memory, or 6 with the race detector, and does nothing unless
// TEST_SOAK is set.
func TestSoakLongestByteString(t *testing.T) {
	if os.Getenv("TEST_SOAK") != "" {
		longString(t, MaxBytes)
	}
}

func longString(t *testing.T, size int) {
	const local = 8 << 20
	h, err := NewHeap(heap.NewMemStore(1<<20, size>>20*5/4+16), Config{Local: local})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	want := make([]byte, size)
	if _, err := rand.NewChaCha8([32]byte{1}).Read(want); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(want)
	ctx := t.Context()
	s, err := NewBytes(ctx, h, want)
	if err != nil {
		t.Fatal(err)
	}
	got, n := sha256.New(), 0
	s.pieces(ctx, 0, func(piece []byte, err error) bool {
		if err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
		got.Write(piece)
		n += len(piece)
		return true
	})
	if n != size || !bytes.Equal(got.Sum(nil), sum[:]) {
		t.Errorf("got %d bytes that are not the %d that were stored", n, size)
	}
	part := make([]byte, 100<<10)
	off := size - 2*len(part) - 13
	if n, err := s.ReadAt(ctx, part, int64(off)); n != len(part) || err != nil || !bytes.Equal(part, want[off:off+n]) {
		t.Errorf("ReadAt(%d bytes at %d) gave %d, %v, or other bytes", len(part), off, n, err)
	}
	if st := h.Stats(); st.Resident > local || st.Evacuated == 0 {
		t.Errorf("%d bytes are resident with a budget of %d, and %d objects were evacuated", st.Resident, local, st.Evacuated)
	}
	if err := s.Free(ctx); err != nil {
		t.Error(err)
	}
	if n := h.Stats().Pointers; n != 0 {
		t.Errorf("%d pointers are left", n)
	}
}

// Who reads a string while it is replaced gets one version or another.
func TestByteStringsAreReplacedAtOnce(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 24)
	ctx := context.Background()
	version := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 40000+i*1000) }
	s, err := NewBytes(ctx, h, version(0))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for id := range 4 {
		wg.Go(func() {
			for i := range 40 {
				if id == 0 {
					if err := s.Replace(ctx, version(i%100)); err != nil {
						t.Error(err)
					}
					continue
				}
				b, err := s.Append(ctx, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(b, version(int(b[0]))) {
					t.Errorf("got %d bytes, the first of version %d", len(b), b[0])
				}
			}
		})
	}
	wg.Wait()
	if err := s.Free(ctx); err != nil {
		t.Error(err)
	}
	if n := h.Stats().Pointers; n != 0 {
		t.Errorf("%d pointers are left", n)
	}
}

func TestSharedPointersKeepTheirObject(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	p, err := New(context.Background(), h, point{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	a := Share(p)
	b := a.Clone()
	a.Free()
	if err := b.Store(context.Background(), point{3, 4}); err != nil {
		t.Fatal(err)
	}
	if v, err := b.Load(context.Background()); err != nil || v != (point{3, 4}) {
		t.Errorf("got %v, %v", v, err)
	}
	b.Free()
	if n := h.Stats().Pointers; n != 0 {
		t.Errorf("%d pointers are left", n)
	}
}

// A Shared that lies in far objects is the same pointer as before, wherever they have been, and
// keeps its object until each of them is freed.
func TestSharedPointersLieInFarObjects(t *testing.T) {
	type line struct {
		end SharedRef[point]
		_   [40]int64
	}
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	defer h.Close()
	ctx := t.Context()
	end := Share(got(New(ctx, h, point{1, 2}))(t))
	var lines []Ptr[line]
	for i := range 1500 { // more than is local
		s := end
		if i > 0 {
			s = end.Clone()
		}
		lines = append(lines, got(New(ctx, h, line{end: s.Ref()}))(t))
	}
	if h.Stats().Evacuated == 0 {
		t.Fatal("all is local")
	}
	for i, l := range lines {
		s := got(l.Load(ctx))(t).end.Shared(h)
		if v := got(s.Load(ctx))(t); v != (point{1, 2}) {
			t.Fatalf("line %d ends at %v", i, v)
		}
		s.Free()
		l.Free()
	}
	if n := h.Stats().Pointers; n != 0 || len(h.clones.extra) != 0 {
		t.Errorf("%d pointers and %d counts are left", n, len(h.clones.extra))
	}
	if !new(SharedRef[point]).IsNil() {
		t.Error("the zero SharedRef points to something")
	}
}

// Pointers do what Go's do, whatever of them is local.
func TestPointersAreLikeGos(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lay := tiny
		lay.Logs = 12 * int64(lay.SegSize)
		h, err := newHeap(heap.NewMemStore(tinySegment, 1<<10), Config{Local: lay.Logs, MaxLocal: lay.Logs}, lay)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
		}()
		ctx := context.Background()
		type object [40]int64
		invert := func(b []byte) {
			for last := 39 * 8; last < 40*8; last++ {
				b[last] = ^b[last]
			}
		}
		c, err := NewClass[object](h, ClassConfig{
			HotBits:    rapid.IntRange(1, 8).Draw(t, "hot bits"),
			Evacuating: invert,
			Fetched:    invert,
		})
		if err != nil {
			t.Fatal(err)
		}
		s := h.NewScope()
		defer s.Close()
		type pair struct {
			p Ptr[object]
			v object
		}
		run, err := c.NewRun(ctx, 100)
		if err != nil {
			t.Fatal(err)
		}
		var all []*pair
		for i := range run.Len() {
			all = append(all, &pair{p: run.At(i)})
		}
		for range 600 {
			all = append(all, &pair{})
			q := all[len(all)-1]
			q.v[0], q.v[39] = int64(len(all)), int64(-len(all))
			if q.p, err = c.New(ctx, q.v); err != nil {
				t.Fatal(err)
			}
		}
		pick := func(t *rapid.T) *pair { return all[rapid.IntRange(0, len(all)-1).Draw(t, "which")] }
		check := func(t *rapid.T, q *pair, o *object) {
			if o == nil {
				t.Fatalf("Deref: %v", s.Err())
			}
			if *o != q.v {
				t.Fatalf("got %v, want %v", *o, q.v)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"read": func(t *rapid.T) {
				q := pick(t)
				s.Enter()
				check(t, q, q.p.Deref(s))
				s.Leave()
			},
			"read as a stream": func(t *rapid.T) {
				q := pick(t)
				s.Enter()
				check(t, q, q.p.DerefStream(s))
				s.Leave()
			},
			"sweep": func(t *rapid.T) {
				for _, q := range all {
					s.Enter()
					check(t, q, q.p.Deref(s))
					s.Leave()
				}
			},
			"write": func(t *rapid.T) {
				q := pick(t)
				s.Enter()
				s.Enter()
				o := q.p.DerefMut(s)
				s.Leave()
				check(t, q, o)
				q.v[rapid.IntRange(0, 39).Draw(t, "at")] = rapid.Int64().Draw(t, "value")
				*o = q.v
				s.Leave()
			},
			"store": func(t *rapid.T) {
				q := pick(t)
				q.v[1] = rapid.Int64().Draw(t, "value")
				if err := q.p.Store(ctx, q.v); err != nil {
					t.Fatal(err)
				}
				if v, err := q.p.Load(ctx); err != nil || v != q.v {
					t.Fatalf("Load: got %v, %v, want %v", v, err, q.v)
				}
			},
			"replace": func(t *rapid.T) {
				q := all[100+rapid.IntRange(0, len(all)-101).Draw(t, "which")]
				q.p.Free()
				q.v = object{7: rapid.Int64().Draw(t, "value")}
				var err error
				if q.p, err = c.NewStream(ctx, q.v); err != nil {
					t.Fatal(err)
				}
			},
			"prefetch": func(t *rapid.T) {
				var refs []AnyRef
				for range 20 {
					refs = append(refs, pick(t).p.Any())
				}
				if err := h.Prefetch(ctx, refs...); err != nil {
					t.Fatal(err)
				}
			},
			"resize": func(t *rapid.T) {
				// Anything that is too little is refused.
				_ = h.SetLocal(ctx, h.core.Cfg.MaxLocal-int64(rapid.IntRange(0, 5).Draw(t, "less"))*int64(h.core.Logs.SegSize))
			},
		})
		run.Free()
		for _, q := range all[100:] {
			q.p.Free()
		}
		if n := h.Stats().Pointers; n != 0 {
			t.Fatalf("%d pointers are left", n)
		}
	})
}

func ExampleBytes() {
	h, err := NewHeap(heap.NewMemStore(1<<20, 64), Config{Local: heap.MinLocal})
	if err != nil {
		panic(err)
	}
	defer h.Close()
	ctx := context.Background()
	s, err := NewBytes(ctx, h, []byte("in the beginning"))
	if err != nil {
		panic(err)
	}
	if err := s.Replace(ctx, []byte("in the end")); err != nil {
		panic(err)
	}
	b, err := s.Append(ctx, nil)
	fmt.Println(string(b), err)
	// Output: in the end <nil>
}
