package far

import (
	"context"

	"polder/far/heap"
)

// batch fetches many entries in as few reads of the store as it can. It makes
// no garbage: there is a pool of them, and each has flights to spare.
type batch struct {
	m     *ByteMap
	heads bool // read no values if they need not be read: see FetchHeads

	led     []*flight // begun here
	joined  []*flight // begun by others
	pending int       // bytes of led
	landed  bool      // led have
	err     error     // the first of the store
	left    int       // how many keys are still to be looked up, or 0

	block *block        // what is left of it is for the next flights
	spare []*flight     // to be used again
	ops   []heap.ReadOp // of read

	asked asked // what GetMany needs
}

const (
	maxBatch      = 256
	maxBatchBytes = 1 << 20
	// maxBlock is the most that is taken at once for flights that have not begun.
	maxBlock = 64 << 10
)

// newBatch returns a batch of the map, to be ended.
func (m *ByteMap) newBatch() *batch {
	b, _ := m.h.batches.Get().(*batch)
	if b == nil {
		b = new(batch)
	}
	b.m, b.heads, b.err, b.left = m, false, nil, 0
	return b
}

// end is called when all flights have been released.
func (b *batch) end() {
	b.closeBlock()
	b.err = nil
	b.m.h.batches.Put(b)
}

// next returns a flight with n bytes of the batch's block, or the channel to wait
// for. Where a buffer has to be found, it is one for as many flights as there
// are keys left: one flight is a guess at the others.
func (b *batch) next(h *Heap, n int) (*flight, <-chan struct{}) {
	buf := b.block.carve(n)
	if buf == nil {
		b.closeBlock()
		c := new(block)
		var busy <-chan struct{}
		if c.Buffer, busy = h.core.Bufs.Get(max(n, min(n*b.left, maxBlock))); busy != nil && b.left > 1 {
			c.Buffer, busy = h.core.Bufs.Get(n)
		}
		if busy != nil {
			return nil, busy
		}
		c.refs.Store(manyUses)
		b.block = c
		buf = c.carve(n)
	}
	var f *flight
	if k := len(b.spare) - 1; k >= 0 {
		f, b.spare = b.spare[k], b.spare[:k]
	} else {
		f = new(flight)
	}
	f.block, f.buf = b.block, buf
	return f, nil
}

// closeBlock lets go of what is left of the block.
func (b *batch) closeBlock() {
	if c := b.block; c != nil {
		b.m.h.letGo(c, manyUses-c.given)
		b.block = nil
	}
}

// board boards the flight of the far entry at p, and reports false if the batch
// has to run and to wait for a buffer first. sh.mu must be held.
func (b *batch) board(sh *shard, hs hash, p place, what wants, klen int) (<-chan struct{}, bool) {
	f, leader, busy := b.m.h.board(sh, hs.tag(), p, what, klen, b)
	switch {
	case busy != nil:
		return busy, false
	case leader:
		b.led = append(b.led, f)
		b.pending += len(f.buf)
	default:
		b.joined = append(b.joined, f)
	}
	return nil, true
}

// full reports whether the flights that were begun here should be made.
func (b *batch) full() bool { return len(b.led) >= maxBatch || b.pending >= maxBatchBytes }

// add makes the entry of key, if it is far, a part of the batch. It reports
// whether it may be a large one, of which there is more.
func (b *batch) add(ctx context.Context, key []byte, kind word) (big bool, err error) {
	m := b.m
	hs := m.hash(key)
	sh := m.shard(hs)
	for {
		sh.mu.Lock()
		what := wantsLocal
		if b.heads && len(key) <= headKey {
			what = wantsHead
		}
		p, _, st := sh.find(m.h, hs, key, kind, nil, what != wantsHead)
		if p != none {
			big = *sh.t.word(p)&wordBig != 0
		}
		if st != remote {
			sh.mu.Unlock()
			return big, nil
		}
		if ctx.Err() != nil {
			sh.mu.Unlock()
			return big, context.Cause(ctx)
		}
		busy, ok := b.board(sh, hs, p, what, len(key))
		if ok && kind == kindEntry && !b.heads {
			sh.count.prefetched++
		}
		sh.mu.Unlock()
		if ok {
			break
		}
		if err := b.run(ctx); err != nil {
			return big, err
		}
		b.closeBlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return big, context.Cause(ctx)
		}
	}
	if b.full() {
		b.read(ctx)
	}
	return big, nil
}

