package far

import (
	"context"

	"polder/far/heap"
)

// Calls that replace, remove or Stat a far entry need its header and key and
// not its value. FetchHeads reads them for many keys in one batch; until the
// calls come, the shards remember the latest of what it read.

// headsPerShard is how many far headers a shard remembers: a few per shard
// are a batch, since keys spread over the shards.
const headsPerShard = 16

// headKey is the longest key of a header that is remembered: those memories are
// not in the budget. Entries with longer ones are fetched entirely instead.
const headKey = 256

// head is the header and key of a far entry, and the bigHead if it has one.
// It holds good for as long as the address means the same segment: far bytes
// are written once.
type head struct {
	addr uint64
	seg  *heap.FarSegment
	e    heap.Record
}

// FetchHeads reads the headers and keys of those of keys that are far, in one
// batch, and remembers them for a short while, so that calls to Set, Delete
// and Stat that follow need not wait; and it waits for some room in local
// memory to replace them. Missing and lost keys are no error.
func (m *ByteMap) FetchHeads(ctx context.Context, keys [][]byte) error {
	if err := m.h.core.Begin(); err != nil {
		return err
	}
	defer m.h.core.End()
	b := m.newBatch()
	b.heads = true
	err := b.fetch(ctx, keys, nil)
	b.end()
	if err != nil {
		return err
	}
	return m.h.awaitRoom(ctx)
}

// of reports whether d is the head of the far address addr, to which the index
// refers.
func (d *head) of(h *Heap, addr uint64) bool { return d.addr == addr && d.seg == h.core.Far.Seg(addr) }

// awaitRoom waits until the evacuator is a little ahead of the mutators, or
// is stuck.
func (h *Heap) awaitRoom(ctx context.Context) error {
	for !h.core.Logs.HasRoom() && h.core.Logs.Why() == nil {
		if err := h.core.WaitRoom(ctx); err != nil {
			return err
		}
	}
	return nil
}

// remember keeps the head that f has brought. sh.mu must not be held.
func (sh *shard) remember(f *flight) {
	if f.e == nil || f.e.Klen() > headKey {
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if len(sh.heads) < headsPerShard {
		sh.heads = append(sh.heads, head{})
	}
	d := &sh.heads[sh.nextHead%len(sh.heads)]
	sh.nextHead = (sh.nextHead + 1) % headsPerShard
	d.addr, d.seg = f.addr, f.seg
	d.e = appendHead(d.e[:0], f.e)
}

// head returns the remembered head of a far address that the index refers to,
// or nil. sh.mu must be held.
func (sh *shard) head(h *Heap, addr uint64) heap.Record {
	for i := range sh.heads {
		if d := &sh.heads[i]; d.of(h, addr) {
			return d.e
		}
	}
	return nil
}
