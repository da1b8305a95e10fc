package far

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// A value longer than Heap.pieces is stored as pieces: entries of the same map
// that only their version and number name, and that no user sees. The entry of
// the key holds a bigHead. Pieces are written before the head and never
// change, so that whoever has read a head reads the value that it stood for,
// or finds pieces missing and knows that there is a newer one.
type bigHead struct {
	version uint64 // never 0, never used again
	size    int
	piece   int // size of every piece but the last
}

const bigHeadSize = 20

// errBig leads from the paths for small values to those for large ones.
var errBig = errors.New("a large value")

// bigOf reads the head that is the value of e.
func bigOf(e entry) bigHead {
	v := e.value()
	return bigHead{
		version: binary.LittleEndian.Uint64(v),
		size:    int(binary.LittleEndian.Uint64(v[8:])),
		piece:   int(binary.LittleEndian.Uint32(v[16:])),
	}
}

func (b bigHead) encode() []byte {
	v := make([]byte, 0, bigHeadSize)
	v = binary.LittleEndian.AppendUint64(v, b.version)
	v = binary.LittleEndian.AppendUint64(v, uint64(b.size))
	return binary.LittleEndian.AppendUint32(v, uint32(b.piece))
}

// count is the number of pieces.
func (b bigHead) count() int { return (b.size + b.piece - 1) / b.piece }

// plausible reports whether b may be of this heap. Whoever lends the memory may
// have made it up.
func (h *Heap) plausible(b bigHead) bool {
	return b.version != 0 && b.piece == h.pieces && b.size > h.pieces && b.size <= h.cfg.MaxValue
}

const pieceKeySize = 12

// key names a piece.
func (b bigHead) key(i int) (k [pieceKeySize]byte) {
	binary.LittleEndian.PutUint64(k[:], b.version)
	binary.LittleEndian.PutUint32(k[8:], uint32(i))
	return k
}

// setBig stores r, whose value is large, if the entry is still was, which may be
// nil, when the pieces are in place.
func (m *ByteMap) setBig(ctx context.Context, sh *shard, hs hash, r record, was *snapshot) error {
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

func (m *ByteMap) trySetBig(ctx context.Context, sh *shard, hs hash, r record, was *snapshot, ok func() error) error {
	big := bigHead{version: m.h.newVersion(), size: len(r.value), piece: m.h.pieces}
	defer m.h.written(big.version)
	for i := range big.count() {
		part := r.value[i*big.piece : min((i+1)*big.piece, big.size)]
		if err := m.setPiece(ctx, big, i, part); err != nil {
			m.h.forget(orphan{m, big, i})
			return err
		}
	}
	r.value, r.flags = big.encode(), flagBig
	err := m.setSlow(ctx, sh, hs, r, was, ok)
	if err != nil {
		m.h.forget(orphan{m, big, big.count()})
	}
	return err
}

// newVersion begins the writing of a large value, and written ends it.
func (h *Heap) newVersion() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.version++
	h.writing[h.version] = true
	return h.version
}

func (h *Heap) written(version uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.writing, version)
}

func (m *ByteMap) setPiece(ctx context.Context, big bigHead, i int, part []byte) error {
	k := big.key(i)
	hs := m.hash(k[:])
	sh := m.shard(hs)
	r := record{key: k[:], value: part, flags: flagPiece}
	try := func(*holding) step { return stepOf(m.insert(sh, hs, none, nil, &r)) }
	return m.do(ctx, sh, hs, k[:], try)
}

// ahead is the number of pieces that are fetched in one batch.
const ahead = 16

