package finemem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"polder/internal/invariants"
	"polder/memnode/twolayer"
	"polder/pool/finemem"
	"polder/pool/manager"
	"polder/verbs"
)

// Every class can be allocated until there is nothing left, and again after
// everything was freed, and memory comes whole at a multiple of its size.
func TestEveryClass(t *testing.T) {
	for _, policy := range []finemem.Policy{finemem.Spread, finemem.Paper} {
		top := twolayer.Classes
		if invariants.Enabled {
			top = 12 // GiBs have thousands of words, which are read one by one then
		}
		for k := range top {
			bytes := max(uint64(4<<20+3<<12), 2*twolayer.DefaultUnit<<k)
			t.Run(fmt.Sprintf("%v/%d", policy, k), func(t *testing.T) {
				r := newRig(t, bytes, twolayer.DefaultUnit)
				a := r.allocator(7, policy, nil)
				want := int(bytes / (twolayer.DefaultUnit << k))
				rounds := 2
				for range rounds {
					held := &holders{of: make(map[uint32]uint16)}
					var blocks []finemem.Block
					for {
						b, err := a.Alloc(t.Context(), k)
						if errors.Is(err, manager.ErrNoMemory) {
							break
						}
						if err != nil {
							t.Fatal(err)
						}
						if b.First&(1<<k-1) != 0 || b.Class != k || b.Addr != 1<<40+uint64(b.First)*twolayer.DefaultUnit {
							t.Fatalf("got %+v", b)
						}
						if b.Keys() != r.table.KeysOf(k) {
							t.Fatalf("%d keys, want %d", b.Keys(), r.table.KeysOf(k))
						}
						if err := held.take(7, b); err != nil {
							t.Fatal(err)
						}
						blocks = append(blocks, b)
					}
					if len(blocks) != want {
						t.Fatalf("%d allocations of class %d, want %d", len(blocks), k, want)
					}
					if n, err := r.table.Count(); err != nil || n.Unrepaired != 0 || n.Hints != 0 {
						t.Fatalf("%+v, %v", n, err)
					}
					for _, b := range blocks {
						if err := a.Free(t.Context(), b); err != nil {
							t.Fatal(err)
						}
					}
					if n, err := r.table.Count(); err != nil || n.Extents != 0 {
						t.Fatalf("%+v, %v", n, err)
					}
				}
			})
		}
	}
}

