package bytemap

import (
	"context"
	"errors"
	"fmt"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
)

// errFarPiece: a piece is far, and has not been asked for in a batch.
var errFarPiece = errors.New("a piece is far")

// checkBig refuses v, the value of a far entry that is marked as big, if it cannot be the head of a large value of
// this heap. Whoever lends the memory may have made it up.
func (h *Maps) checkBig(v []byte) error {
	if len(v) != entry.LargeSize {
		return errBigHead
	}
	if b := entry.DecodeLarge(v); b.Version == 0 || b.Piece != h.pieces || b.Size <= h.pieces || b.Size > h.maxValue {
		return errBigHead
	}
	return nil
}

var errBigHead = errors.New("the head of a large value is malformed")

// setBig stores r, whose value is large: first its pieces, and when these are in place its head, if the entry is
// still was. A nil was allows any entry.
func (m *Map) setBig(ctx context.Context, sh *shard, hs entry.Hash, r *newEntry, was *snapshot) error {
	for {
		clears := m.clears.Load()
		err := m.trySetBig(ctx, sh, hs, r, was, func() error {
			if m.clears.Load() != clears || clears%2 != 0 {
				return errCleared // some of the pieces may be gone
			}
			return nil
		})
		if err != errCleared {
			return err
		}
	}
}

var errCleared = errors.New("cleared")

func (m *Map) trySetBig(ctx context.Context, sh *shard, hs entry.Hash, r *newEntry, was *snapshot, ok func() error) error {
	big := entry.Large{Version: m.h.newVersion(), Size: len(r.Value), Piece: m.h.pieces}
	defer m.h.written(big.Version)
	for i := range big.Count() {
		part := r.Value[i*big.Piece : min((i+1)*big.Piece, big.Size)]
		if err := m.setPiece(ctx, big, i, part); err != nil {
			m.h.forget(orphan{m, big, i})
			return err
		}
	}
	head := *r
	head.Value, head.Flags = big.Encode(), entry.Big
	err := m.setSlow(ctx, sh, hs, &head, was, ok)
	if err != nil {
		m.h.forget(orphan{m, big, big.Count()})
	}
	return err
}

// newVersion begins the writing of a large value, and written ends it.
func (h *Maps) newVersion() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.version++
	h.writing[h.version] = true
	return h.version
}

func (h *Maps) written(version uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.writing, version)
}

func (m *Map) setPiece(ctx context.Context, big entry.Large, i int, part []byte) error {
	k := big.Key(i)
	hs := m.hash(k[:])
	sh := m.shard(hs)
	r := newEntry{New: entry.New{Key: k[:], Value: part, Flags: entry.Piece}}
	try := func(*holding) step { return stepOf(m.insert(sh, hs, index.None, nil, &r)) }
	return m.do(ctx, sh, hs, k[:], try)
}

// ahead is the number of pieces that are fetched in one batch.
const ahead = 16

// getPieces appends the value of big to dst. It reports false if a piece is gone.
func (m *Map) getPieces(ctx context.Context, big entry.Large, dst []byte) ([]byte, bool, error) {
	start := len(dst)
	fetched := 0 // pieces before it have been asked for
	for i := range big.Count() {
		k := big.Key(i)
		hs := m.hash(k[:])
		sh := m.shard(hs)
		try := func(hd *holding) step {
			p, e, st := sh.find(m.h, hs, k[:], index.Pieces, hd, true)
			if st == remote && hd == nil && i >= fetched {
				return step{err: errFarPiece}
			}
			if st != present {
				return sh.miss(m.h, p, st, needWhole)
			}
			if want := min(big.Piece, big.Size-i*big.Piece); len(e.Value()) != want {
				return step{err: errLarge(big, fmt.Errorf("piece %d has %d bytes, want %d", i, len(e.Value()), want))}
			}
			sh.t.Touch(p)
			dst = append(dst, e.Value()...)
			return step{}
		}
		err := m.do(ctx, sh, hs, k[:], try)
		if err == errFarPiece && ctx.Err() == nil {
			fetched = min(i+ahead, big.Count())
			if err = m.fetchPieces(ctx, big, i, fetched); err == nil {
				err = m.do(ctx, sh, hs, k[:], try)
			}
		} else if err == errFarPiece {
			err = context.Cause(ctx)
		}
		if err == ErrNotFound {
			return dst[:start], false, nil
		}
		if err != nil {
			return dst[:start], false, err
		}
	}
	return dst, true, nil
}

// errLarge is the error for a value that is at odds with its pieces.
func errLarge(l entry.Large, err error) error {
	return &heap.CorruptError{Segment: fmt.Sprintf("large value, version %d", l.Version), Err: err}
}

// fetchPieces brings pieces [i, j) into local memory.
func (m *Map) fetchPieces(ctx context.Context, big entry.Large, i, j int) error {
	var k [entry.PieceKeySize]byte
	key := func(n int) []byte {
		k = big.Key(i + n)
		return k[:]
	}
	return m.fetch(ctx, j-i, key, index.Pieces, false, func(int) {})
}

// orphan is the pieces of a value whose head is gone.
type orphan struct {
	m   *Map
	big entry.Large
	n   int // the first n pieces remain
}

// orphan remembers to remove the pieces of the head e.
func (h *Maps) orphan(e entry.Local) {
	m := (*h.maps.Load())[e.Owner()]
	big := entry.LargeOf(e)
	h.forget(orphan{m, big, big.Count()})
}

// forget has the janitor remove the pieces of o.
func (h *Maps) forget(o orphan) {
	h.mu.Lock()
	h.orphans = append(h.orphans, o)
	h.mu.Unlock()
	h.core.WakeJanitor()
}

// bury removes the pieces of o, from the last to the first. It removes a far piece once it has read its key, and
// stops at a piece whose key it cannot read just now.
func (o *orphan) bury(ctx context.Context) error {
	for ; o.n > 0; o.n-- {
		k := o.big.Key(o.n - 1)
		hs := o.m.hash(k[:])
		sh := o.m.shard(hs)
		err := o.m.do(ctx, sh, hs, k[:], func(hd *holding) step {
			p, e, st := sh.find(o.m.h, hs, k[:], index.Pieces, hd, false)
			switch st {
			case absent:
				return step{}
			case remote:
				return sh.miss(o.m.h, p, st, needHead)
			}
			sh.remove(o.m.h, p, e)
			return step{}
		})
		if err != nil {
			if o.m.freed.Load() {
				return nil // and the pieces with it
			}
			return err
		}
	}
	return nil
}

// buryOrphans removes the pieces of values that are gone. What cannot be removed just now stays for the next time.
func (h *Maps) buryOrphans() {
	for h.core.Ctx.Err() == nil {
		h.mu.Lock()
		n := len(h.orphans)
		if n == 0 {
			h.mu.Unlock()
			return
		}
		o := h.orphans[n-1]
		h.mu.Unlock()
		ctx, cancel := context.WithTimeout(h.core.Ctx, heap.StoreTimeout)
		err := o.bury(ctx)
		cancel()

		h.mu.Lock()
		at := len(h.orphans) - 1
		for h.orphans[at].big.Version != o.big.Version {
			at-- // other orphans have been appended
		}
		if err != nil {
			// Let another orphan have a try first.
			h.orphans[at], h.orphans[0] = h.orphans[0], o
		} else {
			last := len(h.orphans) - 1
			h.orphans[at] = h.orphans[last]
			h.orphans = h.orphans[:last]
		}
		h.mu.Unlock()
		h.core.Logs.Wake() // there may be room now
		if err != nil {
			return
		}
	}
}
