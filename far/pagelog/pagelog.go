// Package pagelog is the far log of the pages of owners' indexes, and the reading of such pages. The log has segments
// apart from those of data, since pages are rewritten, and so die, much sooner than what they refer to. Pages that
// are read may lie in any segment. A [Log] has one user. The user knows which pages live, cleans the log by writing
// those anew, and accounts with heap.Heap.BuryFar for the pages that it replaces. The heap's cleaner leaves these
// segments alone.
//
// Making room does not need the log: the user of a log may wait for the evacuator, never the other way round.
package pagelog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"polder/far/heap"
	"polder/far/record"
	"polder/far/store"
	"polder/internal/sizeclass"
)

// Log is the far log. It has one user, a goroutine.
type Log struct {
	h       *heap.Heap
	open    *heap.FarSegment
	staging []byte
	staged  int // bytes in staging, to be written at open.end

	err     error     // of the last operation
	retry   time.Time // the store is not asked again before then
	backoff time.Duration
}

// New makes a log of h, which collects in staging what is to be written.
func New(h *heap.Heap, staging []byte) *Log { return &Log{h: h, staging: staging} }

// Ready sees to it that a record of n bytes fits behind what is staged. If what is staged has to be written first, it
// fails, and IsStagingFull is true of the error: the caller has to call Flush and try again. It also fails if the
// store fails, or has no memory left for use.
func (p *Log) Ready(n int, use heap.PageUse) error {
	if p.open != nil && p.open.Gone() {
		p.close()
	}
	if p.open != nil && p.staged+n <= len(p.staging) && p.open.End+p.staged+n <= p.h.Far.SegSize {
		return nil
	}
	if p.pending() > 0 {
		return errStagingFull
	}
	if p.open != nil && p.open.End+p.staged+n <= p.h.Far.SegSize {
		return fmt.Errorf("BUG: a page of %d bytes does not fit into a buffer of %d", n, len(p.staging))
	}
	if p.err != nil && time.Now().Before(p.retry) {
		return p.err
	}
	seg, err := p.h.BorrowForPages(p.h.Ctx, use)
	if err != nil {
		return p.failed(err)
	}
	s, err := p.h.Far.Add(seg, record.Pages)
	if err != nil {
		return p.failed(err)
	}
	p.close()
	s.Header().Put(p.staging)
	p.open, p.staged = s, record.SegmentSize
	p.err, p.backoff = nil, 0
	return nil
}

// errStagingFull: what is staged has to be written first.
var errStagingFull = errors.New("the staging buffer is full")

// IsStagingFull reports whether Ready has failed only because of what is staged.
func IsStagingFull(err error) bool { return err == errStagingFull }

// pending is the bytes of the records that are staged.
func (p *Log) pending() int {
	if p.open != nil && p.open.End == 0 {
		return p.staged - record.SegmentSize
	}
	return p.staged
}

// Reserve returns the n bytes behind what is staged, the address that they will have, and the position of the segment
// and the offset in it. From now on they count as live. Ready must have said that they fit.
func (p *Log) Reserve(n int) (b []byte, addr, position uint64, off int) {
	off = p.open.End + p.staged
	addr = p.open.Address(off)
	b = p.staging[p.staged : p.staged+n]
	p.staged += n
	p.open.Append(sizeclass.Round(n))
	return b, addr, p.open.Position(), off
}

// Seal completes r, a record in the bytes that Reserve has returned together with off.
func (p *Log) Seal(r record.Record, off int) {
	r.SetVersion(p.h.Far.NextVersion())
	r.Seal(p.open.Seed, off)
}

// Open is the segment that is being written.
func (p *Log) Open() *heap.FarSegment { return p.open }

