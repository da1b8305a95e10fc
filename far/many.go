package far

import (
	"context"
	"errors"
	"fmt"
)

// asked is what GetMany needs beside the flights of a batch.
type asked struct {
	keys        func(i int) []byte
	fn          func(i int, e Entry, err error)
	led, joined []int  // the keys of the flights
	rest        []int  // keys that take the long way
	value       []byte // a copy of a local one
}

// GetMany reads keys, with one read of the store for as many of them as there are
// buffers for, and calls fn for each, in any order, with its number and what Get would
// return. Entry.Value is valid until fn returns, and fn must not use the map. Each key
// by itself is read atomically. With NoWait, far keys get ErrWouldBlock.
//
// What is far is handed to fn from where it was read to. Local memory has it
// afterwards if that is likely to pay. Several calls at a time read the same
// entry twice at the most.
func (m *ByteMap) GetMany(ctx context.Context, keys [][]byte, fn func(i int, e Entry, err error)) {
	m.getMany(ctx, len(keys), func(i int) []byte { return keys[i] }, fn)
}

// getMany is GetMany of n keys. What keys returns is valid until it is called again.
func (m *ByteMap) getMany(ctx context.Context, n int, keys func(i int) []byte, fn func(i int, e Entry, err error)) {
	if err := m.h.core.Begin(); err != nil {
		for i := range n {
			fn(i, Entry{}, err)
		}
		return
	}
	defer m.h.core.End()
	b := m.newBatch()
	t := &b.asked
	t.keys, t.fn = keys, fn
	answered := false
	defer func() {
		if !answered { // fn panics
			b.abandon(ctx)
		}
	}()
	for i := range n {
		b.left = n - i
		b.get(ctx, i)
	}
	b.answer(ctx)
	for _, i := range t.rest {
		e, err := m.Get(ctx, keys(i), t.value[:0])
		if err == nil {
			t.value = e.Value
		}
		fn(i, e, err)
	}
	t.rest, t.keys, t.fn = t.rest[:0], nil, nil
	if cap(t.value) > maxPiece {
		t.value = nil
	}
	answered = true
	b.end()
}

// abandon ends a batch whose user does not go on: nobody is to wait for flights that
// nobody makes.
func (b *batch) abandon(ctx context.Context) {
	if !b.landed {
		b.lead(ctx)
	}
	b.release()
	for _, f := range b.joined {
		if f != nil {
			f.release(b.m.h)
		}
	}
	b.closeBlock()
}

// get answers the key of number i if that takes no read of the store, and otherwise
// sees to it that it is answered.
func (b *batch) get(ctx context.Context, i int) {
	m, t := b.m, &b.asked
	key := t.keys(i)
	hs := m.hash(key)
	sh := m.shard(hs)
	for {
		sh.mu.Lock()
		p, e, st := sh.find(m.h, hs, key, kindEntry, nil, true)
		switch {
		case st == present && !e.Big() && !e.Expired():
			w := sh.t.word(p)
			*w = w.touched()
			sh.count.hits++
			ent := metaOf(e)
			t.value = append(t.value[:0], e.Value()...)
			sh.mu.Unlock()
			ent.Value = t.value
			t.fn(i, ent, nil)
			return
		case st == remote && ctx == NoWait && !sh.closed:
			sh.mu.Unlock()
			t.fn(i, Entry{}, ErrWouldBlock)
			return
		case st != remote || ctx.Err() != nil:
			sh.mu.Unlock()
			t.rest = append(t.rest, i) // and Get says why
			return
		}
		led := len(b.led)
		busy, ok := b.board(sh, hs, p, wantsBytes, len(key))
		sh.mu.Unlock()
		if ok {
			if len(b.led) > led {
				t.led = append(t.led, i)
			} else {
				t.joined = append(t.joined, i)
			}
			break
		}
		b.answer(ctx)
		b.closeBlock()
		select {
		case <-busy:
		case <-ctx.Done():
		}
		key = t.keys(i)
	}
	if b.full() {
		b.answerLed(ctx)
	}
}

// answer makes the flights of the batch and waits for those that were joined.
func (b *batch) answer(ctx context.Context) {
	b.answerLed(ctx)
	t := &b.asked
	for k, f := range b.joined {
		i := t.joined[k]
		if err := f.wait(ctx); err != nil || !b.deliver(f, i) {
			t.rest = append(t.rest, i)
		}
		b.joined[k] = nil
		f.release(b.m.h)
	}
	clear(b.joined)
	b.joined, t.joined = b.joined[:0], t.joined[:0]
}

func (b *batch) answerLed(ctx context.Context) {
	if len(b.led) == 0 {
		return
	}
	b.lead(ctx)
	t := &b.asked
	for k, f := range b.led {
		if i := t.led[k]; !b.deliver(f, i) {
			t.rest = append(t.rest, i)
		}
	}
	t.led = t.led[:0]
	b.release()
}

// deliver answers key i with what f has brought, and reports whether it could: if not,
// the key has to be looked up again.
func (b *batch) deliver(f *flight, i int) bool {
	t := &b.asked
	switch {
	case f.brings(t.keys(i)):
		ent := metaOf(f.e)
		ent.Value = f.e.Value()
		t.fn(i, ent, nil)
	case f.err != nil && !f.mine && !f.corrupt() && !f.seg.Gone():
		t.fn(i, Entry{}, f.err)
	default:
		return false
	}
	return true
}

// brings reports whether f, which has landed, has brought a value of key that is
// entire and not out of date.
func (f *flight) brings(key []byte) bool {
	return f.e != nil && string(f.e.Key()) == string(key) && !f.e.Big() && !f.e.Expired()
}

// demand reads the far entry at p, of which the key is to be read. It returns the
// flight that has brought it, to be ended by done, or none: then the call has to go
// the long way, unless there is an error.
//
// Preconditions: sh.mu is held; demand unlocks it.
func (m *ByteMap) demand(ctx context.Context, sh *shard, hs hash, p place, key []byte) (*flight, error) {
	h := m.h
	if ctx.Err() != nil || h.core.Begin() != nil {
		sh.mu.Unlock()
		return nil, nil
	}
	f, leader, busy := h.board(sh, hs.tag(), p, wantsBytes, len(key), nil)
	sh.mu.Unlock()
	if busy != nil {
		h.core.End()
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
	h.core.End()
}

// GetMany reads keys, with one read of the store for as many of them as there are
// buffers for. It sets the value of each that is there, and whether it is, in vs and
// ok, which are as long as keys. If a key cannot be read it goes on, and returns the
// errors of those. With NoWait, those of far keys are ErrWouldBlock.
func (m *Map[K, V]) GetMany(ctx context.Context, keys []K, vs []V, ok []bool) error {
	if len(vs) != len(keys) || len(ok) != len(keys) {
		return fmt.Errorf("cannot read %d keys of map %q: there is room for %d values and %d answers, want as many", len(keys), m.b.name, len(vs), len(ok))
	}
	var errs []error
	var small [smallKey]byte
	key := func(i int) []byte { return encode(&m.key, &keys[i], small[:0]) }
	m.b.getMany(ctx, len(keys), key, func(i int, e Entry, err error) {
		switch ok[i] = false; {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			errs = append(errs, err)
		default:
			if ok[i] = decode(&m.value, &vs[i], e.Value); !ok[i] {
				errs = append(errs, m.errMapped(len(e.Value)))
			}
			if m.exclusive {
				m.settle(key(i))
			}
		}
	})
	return errors.Join(errs...)
}
