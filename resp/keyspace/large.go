package keyspace

import (
	"errors"

	"github.com/zeebo/xxh3"

	"polder/far"
	"polder/resp/hashes"
)

const (
	// blockTarget is the average size in bytes from which on blocks of a large hash are split.
	blockTarget = 3 << 10
	// splitDebt is how many times blockTarget the average block may reach before a command waits for far memory in
	// order to split a block.
	splitDebt = 4

	fetchBlocks = 64 // how many blocks a walk over a whole hash asks for at once
)

func (sp *Space) FieldHash(field []byte) uint32 { return uint32(xxh3.HashSeed(field, sp.fieldSeed)) }

// LargeHashes returns how many hashes are in blocks, and how many blocks there are.
func (sp *Space) LargeHashes() (hashes, blocks int) {
	if sp.blocks != nil {
		blocks = sp.blocks.Len()
	}
	return int(sp.largeHashes.Load()), blocks
}

// Block reads block b of h into dst, without the fields that are struck out.
func (a *Access) Block(h *hashes.Large, b uint32, dst []byte) (hashes.List, error) {
	k := h.Key(b)
	e, err := a.Space.blocks.Get(a.ctx, k, dst)
	switch {
	case errors.Is(err, far.ErrNotFound):
		return hashes.List(dst), nil
	case errors.Is(err, far.ErrWouldBlock):
		a.wantBlocks = append(a.wantBlocks, k)
	case err == nil && len(h.Struck) > 0:
		return h.Struck.Rest(b, e.Value), nil
	}
	return e.Value, err
}

// putBlock stores l as block b of h. It deletes the block if l is empty.
func (a *Access) putBlock(h *hashes.Large, b uint32, l hashes.List) error {
	a.changing()
	k := h.Key(b)
	var err error
	switch e := (far.Entry{Value: l}); {
	case l.Len() == 0 && a.together:
		_, err = a.txn.Delete(a.ctx, a.Space.blocks, k)
	case l.Len() == 0:
		_, err = a.Space.blocks.Delete(a.ctx, k)
	case a.together:
		err = a.txn.Set(a.ctx, a.Space.blocks, k, e)
	default:
		err = a.Space.blocks.Set(a.ctx, k, e)
	}
	if err == nil {
		a.made = true
		if len(h.Struck) > 0 {
			h.Struck = h.Struck.Add([]uint64{hashes.Stored(b)})
		}
	}
	return err
}

// LargeOf returns the large hash that is the value of key, or nil. The stripe
// must be locked.
func (a *Access) LargeOf(key []byte) *hashes.Large {
	if h := a.stripe(key).large[string(key)]; h != nil && !h.IsSmall() {
		return h
	}
	return nil
}

// lead makes h the large hash that key leads to; with nil, key leads to none. When the command's changes count, the
// blocks of the hash that key led to before are freed, unless another key leads to that hash by then. The stripe of
// key must be locked for writing.
func (a *Access) lead(key []byte, h *hashes.Large) {
	if h == nil && a.Space.largeHashes.Load() == 0 {
		return // no key has a large hash, and nobody can give one to key, which is locked
	}
	st := a.stripe(key)
	was := st.large[string(key)]
	if was == h {
		return
	}
	a.undo = append(a.undo, undo{st: st, key: string(key), h: was})
	a.Space.lead(st, string(key), h)
	if was != nil {
		a.dropped = append(a.dropped, was)
	}
}

func (sp *Space) lead(st *stripe, key string, h *hashes.Large) {
	was, there := st.large[key]
	if there {
		was.Leads--
	}
	if h != nil {
		h.Leads++
	}
	switch {
	case h == nil && there:
		delete(st.large, key)
		sp.largeHashes.Add(-1)
		if len(st.large) == 0 {
			st.large = nil
		}
	case h != nil:
		if st.large == nil {
			st.large = make(map[string]*hashes.Large)
		}
		st.large[key] = h
		if !there {
			sp.largeHashes.Add(1)
		}
	}
}

// MoveLarge makes h, the large hash under src, the value of dst, with the entry e, and deletes src.
func (a *Access) MoveLarge(src, dst []byte, h *hashes.Large, e far.Entry) error {
	if _, err := a.remove(src); err != nil {
		return err
	}
	if err := a.store(dst, e); err != nil {
		return err
	}
	a.lead(dst, h)
	a.note(opMove, e, src, dst)
	return nil
}

// CopyLarge copies h, the large hash under from, and makes the copy the value of key, with the entry e.
func (a *Access) CopyLarge(h *hashes.Large, from, key []byte, e far.Entry) error {
	a.Begin()
	c := &hashes.Large{ID: a.Space.nextHash.Add(1), Count: h.Count, Bytes: h.Bytes, Buckets: h.Buckets}
	b := uint32(0)
	err := a.walk(h, func(l hashes.List) error {
		b++
		return a.putBlock(c, b-1, l)
	})
	if err == nil {
		err = a.store(key, e)
	}
	if err == nil {
		a.lead(key, c)
		a.note(opCopy, e, from, key)
	}
	return err
}

// walk calls yield with every block of a large hash.
func (a *Access) walk(h *hashes.Large, yield func(hashes.List) error) error {
	for b := range h.Buckets {
		l, err := a.Block(h, b, a.Scratch2[:0])
		if errors.Is(err, far.ErrWouldBlock) {
			for next := b + 1; next < min(h.Buckets, b+fetchBlocks); next++ {
				a.wantBlocks = append(a.wantBlocks, h.Key(next))
			}
		}
		if err != nil {
			return err
		}
		Reuse(&a.Scratch2, l)
		if err := yield(l); err != nil {
			return err
		}
	}
	return nil
}
