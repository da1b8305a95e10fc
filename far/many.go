package far

import (
	"context"
	"errors"
	"fmt"
)

// asked is what GetMany needs beside the flights of a batch.
type asked struct {
	led, joined []int  // the keys of the flights
	rest        []int  // keys that take the long way
	value       []byte // a copy of a local one
}

// GetMany reads keys, with one read of the store for as many of them as there are
// buffers for, and calls fn for each, in any order, with its number and what Get would
// return. Entry.Value is valid until fn returns. Each key by itself is read
// atomically. With NoWait, far keys get ErrWouldBlock.
//
// What is far is handed to fn from where it was read to. Local memory has it
// afterwards if that is likely to pay. Several calls at a time read the same
// entry twice at the most.
func (m *ByteMap) GetMany(ctx context.Context, keys [][]byte, fn func(i int, e Entry, err error)) {
	if err := m.h.begin(); err != nil {
		for i := range keys {
			fn(i, Entry{}, err)
		}
		return
	}
	defer m.h.end()
	b := m.newBatch()
	for i, key := range keys {
		b.left = len(keys) - i
		b.get(ctx, i, key, keys, fn)
	}
	b.answer(ctx, keys, fn)
	for _, i := range b.asked.rest {
		e, err := m.Get(ctx, keys[i], b.asked.value[:0])
		if err == nil {
			b.asked.value = e.Value
		}
		fn(i, e, err)
	}
	b.asked.rest = b.asked.rest[:0]
	if cap(b.asked.value) > maxPiece {
		b.asked.value = nil
	}
	b.end()
}

// get answers the key of number i if that takes no read of the store, and otherwise
// sees to it that it is answered.
func (b *batch) get(ctx context.Context, i int, key []byte, keys [][]byte, fn func(i int, e Entry, err error)) {
	m, t := b.m, &b.asked
	hs := m.hash(key)
	sh := m.shard(hs)
	for {
		sh.mu.Lock()
		p, e, st := sh.find(m.h, hs, key, wordPresent, nil, true)
		switch {
		case st == present && !e.big() && !e.expired():
			w := sh.t.word(p)
			*w = w.touched()
			sh.count.hits++
			ent := e.meta()
			t.value = append(t.value[:0], e.value()...)
			sh.mu.Unlock()
			ent.Value = t.value
			fn(i, ent, nil)
			return
		case st != remote || ctx.Err() != nil:
			sh.mu.Unlock()
			t.rest = append(t.rest, i) // and Get says why
			return
		}
		led := len(b.led)
		busy, ok := b.board(sh, hs, p, wantsBytes, len(key))
		sh.mu.Unlock()
		switch {
		case !ok:
			b.answer(ctx, keys, fn)
			b.closeBlock()
			select {
			case <-busy:
			case <-ctx.Done():
			}
			continue
		case len(b.led) > led:
			t.led = append(t.led, i)
		default:
			t.joined = append(t.joined, i)
		}
		if b.full() {
			b.answerLed(ctx, keys, fn)
		}
		return
	}
}

// answer makes the flights of the batch and waits for those that were joined.
func (b *batch) answer(ctx context.Context, keys [][]byte, fn func(i int, e Entry, err error)) {
	b.answerLed(ctx, keys, fn)
	t := &b.asked
	for k, f := range b.joined {
		i := t.joined[k]
		if err := f.wait(ctx); err != nil || !b.deliver(f, i, keys[i], fn) {
			t.rest = append(t.rest, i)
		}
		f.release(b.m.h)
	}
	clear(b.joined)
	b.joined, t.joined = b.joined[:0], t.joined[:0]
}

func (b *batch) answerLed(ctx context.Context, keys [][]byte, fn func(i int, e Entry, err error)) {
	if len(b.led) == 0 {
		return
	}
	b.lead(ctx)
	t := &b.asked
	for k, f := range b.led {
		i := t.led[k]
		if !b.deliver(f, i, keys[i], fn) {
			t.rest = append(t.rest, i)
		}
	}
	t.led = t.led[:0]
	b.release()
}

// deliver calls fn with what f has brought, and reports whether it could: if not,
// the key has to be looked up again.
func (b *batch) deliver(f *flight, i int, key []byte, fn func(i int, e Entry, err error)) bool {
	switch {
	case f.brings(key):
		ent := f.e.meta()
		ent.Value = f.e.value()
		fn(i, ent, nil)
	case f.err != nil && !f.mine && !f.corrupt() && !f.seg.gone():
		fn(i, Entry{}, f.err)
	default:
		return false
	}
	return true
}

// brings reports whether f, which has landed, has brought a value of key that is
// entire and not out of date.
func (f *flight) brings(key []byte) bool {
	return f.e != nil && string(f.e.key()) == string(key) && !f.e.big() && !f.e.expired()
}

// demand reads the far entry at p, of which the key is to be read. It returns the
// flight that has brought it, to be ended by done, or none: then the call has to go
// the long way, unless there is an error.
//
// Preconditions: sh.mu is held; demand unlocks it.
func (m *ByteMap) demand(ctx context.Context, sh *shard, hs hash, p place, key []byte) (*flight, error) {
	h := m.h
	if ctx.Err() != nil || h.begin() != nil {
		sh.mu.Unlock()
		return nil, nil
	}
	f, leader, busy := h.board(sh, hs.tag(), p, wantsBytes, len(key), nil)
	sh.mu.Unlock()
	if busy != nil {
		h.end()
		return nil, nil
	}
	err := m.fly(ctx, f, leader)
	if err != nil || !f.brings(key) {
		h.done(f)
		return nil, err
	}
	return f, nil
}

// done ends a call of demand.
func (h *Heap) done(f *flight) {
	f.release(h)
	h.end()
}

// GetMany reads keys, with one read of the store for as many of them as there are
// buffers for. It sets the value of each that is there, and whether it is, in vs and
// ok, which are as long as keys. If a key cannot be read it goes on, and returns the
// errors of those.
func (m *Map[K, V]) GetMany(ctx context.Context, keys []K, vs []V, ok []bool) error {
	if len(vs) != len(keys) || len(ok) != len(keys) {
		return fmt.Errorf("cannot read %d keys of map %q: there is room for %d values and %d answers, want as many", len(keys), m.b.name, len(vs), len(ok))
	}
	var errs []error
	bs, buf := make([][]byte, len(keys)), make([]byte, 0, len(keys)*m.key.size)
	for i := range keys {
		if m.key.kind == codecPadded {
			n := len(buf)
			buf = encode(&m.key, &keys[i], buf)
			bs[i] = buf[n:]
		} else {
			bs[i] = encode(&m.key, &keys[i], nil)
		}
	}
	m.b.GetMany(ctx, bs, func(i int, e Entry, err error) {
		switch ok[i] = false; {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			errs = append(errs, err)
		default:
			if ok[i] = decode(&m.value, &vs[i], e.Value); !ok[i] {
				errs = append(errs, m.errMapped(len(e.Value)))
			}
			m.settle(bs[i])
		}
	})
	return errors.Join(errs...)
}
