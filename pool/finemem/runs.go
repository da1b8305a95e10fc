package finemem

import (
	"errors"
	"math/bits"
	"sync/atomic"

	"polder/memnode/twolayer"
	"polder/pool/manager"
)

// Runs chooses the sizes of the blocks for a run of chunks: as large as there was room for lately, so that a run
// takes few requests. It may be used by any number of goroutines.
type Runs struct {
	short  atomic.Int32 // how many classes below a section's the largest block is that there was room for lately
	spared atomic.Int32 // blocks since then that could have been larger
}

// retryLarger is the number of smaller blocks after which a larger one is tried again. It is not tried each time,
// since finding out that there is none takes a look at everything.
const retryLarger = 64

// Alloc calls alloc with the class of the block to allocate, and with smaller ones while there is no memory. The
// block has at most n chunks, which are of the given class, and is no larger than a section, but always at least a
// chunk.
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
