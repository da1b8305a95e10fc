package bytemap

import (
	"context"
	"fmt"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/pagelog"
	"polder/internal/sizeclass"
)

// Audit recounts, from the indexes, everything that is counted, adds it to t, and returns an error for the first
// count that does not agree. Nothing may be under way.
func (h *Maps) Audit(t *heap.Tally) error {
	t.Index[heap.Settling], t.Index[heap.Leaves] = h.settler.bytes()
	t.Unsure = h.settler.burying() || h.leavesLost.Load()
	if n := h.miscounts.Load(); n > 0 {
		return fmt.Errorf("the count of a leaf was wrong %d times", n)
	}
	for _, m := range *h.maps.Load() {
		for i := range m.shards() {
			sh := m.at(i)
			t.Index[heap.Tables] += sh.t.Bytes()
			entries, lost, used := 0, 0, 0
			if sh.hasLeaves() {
				t.Index[heap.Leaves] += sh.cold.Bytes()
				entries, lost = sh.cold.Count(), sh.cold.lost
				if err := h.auditLeaves(sh, t.AddFar); err != nil {
					t.Unsure = true
				}
			}
			if sh.cold != nil && sh.cold.shelf != nil {
				t.Index[heap.Leaves] += sh.cold.shelf.dir.Bytes()
				t.Unsure = true
			}
			for b := range sh.t.Buckets {
				for j, w := range sh.t.Buckets[b].Words {
					if w == 0 {
						continue
					}
					used++
					if w.Far() && w.Addr() == 0 {
						if w.Visible() {
							lost++
						}
						continue
					}
					if w.Visible() && w.IsLost() {
						lost++
					} else if w.Visible() {
						entries++
					}
					if w.Far() {
						t.AddFar(w.Addr(), w.Size())
						continue
					}
					e := h.entryAt(w.Addr())
					if tag := sh.t.Buckets[b].Tags[j]; e.Hash().Tag() != tag || m.shard(e.Hash()) != sh || e.Owner() != m.id {
						return fmt.Errorf("map %q: the entry at %#x is not that of tag %#x in shard %d", m.name, w.Addr(), tag, i)
					}
					if sizeclass.Of(e.FarSize()) != uint8(w>>heap.AddrBits) || entry.WordFlags(e) != w.OfEntry() {
						return fmt.Errorf("map %q: the word %#x is not that of its entry", m.name, w)
					}
					t.AddLocal(w.Addr(), e.Size(), e.Clean())
					if e.Clean() {
						t.AddFar(e.Far(), w.Size())
					}
				}
			}
			if entries != sh.entries || lost != sh.lost || used != sh.t.Used {
				return fmt.Errorf("map %q, shard %d: %d entries, %d lost, %d in all, but counted are %d, %d, %d",
					m.name, i, entries, lost, used, sh.entries, sh.lost, sh.t.Used)
			}
		}
	}
	return nil
}

// auditLeaves counts what sh knows by its leaves alone, and the leaves. It fails if it cannot read one.
func (h *Maps) auditLeaves(sh *shard, add func(addr uint64, size int)) error {
	ctx := context.Background()
	for i := 0; i < sh.cold.Len(); {
		first, n := sh.cold.Group(i)
		i = first + n
		ref := sh.cold.At(first)
		if ref.Addr() == 0 {
			continue
		}
		size := sizeclass.Size(ref.Class())
		add(ref.Addr(), size)
		leaves, errs := h.readLeaves(ctx, []pagelog.Read{pagelog.NewRead(h.core, ref.Addr(), make([]byte, size))})
		if errs[0] != nil {
			return errs[0]
		}
		count := 0
		for k := range leaves[0].Len() {
			sl := leaves[0].At(k)
			if w := sl.Word; !sh.known(sl.Tag) {
				add(w.Addr(), w.Size())
				if !w.IsLost() {
					count++
				}
			}
		}
		if count != ref.Count() {
			panic(fmt.Sprintf("BUG: the leaf of range %d of shard %d has %d entries that are not known, but counted are %d", first, sh.id, count, ref.Count()))
		}
	}
	return nil
}
