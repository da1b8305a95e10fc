package finemem

import (
	"errors"
	"math/bits"
	"sync/atomic"

	"polder/memnode/twolayer"
	"polder/pool/manager"
)

// Runs says how large a block is to be for a part of a run of chunks: as large as there is
// room for of late, so that a run takes few requests. It may be used by any number of
// goroutines.
type Runs struct {
	short  atomic.Int32 // classes less than a section's that there was room for of late
	spared atomic.Int32 // blocks since then that were to be larger
}

// retryLarger is after how many blocks that are smaller than they could be a larger
// one is tried again: to find that there is none takes a look at everything.
const retryLarger = 64

// Alloc has alloc allocate the largest block of at most n chunks of a class that there
// is, and no larger than a section unless that is less than a chunk.
func (r *Runs) Alloc(class, n int, alloc func(class int) error) error {
	k := max(class, min(class+bits.Len(uint(n))-1, twolayer.SectionClass))
	if fits := twolayer.SectionClass - int(r.short.Load()); k > fits {
		if r.spared.Add(1) < retryLarger {
			k = max(class, fits)
		} else {
			r.spared.Store(0)
		}
	}
	for {
		err := alloc(k)
		if short := int32(twolayer.SectionClass - k); err == nil && short < r.short.Load() {
			r.short.Store(short)
		}
		if k == class || !errors.Is(err, manager.ErrNoMemory) {
			return err
		}
		k--
		r.short.Store(int32(twolayer.SectionClass - k))
	}
}