// getPieces appends the value of big to dst. It reports false if a piece is
// gone.
func (m *ByteMap) getPieces(ctx context.Context, big bigHead, dst []byte) ([]byte, bool, error) {
	start := len(dst)
	fetched := 0 // pieces before it have been asked for
	for i := range big.count() {
		k := big.key(i)
		hs := m.hash(k[:])
		sh := m.shard(hs)
		try := func(hd *holding) step {
			p, e, st := sh.find(m.h, hs, k[:], kindPiece, hd, true)
			if st == remote && hd == nil && i >= fetched {
				return step{err: errBig}
			}
			if st != present {
				return sh.miss(m.h, p, st, needWhole)
			}
			if want := min(big.piece, big.size-i*big.piece); len(e.value()) != want {
				return step{err: big.corrupt(fmt.Errorf("piece %d has %d bytes, want %d", i, len(e.value()), want))}
			}
			w := sh.t.word(p)
			*w = w.touched()
			dst = append(dst, e.value()...)
			return step{}
		}
		err := m.do(ctx, sh, hs, k[:], try)
		if err == errBig && ctx.Err() == nil {
			fetched = min(i+ahead, big.count())
			if err = m.fetchPieces(ctx, big, i, fetched); err == nil {
				err = m.do(ctx, sh, hs, k[:], try)
			}
		} else if err == errBig {
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

// corrupt is the error for a value whose head is at odds with its pieces.
func (b bigHead) corrupt(err error) error {
	return &CorruptError{Segment: fmt.Sprintf("large value, version %d", b.version), Err: err}
}

// fetchPieces brings pieces [i, j) into local memory.
func (m *ByteMap) fetchPieces(ctx context.Context, big bigHead, i, j int) error {
	b := m.newBatch()
	defer b.end()
	for ; i < j; i++ {
		k := big.key(i)
		b.left = j - i
		if _, err := b.add(ctx, k[:], kindPiece); err != nil {
			return errOr(b.run(ctx), err)
		}
	}
	return b.run(ctx)
}

// errChanged: the entry is not the one that an update was computed from.
var errChanged = errors.New("changed")

// snapshot is an entry as an update has seen it, which may find another one when
// it is done. The nil snapshot asks for nothing.
type snapshot struct {
	Entry
	found   bool
	version uint64 // of a large value, which stands for it; Value is nil then
}

// whole reports whether it takes an entry's value to tell whether it is s.
func (s *snapshot) whole() bool { return s != nil && s.found && s.version == 0 }

func (s *snapshot) need() need {
	if s.whole() {
		return needWhole
	}
	return needHead
}

// is reports whether e is the entry, nil if there is none.
func (s *snapshot) is(e entry) bool {
	switch {
	case e == nil || e.expired():
		return !s.found
	case !s.found:
		return false
	case e.big():
		return bigOf(e).version == s.version
	}
	m := e.meta()
	return s.version == 0 && m.Tag == s.Tag && m.Expire.Equal(s.Expire) && bytes.Equal(e.value(), s.Value)
}

// snapshot reads the entry of key, and its value beside it.
func (m *ByteMap) snapshot(ctx context.Context, sh *shard, hs hash, key []byte) (*snapshot, []byte, error) {
	e, version, err := m.getSlow(ctx, sh, hs, key, nil)
	if errors.Is(err, ErrNotFound) {
		return &snapshot{}, nil, nil
	}
	s := &snapshot{Entry: e, found: true, version: version}
	if s.Value = nil; version == 0 {
		s.Value = bytes.Clone(e.Value)
	}
	return s, e.Value, err
}

// updateBig is Update where the value before or after it is large. It works
// on a copy and stores the outcome if the entry has not changed meanwhile.
func (m *ByteMap) updateBig(ctx context.Context, sh *shard, hs hash, key []byte, fn UpdateFunc) error {
	for {
		was, value, err := m.snapshot(ctx, sh, hs, key)
		if err != nil {
			return err
		}
		old := was.Entry
		old.Value = value
		put, verdict, err := fn(old, was.found)
		if err != nil {
			return err
		}
		switch {
		case verdict == Put:
			if err := m.check(key, len(put.Value)); err != nil {
				return err
			}
			r := newRecord(key, put)
			if len(put.Value) > m.h.pieces {
				err = m.setBig(ctx, sh, hs, r, was)
			} else {
				err = m.setSlow(ctx, sh, hs, r, was, nil)
			}
		case verdict == Remove && was.found:
			err = m.do(ctx, sh, hs, key, func(hd *holding) step {
				p, e, st := sh.find(m.h, hs, key, kindEntry, hd, was.whole())
				switch {
				case st == remote:
					return sh.miss(m.h, p, st, was.need())
				case !was.is(e):
					return step{err: errChanged}
				}
				sh.remove(m.h, p, e)
				sh.count.deletes++
				return step{}
			})
		}
		if err != errChanged {
			return err
		}
	}
}

// orphan is the pieces of a value whose head is gone.
type orphan struct {
	m   *ByteMap
	big bigHead
	n   int // the first n pieces remain
}

// orphan remembers to remove the pieces of the head e.
func (h *Heap) orphan(e entry) {
	m := (*h.maps.Load())[e.mapID()]
	big := bigOf(e)
	h.forget(orphan{m, big, big.count()})
}

// forget has the janitor remove the pieces of o.
func (h *Heap) forget(o orphan) {
	h.mu.Lock()
	h.orphans = append(h.orphans, o)
	h.mu.Unlock()
	h.wakeJanitor()
}

// bury removes the pieces that are local, and those that are far once it is
// sure of them, from the last to the first. It stops at the first that it
// cannot be sure of just now.
func (o *orphan) bury(ctx context.Context) error {
	for ; o.n > 0; o.n-- {
		k := o.big.key(o.n - 1)
		hs := o.m.hash(k[:])
		sh := o.m.shard(hs)
		err := o.m.do(ctx, sh, hs, k[:], func(hd *holding) step {
			p, e, st := sh.find(o.m.h, hs, k[:], kindPiece, hd, false)
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
			return err
		}
	}
	return nil
}
