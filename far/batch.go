package far

import "context"

// batch fetches many entries in as few reads of the store as it can.
type batch struct {
	led     []*flight // begun here
	joined  []*flight // begun by others
	pending int       // bytes of led
	err     error     // the first of the store
	heads   bool      // read no values if they need not be read: see FetchHeads
}

const (
	maxBatch      = 256
	maxBatchBytes = 1 << 20
)

// add makes the entry of key, if it is far, a part of the batch.
func (b *batch) add(ctx context.Context, m *ByteMap, key []byte, kind word) error {
	hs := m.hash(key)
	sh := m.shard(hs)
	sh.mu.Lock()
	whole := !b.heads || len(key) > headKey
	p, _, st := sh.find(m.h, hs, key, kind, nil, whole)
	if st != remote {
		sh.mu.Unlock()
		return nil
	}
	if ctx.Err() != nil {
		sh.mu.Unlock()
		return context.Cause(ctx)
	}
	f, leader, busy := m.h.board(sh, hs.tag(), *sh.t.word(p), whole, len(key))
	if busy == nil && kind == wordPresent && !b.heads {
		sh.count.prefetched++
	}
	sh.mu.Unlock()
	switch {
	case busy != nil:
		if err := b.run(ctx, m); err != nil {
			return err
		}
		select {
		case <-busy:
			return b.add(ctx, m, key, kind)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case !leader:
		b.joined = append(b.joined, f)
		return nil
	}
	b.led = append(b.led, f)
	if b.pending += f.n; len(b.led) == maxBatch || b.pending >= maxBatchBytes {
		b.read(ctx, m)
	}
	return nil
}

// fetch makes the batch of keys.
func (b *batch) fetch(ctx context.Context, m *ByteMap, keys [][]byte) error {
	for _, k := range keys {
		if err := b.add(ctx, m, k, wordPresent); err != nil {
			return errOr(b.run(ctx, m), err)
		}
	}
	return b.run(ctx, m)
}

// read makes the flights that were begun here.
func (b *batch) read(ctx context.Context, m *ByteMap) {
	if len(b.led) == 0 {
		return
	}
	m.h.lead(ctx, m, b.led...)
	insisting, cancel := context.WithTimeout(ctx, holdFor)
	defer cancel()
	for _, f := range b.led {
		b.note(f)
		if f.whole {
			m.h.insist(insisting, f)
		} else {
			f.sh.remember(f)
		}
		f.release(m.h)
	}
	b.led, b.pending = b.led[:0], 0
}

// note keeps the first error of the store. What is lost or corrupt, whoever
// reads it will be told.
func (b *batch) note(f *flight) {
	if f.err != nil && b.err == nil && !f.corrupt() && !f.seg.gone() && !f.mine {
		b.err = f.err
	}
}

// run returns when all flights have landed.
func (b *batch) run(ctx context.Context, m *ByteMap) error {
	b.read(ctx, m)
	for _, f := range b.joined {
		if f.wait(ctx) == nil {
			b.note(f)
		}
		f.release(m.h)
	}
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
func (m *ByteMap) Fetch(ctx context.Context, keys [][]byte) error {
	h := m.h
	if err := h.begin(); err != nil {
		return err
	}
	defer h.end()
	var b batch
	if err := b.fetch(ctx, m, keys); err != nil {
		return err
	}
	room := int(h.cfg.Local / 8)
	for _, k := range keys {
		big, ok := m.bigOf(k)
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
	_, e, st := sh.find(m.h, hs, key, wordPresent, nil, true)
	if st != present || !e.big() {
		return bigHead{}, false
	}
	return bigOf(e), true
}
