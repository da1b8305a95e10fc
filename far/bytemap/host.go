package bytemap

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
	"polder/far/pagelog"
	"polder/internal/sizeclass"
)

// Owner returns the owner of the entries of the map of a number, nil if there is none: for heap.Host.
func (h *Maps) Owner(id uint16) heap.Owner {
	if maps := *h.maps.Load(); int(id) < len(maps) {
		return (*owner)(maps[id])
	}
	return nil
}

// Lost is for heap.Host.
func (h *Maps) Lost(s *heap.FarSegment) {
	heads := false
	for _, m := range *h.maps.Load() {
		for i := range m.shards() {
			heads = m.at(i).lose(h, s) || heads
		}
	}
	if heads {
		h.strays.Store(true)
	}
}

// maxStrayWait is the longest wait before the index is searched for stray
// pieces again, after some of what it refers to could not be read.
const maxStrayWait = 10 * time.Second

// Chores is for heap.Host: it removes the pieces of large values that are gone, and
// looks for entries whose time has come and that nobody asks for.
func (h *Maps) Chores(tick bool) {
	if tick && time.Now().After(h.strayNext) && h.strays.Swap(false) {
		if h.buryStrays() {
			h.strayWait = 0
		} else {
			h.strays.Store(true)
			h.strayWait = min(2*h.strayWait+heap.SweepEvery, maxStrayWait)
			h.strayNext = time.Now().Add(h.strayWait)
		}
	}
	if tick && h.settler.burying() {
		h.settler.wake()
	}
	h.buryOrphans()
	for tick && h.core.Ctx.Err() == nil && h.sweeper.sweep(h) {
	}
}

// Freeing is for heap.Host.
func (h *Maps) Freeing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.orphans) > 0
}

// Learns is for heap.Host.
func (h *Maps) Learns() bool { return h.settler.learn.Load() != nil }

// Leaks is for heap.Host. When a leaf is lost, nobody knows any more what it referred to. Leaks reports false while
// leaves are yet to be buried, since those still refer to records.
func (h *Maps) Leaks() bool { return h.leavesLost.Load() && !h.settler.burying() }

// learnPatience is how long the cleaner waits, at the most, for places in tables, so that it need not read leaves
// again. The settler makes these places, and needs nothing of the cleaner for that.
const learnPatience = 10 * time.Millisecond

// learnRounds is how often the cleaner asks again for leaves that have been replaced while it read others.
const learnRounds = 8

// Learn is for heap.Host: it sees to it that the tables know which of rs live.
func (h *Maps) Learn(ctx context.Context, rs []heap.Suspect) error {
	if len(rs) == 0 {
		h.cleaning.Store(0)
		return nil
	}
	if h.settler.burying() {
		return heap.ErrNotNow // what the settler has yet to bury would stay there
	}
	h.cleaning.Store(rs[0].Addr / h.core.Far.Units)
	for range learnRounds {
		all, err := h.unknown(rs)
		if err != nil || len(all) == 0 {
			return err
		}
		if err := h.learnFrom(ctx, rs, all); err != nil {
			return err
		}
	}
	return heap.ErrNotNow
}

// unsureOf is a suspect. Only a leaf knows whether it lives.
type unsureOf struct {
	i    int // its number among the suspects
	sh   *shard
	part int    // the range of its tag
	addr uint64 // of the leaf
}

// unknown returns the suspects among rs of which only leaves know whether they live, in order of the leaves' addresses.
func (h *Maps) unknown(rs []heap.Suspect) (all []unsureOf, err error) {
	maps := *h.maps.Load()
	for i := range rs {
		r := &rs[i]
		if int(r.Owner) >= len(maps) || r.Dead {
			continue
		}
		hs := entry.Hash(r.Number)
		sh := maps[r.Owner].shard(hs)
		sh.mu.Lock()
		if sh.hasLeaves() && !sh.known(hs.Tag()) {
			k := sh.cold.Of(hs.Tag())
			if a := sh.cold.At(k).Addr(); a != 0 {
				all = append(all, unsureOf{i, sh, k, a})
			}
		}
		shelved := sh.cold != nil && sh.cold.shelf != nil
		sh.mu.Unlock()
		if shelved {
			return nil, heap.ErrNotNow // a rollback may bring its leaves back
		}
	}
	slices.SortFunc(all, func(a, b unsureOf) int { return cmp.Compare(a.addr, b.addr) })
	return all, nil
}

// learnFrom reads the leaves of all, and makes tables know which of rs live. If a leaf is replaced meanwhile, what it
// would say stays unknown.
func (h *Maps) learnFrom(ctx context.Context, rs []heap.Suspect, all []unsureOf) error {
	buf := *h.settler.learn.Load()
	patience, end := context.WithTimeout(ctx, learnPatience)
	defer end()
	var reads pagelog.Reads
	for len(all) > 0 {
		reads.Begin(buf)
		n := 0
		stale := uint64(0) // address of a leaf that has been replaced
		for ; n < len(all); n++ {
			a := all[n]
			if k := len(reads.Pages); k > 0 && reads.Pages[k-1].Addr == a.addr || a.addr == stale {
				continue
			}
			full := false
			a.sh.mu.Lock()
			if a.sh.refers(a.part, a.addr) {
				full = !reads.Add(h.core, a.addr, sizeclass.Size(a.sh.cold.At(a.part).Class()))
			} else {
				stale = a.addr
			}
			a.sh.mu.Unlock()
			if full {
				break
			}
		}
		leaves, errs := h.readLeaves(ctx, reads.Pages)
		k := 0
		for _, a := range all[:n] {
			for k < len(reads.Pages) && reads.Pages[k].Addr < a.addr {
				k++
			}
			if k == len(reads.Pages) || reads.Pages[k].Addr != a.addr {
				continue // it is stale
			}
			if errs[k] != nil {
				return fmt.Errorf("cannot clean far memory: %w", errs[k])
			}
			r := &rs[a.i]
			for {
				a.sh.mu.Lock()
				err := a.sh.suspect(h, r, entry.Hash(r.Number).Tag(), a.part, a.addr, leaves[k])
				a.sh.mu.Unlock()
				if err == nil {
					break
				}
				if h.settler.wait(patience) != nil {
					return err
				}
			}
		}
		all = all[n:]
	}
	return ctx.Err()
}

// refers reports whether the leaf of range i is that at addr. sh.mu must be held.
func (sh *shard) refers(i int, addr uint64) bool {
	return sh.hasLeaves() && i < sh.cold.Len() && sh.cold.At(i).Addr() == addr
}

// suspect finds out from leaf, which was read at addr for range i, whether r lives. If so, the table learns its tag,
// or suspect fails with heap.ErrNotNow for want of a place; if not, suspect sets r.Dead. sh.mu must be held.
func (sh *shard) suspect(h *Maps, r *heap.Suspect, tag uint32, i int, addr uint64, leaf index.Leaf) error {
	if sh.known(tag) || !sh.refers(i, addr) || sh.cold.Of(tag) != i {
		return nil // r is known, or its leaf has to be asked for again
	}
	for k := leaf.Find(tag); k < leaf.Len() && leaf.At(k).Tag == tag; k++ {
		if leaf.At(k).Word.Addr() == r.Addr {
			if sh.learn(h, tag, i, leaf, index.HotMask) == crowded {
				return heap.ErrNotNow
			}
			return nil
		}
	}
	r.Dead = true
	return nil
}