// fetch makes the batch of keys, and calls big with the numbers of those that may
// be large, if it is not nil.
func (b *batch) fetch(ctx context.Context, keys [][]byte, big func(i int)) error {
	for i, k := range keys {
		b.left = len(keys) - i
		isBig, err := b.add(ctx, k, kindEntry)
		if err != nil {
			return errOr(b.run(ctx), err)
		}
		if isBig && big != nil {
			big(i)
		}
	}
	return b.run(ctx)
}

// lead makes the flights that were begun here.
func (b *batch) lead(ctx context.Context) {
	h := b.m.h
	for _, f := range b.led {
		b.ops = append(b.ops, f.read(h))
	}
	h.core.Far.Store.Read(ctx, b.ops)
	h.landed(ctx, b.m, b.led, b.ops)
	b.landed = true
	clear(b.ops)
	b.ops = b.ops[:0]
}

// release lets go of the flights that were begun here, which have landed. Those
// that nobody has joined are for the batch to use again.
func (b *batch) release() {
	h := b.m.h
	var c *block
	n := int32(0) // of its uses end
	for _, f := range b.led {
		if f.done != nil {
			f.release(h)
			continue
		}
		if f.block != c {
			h.letGo(c, n)
			c, n = f.block, 0
		}
		n++
		f.unpin(h)
		b.spare = append(b.spare, f.reset())
	}
	h.letGo(c, n)
	clear(b.led)
	b.led, b.pending, b.landed = b.led[:0], 0, false
}

// read makes the flights that were begun here, keeps what they bring, and lets go of
// them.
func (b *batch) read(ctx context.Context) {
	if len(b.led) == 0 {
		return
	}
	b.lead(ctx)
	b.insist(ctx)
	for _, f := range b.led {
		b.note(f)
		if !f.whole {
			f.sh.remember(f)
		}
	}
	b.release()
}

// insist waits for room for what is to be local and was not kept.
func (b *batch) insist(ctx context.Context) {
	var insisting context.Context
	for _, f := range b.led {
		if !f.whole || f.kept || f.e == nil {
			continue
		}
		if insisting == nil {
			var cancel context.CancelFunc
			insisting, cancel = context.WithTimeout(ctx, heap.HoldFor)
			defer cancel()
		}
		b.m.h.insist(insisting, f)
	}
}

// note keeps the first error of the store. What is lost or corrupt, whoever
// reads it will be told.
func (b *batch) note(f *flight) {
	if f.err != nil && b.err == nil && !f.corrupt() && !f.seg.Gone() && !f.mine {
		b.err = f.err
	}
}

// run returns when all flights have landed and been let go of.
func (b *batch) run(ctx context.Context) error {
	b.read(ctx)
	for _, f := range b.joined {
		if f.wait(ctx) == nil {
			b.note(f)
		}
		f.release(b.m.h)
	}
	clear(b.joined)
	b.joined = b.joined[:0]
	if b.err == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return b.err
}

// Fetch brings the entries of keys that are far into local memory, in
// one batch, so that calls that follow need not wait. Missing keys are
// no error, and neither are lost ones, of which Get will tell. Of values that
// are larger than local memory has room for, a part is brought.
//
// It is for what is going to be used by other calls: GetMany reads what it is asked
// for without giving all of it a place in local memory.
func (m *ByteMap) Fetch(ctx context.Context, keys [][]byte) error {
	h := m.h
	if err := h.core.Begin(); err != nil {
		return err
	}
	defer h.core.End()
	var large []int
	b := m.newBatch()
	err := b.fetch(ctx, keys, func(i int) { large = append(large, i) })
	b.end()
	if err != nil {
		return err
	}
	room := int(h.core.Cfg.Local / 8)
	for _, i := range large {
		big, ok := m.bigOf(keys[i])
		if !ok {
			continue
		}
		n := min(big.count(), max(room, 0)/big.piece)
		if err := m.fetchPieces(ctx, big, 0, n); err != nil {
			return err
		}
		room -= n * big.piece
	}
	return nil
}

// errOr is err, or other if it is nil.
func errOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// bigOf returns the head of key if it is local and has one.
func (m *ByteMap) bigOf(key []byte) (bigHead, bool) {
	hs := m.hash(key)
	sh := m.shard(hs)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	_, e, st := sh.find(m.h, hs, key, kindEntry, nil, true)
	if st != present || !e.Big() {
		return bigHead{}, false
	}
	return bigOf(e), true
}
