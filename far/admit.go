package far

import (
	"math/bits"
	"polder/far/index"
)

// What a miss brings is not always worth a place in local memory, which costs the
// copy of it, and the eviction of something else, perhaps of something better. So
// an entry is admitted when it is fetched for the second time within
// a while: as long as it takes to fetch a quarter, at the most, of what local memory holds.
// The index remembers, in the word of a far entry that was not
// admitted, when it was fetched. (It is the idea of 2Q's queue A1out, of Johnson
// and Shasha, VLDB 1994, for which CLOCK's words have some bits to spare.)
//
// While there is room that nobody has to make, everything is admitted, and so is
// what is brought for being used later: by Fetch, FetchHeads and Prefetch.

const (
	// admitShare is the part of the local memory that is fetched in an epoch. An
	// entry is admitted if it was fetched in this epoch or in the one before.
	admitShare = 8
	// epochs is how many there are before their numbers, from 1, come again. What
	// was fetched so long ago is taken for recent.
	epochs = 63
)

// admits reports whether the entry of the far word w, which is about to be fetched,
// should be local from now on, and remembers the time if not. sh.mu must be held.
func (sh *shard) admits(h *Heap, w *index.Word) bool {
	shift := h.epochShift()
	then := sh.missed >> shift
	sh.missed += uint64(w.Size())
	now := sh.missed >> shift
	if now != then {
		h.core.Logs.Weigh()
	}
	// Fetching what is larger than an epoch's worth does not make it old at once.
	stamp := uint64(*w & index.StampMask >> index.StampShift)
	if stamp != 0 && (then+epochs-(stamp-1))%epochs <= 1 || h.core.Logs.Roomy() {
		return true
	}
	*w = *w&^index.StampMask | index.Word(now%epochs+1)<<index.StampShift
	return false
}

// epochShift is log2 of how many bytes a shard fetches in an epoch.
func (h *Heap) epochShift() int {
	return max(bits.Len64(uint64(h.Local()/int64(h.shards)/admitShare))-1, 0)
}
