package race

import (
	"sync"
	"sync/atomic"

	"polder/pool/malloc"
)

// epochs know when no operation in progress can have seen a retired block. Operations enter the present epoch. The
// next epoch begins when all operations of the last one, which came before the present one, have left. A block that
// was retired in an epoch may be freed when the second epoch after that begins.
type epochs struct {
	now     atomic.Uint64
	inside  [3][8]counter // operations by epoch modulo 3, spread by operation
	pending atomic.Int64  // blocks in retired
	batch   int64         // how many must be pending before freeing is tried

	mu      sync.Mutex
	retired [3][]malloc.Block // by epoch modulo 3; guarded by mu
}

// A counter has a cache line of its own.
type counter struct {
	n atomic.Int64
	_ [56]byte
}

// enter enters the present epoch, and returns the counter by which the operation leaves it.
func (e *epochs) enter(by uint32) *counter {
	for {
		now := e.now.Load()
		c := &e.inside[now%3][by%8]
		c.n.Add(1)
		if e.now.Load() == now {
			return c
		}
		c.n.Add(-1)
	}
}

func (c *counter) leave() { c.n.Add(-1) }

// retire has a block freed later that no slot names any more.
func (e *epochs) retire(b malloc.Block) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now.Load() % 3
	e.retired[now] = append(e.retired[now], b)
	e.pending.Add(1)
}

// collect returns retired blocks that may be freed now. It returns none while fewer than batch are pending.
func (e *epochs) collect() []malloc.Block {
	if e.pending.Load() < e.batch || !e.mu.TryLock() {
		return nil
	}
	defer e.mu.Unlock()
	var free []malloc.Block
	for range 2 {
		now := e.now.Load()
		last := (now + 2) % 3
		for i := range e.inside[last] {
			if e.inside[last][i].n.Load() != 0 {
				return free
			}
		}
		// All operations that entered in the last epoch, or before it, have left.
		e.pending.Add(-int64(len(e.retired[last])))
		free = append(free, e.retired[last]...)
		e.retired[last] = nil
		e.now.Store(now + 1)
	}
	return free
}
