package bytemap

import (
	"context"
	"errors"

	"polder/far/heap"
	"polder/far/index"
)

// share is how many bytes of a budget the tables of all maps may take before words are settled: half of it, less what
// buffers, logs and pointers take, or a fifth if that is more. A word takes 16 bytes, and spares as many reads as an
// entry that stays local, which takes ten times as much. What pointers take, and may take again, counts twice, so
// that there is room for as much again. If the heap takes checkpoints, the share is a fifth: a checkpoint has a copy
// of the tables.
func (h *Maps) share(budget int64) int64 {
	if h.core.Far.Keeps() {
		return budget / 5
	}
	l := &h.core.Logs
	return max(budget/5, budget/2-h.fixed-2*(l.Of(heap.Words)+l.Of(heap.Nodes)+l.Asleep()))
}

// tight reports whether the tables of maps have used up their share of the budget.
func (h *Maps) tight() bool {
	return h.settleAlways || h.core.Logs.Of(heap.Tables) >= h.share(h.core.Local())
}

// mayDouble reports whether d may be doubled, or whether its leaves are to be longer instead. If the heap takes
// checkpoints, directories may take an eighth of the budget, and a page each: a checkpoint has a copy of them, and
// nothing of a directory can make way for it.
func (h *Maps) mayDouble(d *index.Dir) bool {
	n := d.DoubledBytes() - d.Bytes()
	return n == 0 || d.Len() == 0 || !h.core.Far.Keeps() || h.core.Logs.Of(heap.Leaves)+n <= h.core.Local()/8
}

// SetLocal is heap.Heap.SetLocal of the memory. Tables that have more than their share of the new budget become
// smaller, as far as their words can go far. Words of local entries can do so once these entries are far, so a much
// smaller budget takes several steps.
func (h *Maps) SetLocal(ctx context.Context, budget int64) error {
	was := h.core.Local()
	for now := was; ; now /= 2 {
		next := max(now/2, budget)
		err := h.shrink(ctx, h.share(next))
		if err == nil {
			err = h.core.SetLocal(ctx, next)
		}
		if err != nil && ctx.Err() == nil && h.core.Local() != was {
			return errors.Join(err, h.core.SetLocal(ctx, was))
		}
		if err != nil || next == budget {
			return err
		}
	}
}

// Halve makes tables half as large, or as small as they can be now, and reports whether they became smaller. For
// their words, it uses the last spare segments of pages.
func (h *Maps) Halve(ctx context.Context) (bool, error) {
	h.settler.urgent.Store(true)
	defer h.settler.urgent.Store(false)
	was := h.core.Logs.Of(heap.Tables)
	err := h.shrink(ctx, was/2)
	return h.core.Logs.Of(heap.Tables) < was, err
}

// shrink makes tables take no more than share, as far as their words can go far.
func (h *Maps) shrink(ctx context.Context, share int64) error {
	all := h.core.Logs.Of(heap.Tables)
	for settle := true; all > share; settle = false {
		waits := false
		h.eachShard(func(sh *shard) {
			waits = sh.fit(h, int64(float64(sh.t.Bytes())*float64(share)/float64(all)), settle) || waits
		})
		if !waits {
			break
		}
		for waits {
			if err := h.settler.wait(ctx); err != nil {
				return err
			}
			waits = false
			h.eachShard(func(sh *shard) { waits = waits || sh.cold != nil && sh.cold.settling })
		}
	}
	return nil
}

// eachShard calls fn for each shard of the maps that are used, with its lock held.
func (h *Maps) eachShard(fn func(sh *shard)) {
	for _, m := range *h.maps.Load() {
		m.eachShard(fn)
	}
}

// fit shrinks the table of sh to size bytes, or to as few more as hold the words that it cannot forget. With settle
// set, it may first ask the settler to help; it reports whether it has. If more words are left, they have a table at a
// good load; in Halve, the smallest there can be. sh.mu must be held.
func (sh *shard) fit(h *Maps, size int64, settle bool) bool {
	if sh.t.Bytes() <= size || sh.closed {
		return false
	}
	most := index.Places(size)*2/3 - 1 // for which TableBytes is no more than size
	sh.forget(h, 0, most)
	if sh.t.Used > most && settle && sh.ripe() {
		if sh.cold == nil {
			sh.cold = new(leafIndex)
		}
		sh.cold.settling = sh.cold.shelf == nil
		return sh.cold.settling
	}
	size = index.TableBytes(max(sh.t.Used, most))
	if sh.t.Used > most && h.settler.urgent.Load() {
		size = index.DenseBytes(sh.t.Used)
	}
	if size < sh.t.Bytes() {
		_ = sh.resize(h, size) // it stays as it is if the kernel has no memory
	}
	return false
}
