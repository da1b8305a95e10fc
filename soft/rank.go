package soft

import (
	"encoding/binary"
	"time"

	"polder/soft/wire"
)

// rankFree is published for segments that hold nothing: they are revoked
// first.
const rankFree = wire.RankFree

// ranking is the sorting stage: it publishes, for each segment, the sum of
// size times hotness of its objects, so that a coordinator that must take
// segments without our help takes the coldest. It goes by the accounts and the
// hotness counters, and reads no object.
type ranking struct {
	next uint32
}

const (
	// rankEvery is how old a rank is at most.
	rankEvery = 4 * time.Second

	// rankLeast is how many segments are ranked in one tick at least.
	rankLeast = 32
)

// rankShare is how many segments are ranked in one tick if the heap has been granted so many.
func rankShare(granted int) int {
	const ticks = int(rankEvery / tick)
	return max((granted+ticks-1)/ticks, rankLeast)
}

func (r *ranking) refresh(h *Heap) {
	h.accounts.warn(h.log)
	if h.client == nil {
		return
	}
	share := rankShare(int(h.Budget() / SegmentSize))
	for n, seen := 0, 0; n < share && seen < h.n; seen++ {
		seg := r.next
		r.next = (r.next + 1) % uint32(h.n)
		if h.rank(seg) {
			n++
		}
	}
}

// rank publishes a segment's rank and reports whether it was computed from the segment's objects. Free and open
// segments have fixed ranks; nothing is published for a segment that is away.
func (h *Heap) rank(seg uint32) bool {
	h.mu.Lock()
	state := h.list.state[seg]
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
	account := live(h.live[seg].Load())
	size, objects := uint64(account.granules())*granule, uint64(account.objects())
	var sum uint64
	if objects > 0 { // dead objects' counters are in the sum, too: hence the bound
		sum = size + min(size*h.hotnessOf(seg)/objects, size*hottest)
	}
	h.ctl.SetRank(seg, sum)
	return true
}

// hotnessOf is the sum of a segment's hotness counters.
func (h *Heap) hotnessOf(seg uint32) (sum uint64) {
	const ones = 0x0101010101010101
	hot := h.hot[int(seg)*hotPerSeg : (int(seg)+1)*hotPerSeg]
	for len(hot) >= 8 {
		sum += binary.LittleEndian.Uint64(hot) * ones >> 56 // the sum of eight counters, which are at most hottest
		hot = hot[8:]
	}
	return sum
}
