package bytemap

import (
	"context"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
)

// multiget is one call of GetMany.
type multiget struct {
	m     *Map
	b     *heap.Batch
	keys  func(i int) []byte
	fn    func(i int, e Entry, err error)
	rest  []int  // keys that Get has to read
	again []int  // keys whose leaves have been read
	value []byte // a copy of a local value
	finds finds
	late  bool // from now on leaves are read: the store has looked up what it was asked for
}

// GetMany reads keys, with one read of the store for as many of them as there are buffers for, and calls fn for each,
// in any order, with its number and what Get would return. Entry.Value is valid until fn returns, and fn must not use
// the map. Each key by itself is read atomically. With heap.NoWait, far keys get heap.ErrWouldBlock.
//
// A far value is handed to fn in the buffer that it was read into. Local memory has it afterwards if that is likely
// to pay. Several calls at a time read the same entry from the store twice at the most.
func (m *Map) GetMany(ctx context.Context, keys [][]byte, fn func(i int, e Entry, err error)) {
	ReadMany(ctx, m, len(keys), func(i int) []byte { return keys[i] }, fn)
}

// ReadMany is Map.GetMany of n keys of m, for callers that make keys as they go. What keys returns is valid until it
// is called again.
func ReadMany(ctx context.Context, m *Map, n int, keys func(i int) []byte, fn func(i int, e Entry, err error)) {
	h := m.h
	if err := h.core.Begin(); err != nil {
		for i := range n {
			fn(i, Entry{}, err)
		}
		return
	}
	defer h.core.End()
	t, _ := h.multigets.Get().(*multiget)
	if t == nil {
		t = new(multiget)
	}
	t.m, t.keys, t.fn = m, keys, fn
	for first := 0; first < n; first += someKeys {
		t.some(ctx, first, min(first+someKeys, n))
	}
	if cap(t.value) > maxPiece {
		t.value = nil
	}
	*t = multiget{rest: t.rest[:0], again: nil, value: t.value, finds: t.finds}
	h.multigets.Put(t)
}

// give answers key i with an entry that was far.
func (t *multiget) give(i int, e entry.Local) {
	ent := metaOf(e)
	ent.Value = e.Value()
	t.fn(i, ent, nil)
	if m := t.m; m.exclusive {
		key := t.keys(i)
		hs := m.hash(key)
		m.disown(m.shard(hs), hs, key)
	}
}

// someKeys is how many keys are dealt with at a time.
const someKeys = 1024

// some answers the keys with the numbers from first to last.
func (t *multiget) some(ctx context.Context, first, last int) {
	t.b, t.late = t.m.h.core.NewBatch(last-first), false
	var looked chan struct{} // closed when the store has looked up what it was asked for
	defer func() {           // fn may panic
		if looked != nil {
			<-looked
		}
		t.finds.end()
	}()
	_ = t.b.All(ctx, last-first, func(k int) (int, <-chan struct{}, error) {
		if busy := t.get(ctx, first+k); busy != nil {
			return 0, busy, nil
		}
		if first+k+1 == last && len(t.finds.asked) > 0 {
			looked = make(chan struct{})
			go func() { // while other keys are read
				t.finds.look(ctx, t.m)
				close(looked)
			}()
		}
		return 1, nil, nil
	}, t.answer)
	if looked != nil {
		<-looked
	}
	t.finds.each(t.m, t.keys, func(i int, e entry.Local) {
		if e == nil {
			t.again = append(t.again, i)
			return
		}
		t.give(i, e)
	})
	t.late = true
	for round := 0; len(t.again) > 0; round++ {
		if round == leafRounds {
			t.rest = append(t.rest, t.again...)
			break
		}
		todo := t.again
		t.again = nil
		_ = t.b.All(ctx, len(todo), func(i int) (int, <-chan struct{}, error) {
			if busy := t.get(ctx, todo[i]); busy != nil {
				return 0, busy, nil
			}
			return 1, nil, nil
		}, t.answer)
	}
	t.b.End()
	for _, i := range t.rest {
		e, err := t.m.Get(ctx, t.keys(i), t.value[:0])
		if err == nil {
			t.value = e.Value
		}
		t.fn(i, e, err)
	}
	t.rest, t.again = t.rest[:0], nil
}

// get answers key i if that takes no read of the store. Otherwise it makes the read a part of the batch, asks the
// store to look the key up, or leaves the key to Get. If the batch needs a buffer and there is none, get returns the
// channel to wait for.
func (t *multiget) get(ctx context.Context, i int) (busy <-chan struct{}) {
	m := t.m
	key := t.keys(i)
	hs := m.hash(key)
	sh := m.shard(hs)
	sh.mu.Lock()
	p, e, st := sh.find(m.h, hs, key, index.Entries, nil, true)
	switch {
	case st == present && !e.Big() && !e.Expired():
		m.hit(sh, p, e)
		var ent Entry
		ent.describe(e)
		t.value = append(t.value[:0], e.Value()...)
		sh.mu.Unlock()
		ent.Value = t.value
		t.fn(i, ent, nil)
	case st.waits() && ctx == heap.NoWait && !sh.closed:
		sh.mu.Unlock()
		t.fn(i, Entry{}, heap.ErrWouldBlock)
	case st != remote && st != unread || ctx == nil || ctx.Err() != nil:
		sh.mu.Unlock()
		t.rest = append(t.rest, i) // and Get says why
	case st == unread && !t.late && t.finds.ask(m, sh, hs, i):
		sh.mu.Unlock()
	case st == unread:
		_, _, busy = m.boardLeaf(t.b, i, sh, hs.Tag())
		sh.mu.Unlock()
	default:
		_, _, busy = m.board(t.b, i, sh, p, heap.UseBytes, len(key))
		sh.mu.Unlock()
	}
	return busy
}

// answer answers key i with what f has brought, or has it looked up again.
func (t *multiget) answer(f *heap.Flight, i int, err error) {
	switch {
	case err == nil && isLeaf(&f.Want) && f.Rec != nil && t.m.tell(f, t.keys(i)):
		t.again = append(t.again, i)
	case err != nil || isLeaf(&f.Want):
		t.rest = append(t.rest, i)
	case brings(f, t.keys(i)):
		t.give(i, entryOf(f))
	case f.Failure() != nil:
		t.fn(i, Entry{}, f.Err)
	default:
		t.rest = append(t.rest, i)
	}
}
