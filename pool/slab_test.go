package pool

import (
	"testing"

	"pgregory.net/rapid"
)

func testSlab(t *testing.T, size int) *slab {
	t.Helper()
	s, err := newSlab(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// wantWhole fails unless all of the slab can be had in the largest blocks.
func wantWhole(t interface{ Fatalf(string, ...any) }, s *slab) {
	var all []block
	for {
		b, ok := s.try(maxBlock)
		if !ok {
			break
		}
		all = append(all, b)
	}
	if want := len(s.mem.Bytes()) / maxBlock; len(all) != want {
		t.Fatalf("an unused slab gives %d blocks of %d bytes, want %d", len(all), maxBlock, want)
	}
	for _, b := range all {
		s.release(b)
	}
}

func TestBlocksDoNotOverlapAndMergeAgain(t *testing.T) {
	s := testSlab(t, 4*maxBlock)
	rapid.Check(t, func(t *rapid.T) {
		type held struct {
			b block
			n int
		}
		var out []held
		taken := make([]bool, len(s.mem.Bytes())/minBlock)
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.OneOf(rapid.IntRange(1, 5000), rapid.IntRange(1, maxBlock)).Draw(t, "size")
				b, ok := s.try(n)
				if !ok {
					return
				}
				for i := int(b.off) / minBlock; i <= (int(b.off)+n-1)/minBlock; i++ {
					if taken[i] {
						t.Fatalf("a block of %d bytes at %d overlaps another", n, b.off)
					}
					taken[i] = true
				}
				out = append(out, held{b, n})
			},
			"release": func(t *rapid.T) {
				if len(out) == 0 {
					t.Skip("nothing is out")
				}
				i := rapid.IntRange(0, len(out)-1).Draw(t, "block")
				h := out[i]
				for k := int(h.b.off) / minBlock; k <= (int(h.b.off)+h.n-1)/minBlock; k++ {
					taken[k] = false
				}
				s.release(h.b)
				out = append(out[:i], out[i+1:]...)
			},
		})
		for _, h := range out {
			s.release(h.b)
		}
		if s.used != 0 {
			t.Fatalf("%d bytes are in use after all were released", s.used)
		}
		wantWhole(t, s)
	})
}

func TestWaitersAreServedInOrder(t *testing.T) {
	s := testSlab(t, maxBlock)
	first, ok := s.try(maxBlock)
	if !ok {
		t.Fatal("an unused slab gives nothing")
	}
	wait := func(n int) *roomWaiter {
		w := &roomWaiter{ready: make(chan block, 1)}
		s.enqueue(w, n)
		return w
	}
	small, big, gone, last := wait(100), wait(maxBlock), wait(5), wait(minBlock)
	s.release(first)
	b := <-small.ready
	if len(big.ready)+len(gone.ready)+len(last.ready) != 0 {
		t.Fatal("a later waiter overtook the one that needs everything")
	}
	if _, ok := s.try(1); ok {
		t.Fatal("somebody who did not wait overtook those who do")
	}
	s.cancel(gone)
	s.release(b)
	b = <-big.ready
	s.release(b)
	s.cancel(last) // it has been served, and gives the block back
	wantWhole(t, s)
}
