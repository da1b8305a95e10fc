package soft

import "polder/soft/wire"

// rankFree is published for segments that hold nothing: they are revoked
// first.
const rankFree = wire.RankFree

// ranking is the sorting stage: it publishes, for each segment, the sum of
// size times hotness of its objects, so that a coordinator that must take
// segments without our help takes the coldest.
type ranking struct {
	next uint32
}

// rankBatch is how many segments are ranked in one tick, so that ranking
// takes a few hundredths of a processor at most.
const rankBatch = 32

func (r *ranking) refresh(h *Heap) {
	h.profiles.warn(h.log)
	if h.client == nil {
		return
	}
	for n, seen := 0, 0; n < rankBatch && seen < h.n; seen++ {
		seg := r.next
		r.next = (r.next + 1) % uint32(h.n)
		if r.rank(h, seg) {
			n++
		}
	}
}

// rank publishes one segment's rank and reports whether it had to be read.
func (r *ranking) rank(h *Heap, seg uint32) bool {
	h.mu.Lock()
	state, end := h.list.state[seg], h.list.end[seg]
	h.mu.Unlock()
	switch state {
	case segAway:
		return false
	case segFree:
		h.ctl.SetRank(seg, rankFree)
		return false
	case segOpen: // in use just now: taken last
		h.ctl.SetRank(seg, rankFree-1)
		return false
	}
	gen := h.ctl.Generation(seg)
	if gen&1 != 0 {
		return false
	}
	v := victim{e: &h.evac, seg: seg, gen: gen, end: end}
	var sum uint64
	v.walk(func(w word, hd header) bool {
		sum += uint64(hd.size) * uint64(1+v.hotness(w))
		return true
	})
	h.ctl.SetRank(seg, sum)
	return true
}