// Flush writes what is staged. If it fails, the caller accounts for those records as dead.
func (p *Log) Flush() error {
	if p.pending() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(p.h.Ctx, heap.StoreTimeout)
	defer cancel()
	s, n := p.open, p.staged
	err := s.Seg.Write(ctx, p.staging[:n], s.End)
	p.staged = 0
	if err == nil && s.Gone() {
		err = &heap.LostError{Segment: s.Seg.Name()}
	}
	if err != nil {
		p.close()
		return p.failed(fmt.Errorf("cannot write %d bytes of index to %s: %w", n, s.Seg.Name(), err))
	}
	s.End += n
	s.Wrote(s.End)
	p.h.Count.BytesOut.Add(uint64(n))
	p.err, p.backoff = nil, 0
	return nil
}

func (p *Log) close() {
	if p.open != nil {
		p.open.Seal()
		p.open, p.staged = nil, 0
	}
}

func (p *Log) failed(err error) error {
	if errors.Is(err, heap.ErrStoreFull) {
		return err // asking again costs nothing, and cleaning may have made room
	}
	p.backoff = min(max(2*p.backoff, heap.MinBackoff), heap.MaxBackoff)
	p.err, p.retry = err, time.Now().Add(p.backoff)
	return err
}

// Read is a page that is to be read.
type Read struct {
	Addr uint64
	Buf  []byte // room for the size class of the record; once read, the body
	Err  error  // why the record cannot be read, or that it is no page
	Seg  *heap.FarSegment
	pin  int // of Seg
}

// NewRead prepares the reading of the page of h at addr. The page must be alive; its segment is pinned until ReadAll
// has read it.
func NewRead(h *heap.Heap, addr uint64, buf []byte) Read {
	s := h.Far.Seg(addr)
	return Read{Addr: addr, Buf: buf, Seg: s, pin: s.Pin()}
}

// Reads is pages that are read together, into one buffer.
type Reads struct {
	Pages []Read

	buf  []byte
	used int
}

// Begin empties r. The pages that are then added are read into buf.
func (r *Reads) Begin(buf []byte) { *r = Reads{Pages: r.Pages[:0], buf: buf} }

// Add adds the page of h at addr, whose record takes at most size bytes: see NewRead. It reports false if there is no
// room for it.
func (r *Reads) Add(h *heap.Heap, addr uint64, size int) bool {
	end := r.used + size
	if end > len(r.buf) {
		return false
	}
	r.Pages = append(r.Pages, NewRead(h, addr, r.buf[r.used:end:end]))
	r.used = end
	return true
}

// decodePage decodes the page that was read at off of s.
func decodePage(s *heap.FarSegment, b []byte, off int) (record.Record, error) {
	r, err := s.Decode(b, off)
	if err == nil && r.Kind() != record.Page {
		err = heap.ErrForeign
	}
	return r, err
}

// reread reads again a page that could not be decoded because of err. It returns the page, or what is wrong with it.
// It is a function of its own because its closure is allocated.
func reread(h *heap.Heap, s *heap.FarSegment, op *store.ReadOp, err error) (r record.Record, _ error) {
	h.Reread(s.Seg, op.Off, op.Buf, func() bool { r, err = decodePage(s, op.Buf, op.Off); return err == nil })
	return r, err
}

// ReadAll reads pages of h with one read of the store.
func ReadAll(ctx context.Context, h *heap.Heap, ps []Read) {
	f := &h.Far
	ops := make([]store.ReadOp, len(ps))
	bytes := 0
	for i := range ps {
		off := f.Offset(ps[i].Addr)
		ops[i] = store.ReadOp{Seg: ps[i].Seg.Seg, Off: off, Buf: ps[i].Buf[:min(len(ps[i].Buf), f.SegSize-off)], Bulk: true}
		bytes += len(ops[i].Buf)
	}
	f.Store.Read(ctx, ops)
	h.Count.BytesIn.Add(uint64(bytes))
	for i, op := range ops {
		p, s := &ps[i], ps[i].Seg
		p.Err = op.Err
		if op.Err == nil {
			r, err := decodePage(s, op.Buf, op.Off)
			if err != nil {
				r, err = reread(h, s, &ops[i], err)
			}
			if err == nil {
				p.Buf = r.Body()
			} else {
				p.Err = &heap.CorruptError{Segment: s.Seg.Name(), Off: op.Off, Err: err}
			}
		}
		s.Unpin(p.pin)
	}
}