// Memory goes from one layer to the others and back, and keys change with every
// owner.
func TestLayersShareMemory(t *testing.T) {
	r := newRig(t, 4<<20, twolayer.DefaultUnit)
	a := r.allocator(3, finemem.Spread, nil)
	seen := make(map[verbs.RKey]bool)
	for round := range 3 {
		for _, k := range []int{0, 10, 4, 9, 5, 2, 8, 10, 3} {
			var blocks []finemem.Block
			for {
				b, err := a.Alloc(t.Context(), k)
				if errors.Is(err, manager.ErrNoMemory) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				for i := range b.Keys() {
					if seen[b.Key(i)] || b.Key(i) == 0 {
						t.Fatalf("round %d: key %v was given out before", round, b.Key(i))
					}
					seen[b.Key(i)] = true
				}
				blocks = append(blocks, b)
			}
			if len(blocks) != 1024>>k {
				t.Fatalf("round %d: %d allocations of class %d, want %d", round, len(blocks), k, 1024>>k)
			}
			for _, b := range blocks {
				if err := a.Free(t.Context(), b); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// Users who allocate and free everything at once never get what another has, lose
// nothing, and leave layers that agree.
func TestManyUsers(t *testing.T) {
	for _, policy := range []finemem.Policy{finemem.Spread, finemem.Paper} {
		for _, bytes := range []uint64{2<<20 + 5<<12, 8 << 20} {
			t.Run(fmt.Sprintf("%v/%d", policy, bytes), func(t *testing.T) {
				r := newRig(t, bytes, twolayer.DefaultUnit)
				held := &holders{of: make(map[uint32]uint16)}
				var wg sync.WaitGroup
				for user := uint16(1); user <= 6; user++ {
					a := r.allocator(user, policy, nil)
					wg.Go(func() {
						if err := churn(t.Context(), a, held, user, 250); err != nil {
							t.Errorf("user %d: %v", user, err)
						}
					})
				}
				wg.Wait()
				n, err := r.table.Count()
				if err != nil || n.Extents != 0 {
					t.Fatalf("%+v, %v", n, err)
				}
				// Everything can be had again.
				a := r.allocator(9, policy, nil)
				for i := range int(bytes / (2 << 20)) {
					if _, err := a.Alloc(t.Context(), twolayer.SectionClass); err != nil {
						t.Fatalf("section %d: %v", i, err)
					}
				}
			})
		}
	}
}

// churn allocates and frees at random, and frees everything.
func churn(ctx context.Context, a *finemem.Allocator, held *holders, user uint16, rounds int) error {
	rng := rand.New(rand.NewPCG(uint64(user), 1))
	var blocks []finemem.Block
	free := func(i int) error {
		b := blocks[i]
		blocks[i] = blocks[len(blocks)-1]
		blocks = blocks[:len(blocks)-1]
		held.give(b)
		return a.Free(ctx, b)
	}
	for range rounds {
		if rng.IntN(5) < 2 && len(blocks) > 0 {
			if err := free(rng.IntN(len(blocks))); err != nil {
				return err
			}
			continue
		}
		k := []int{0, 0, 0, 0, 1, 2, 4, 5, 7, 9, 10}[rng.IntN(11)]
		b, err := a.Alloc(ctx, k)
		if errors.Is(err, manager.ErrNoMemory) {
			for range min(len(blocks), 4) {
				if err := free(rng.IntN(len(blocks))); err != nil {
					return err
				}
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := held.take(user, b); err != nil {
			return err
		}
		blocks = append(blocks, b)
	}
	for len(blocks) > 0 {
		if err := free(len(blocks) - 1); err != nil {
			return err
		}
	}
	return nil
}

// A context that ends in the middle of anything costs no memory: a later call
// finishes or undoes what was under way.
func TestGivingUp(t *testing.T) {
	r := newRig(t, 2<<20, twolayer.DefaultUnit)
	a := r.allocator(5, finemem.Spread, nil)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	rng := rand.New(rand.NewPCG(1, 1))
	var blocks []finemem.Block
	for range 300 {
		ctx := t.Context()
		if rng.IntN(2) == 0 {
			ctx = canceled
		}
		if rng.IntN(2) == 0 && len(blocks) > 0 {
			b := blocks[len(blocks)-1]
			blocks = blocks[:len(blocks)-1]
			if err := a.Free(ctx, b); err != nil && ctx.Err() == nil {
				t.Fatal(err)
			}
			continue
		}
		b, err := a.Alloc(ctx, rng.IntN(7))
		if err == nil {
			blocks = append(blocks, b)
		} else if ctx.Err() == nil && !errors.Is(err, manager.ErrNoMemory) {
			t.Fatal(err)
		}
	}
	for _, b := range blocks {
		if err := a.Free(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := r.table.Count(); err != nil || n.Extents != 0 {
		t.Fatalf("%+v, %v", n, err)
	}
}

// A user alone, or with a span for everybody, never fails a CAS, and takes one round
// trip for an allocation.
func TestUncontended(t *testing.T) {
	r := newRig(t, 8<<20, twolayer.DefaultUnit)
	for user := uint16(1); user <= 4; user++ {
		a := r.allocator(user, finemem.Spread, nil)
		for range 100 {
			if _, err := a.Alloc(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		if s := a.Stats(); s.Retries > 4 {
			t.Errorf("user %d: %+v, want hardly any retries", user, s)
		}
	}
}
