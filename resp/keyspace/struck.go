package keyspace

import (
	"context"
	"errors"

	"polder/far"
	"polder/resp/hashes"
)

// Deleting fields works on a full server, however many fields they are. A shortened list is stored before the old one
// is freed, and the room that full far memory has left for this is bounded. When there is no more room, the fields
// are struck out instead: local memory remembers where they are in the stored list, and whoever reads the list skips
// them. When the command's changes count, settleStruck stores the lists without these fields, one after the other,
// each in the place of the stored one. That needs no more room than there is; if it fails all the same, the sweeper
// tries again.

// maxUnsettled is how many struck-out fields may be left to the sweeper by commands that have ended. While there are
// more, because the sweeper has no success either, no more fields are struck out.
const maxUnsettled = 1 << 16

// StruckOut returns which fields are struck out of the small hash under key. The stripe must be locked.
func (a *Access) StruckOut(key []byte) hashes.Strikes {
	if a.Space.largeHashes.Load() == 0 {
		return nil
	}
	if h := a.stripe(key).large[string(key)]; h != nil && h.IsSmall() {
		return h.Struck
	}
	return nil
}

// noRoom reports whether err says that there is no room for a shortened list, and fields may be struck out instead.
// If so, the command does not try to store its other shortened lists.
func (a *Access) noRoom(err error) bool {
	if !errors.Is(err, far.ErrFull) || a.Space.unsettled.Load() > maxUnsettled {
		return false
	}
	a.full = true
	return true
}

// storeLess is storeList for a shortened list. If there is no room, it strikes the fields out.
func (a *Access) storeLess(h *Hash) error {
	if !a.full {
		if err := a.storeList(h); !a.noRoom(err) {
			return err
		}
	}
	a.changing()
	e, err := a.Space.keys.Get(a.ctx, h.key, a.Scratch2[:0])
	if err != nil {
		return err
	}
	Reuse(&a.Scratch2, e.Value)
	a.lead(h.key, &hashes.Large{Struck: a.StruckOut(h.key).Add(hashes.StrikesOf(0, e.Value, h.List))})
	a.changedKey(h.key)
	a.struck = append(a.struck, h.key)
	a.note(opPut, h.e, h.key, h.List)
	return nil
}

// putLess is putBlock for a shortened list. If there is no room, it returns the strikes to be added to h.
func (a *Access) putLess(h *hashes.Large, b uint32, l hashes.List) ([]uint64, error) {
	if !a.full || l.Len() == 0 {
		if err := a.putBlock(h, b, l); !a.noRoom(err) {
			return nil, err
		}
	}
	k := h.Key(b)
	e, err := a.Space.blocks.Get(a.ctx, k, a.Scratch[:0])
	if errors.Is(err, far.ErrWouldBlock) {
		a.wantBlocks = append(a.wantBlocks, k)
	}
	if err != nil {
		return nil, err
	}
	Reuse(&a.Scratch, e.Value)
	return hashes.StrikesOf(b, e.Value, l), nil
}

// settleStruck stores the lists of h, the hash under key, without the fields that are struck out. It passes over
// lists that are lost: nobody reads them any more, with strikes or without. The stripe must be locked for writing,
// and no command may have changes that it may still undo.
func (sp *Space) settleStruck(ctx context.Context, st *stripe, key string, h *hashes.Large) error {
	for len(h.Struck) > 0 {
		b := h.Struck.Last()
		m, k := store(sp.blocks), h.Key(b)
		if h.IsSmall() {
			m, k = sp.keys, []byte(key)
		}
		e, err := m.Get(ctx, k, nil)
		if err == nil {
			e.Value = h.Struck.Rest(b, e.Value)
			err = m.Set(ctx, k, e)
		}
		if err != nil && !errors.Is(err, far.ErrNotFound) && !errors.As(err, new(*far.LostError)) {
			return err
		}
		h.Struck = h.Struck.Before(b)
	}
	if h.IsSmall() {
		sp.lead(st, key, nil)
	}
	return nil
}
