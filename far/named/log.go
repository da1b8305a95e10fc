package named

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/copies"
	"polder/far/store"
	"polder/internal/turns"
)

// A log is records in segments, which the manifest lists (as its tail) before anything is written to them. A segment
// begins with
//
//	u64 magic, u64 number of the segment
//
// followed by frames, each of which is
//
//	u32 CRC32C of the rest, begun with the CRC32C of the segment's number and the frame's offset
//	u32 length of the record, u64 number of the record, and the record
//
// Records are numbered from 1 on. A record whose write to one segment has failed is written again to the next
// segment, with the same number.
const (
	logMagic    = 0x676f4c6c6f50<<8 | 1 // "PolLog"
	logHeader   = 16
	frameHeader = 16

	// mostWritten is how many bytes of frames are written at a time, unless a single frame is longer.
	mostWritten = 256 << 10
	// someSpares is how many empty segments the log keeps ready, so that no write waits for a segment or for the
	// manifest.
	someSpares = 3

	// firstRead is how many bytes of a segment are read to see whether there is anything in it.
	firstRead = 4 << 10
	// logPause is the pause before the next try after the store or the manifest has failed.
	logPause = 50 * time.Millisecond
	// starving is how long there may be no spare segments before Starved says so.
	starving = 2 * time.Second
	// waitForCopy is how long to wait for a copy that cannot be reached, when the bytes after the last record of the
	// others may be damage.
	waitForCopy = copies.DefaultRepairAfter
)

// Tail is a segment of the log.
type Tail struct {
	Number uint64
	Name   string
}

// Log keeps records of what has changed in the heap since its last checkpoint. All methods may be called by any
// number of goroutines.
//
// When Commit has returned for a record, all copies of its segment have it. So the record survives the process that
// has written it, and whatever copies survive. An owner whose heap another process has taken over gets no success
// from Commit any more: the nodes have ended its queue pairs before the next owner reads the log.
type Log struct {
	s     *Store
	o     *Owner
	proc  *turns.Process
	stop  context.CancelFunc
	ctx   context.Context
	wg    turns.Group
	short chan struct{} // capacity 1: wakes keep, which refills spares

	mu      sync.Mutex
	changed turns.Cond // signalled when one of the following fields changes
	began   bool       // guarded by mu
	closed  bool       // guarded by mu
	failed  error      // guarded by mu
	next    uint64     // number of the next record; guarded by mu
	kept    uint64     // number of the last record that is in all copies; guarded by mu
	frames  []frame    // records that are not yet in all copies; guarded by mu
	shown   uint64     // number of the last write that all copies have; guarded by mu
	writing bool       // guarded by mu
	dropped uint64     // number of the last record that a checkpoint has; guarded by mu
	used    []used     // segments with records; the last one is being written to; guarded by mu
	spares  []used     // empty segments that the manifest lists already; guarded by mu
	since   time.Time  // when a write first found no spare, or zero; guarded by mu
	gone    []used     // segments to give back, once the manifest lists them no more; guarded by mu

	begun atomic.Uint64 // how many writes have begun; changed only with mu held

	fresh []used // new spares that the manifest may not list yet; only refill uses it
}

// used is a segment of the log.
type used struct {
	Tail
	seg  store.Segment
	off  int    // where the next frame goes
	last uint64 // number of the last record in it
}

// frame is a record to be written.
type frame struct {
	number uint64
	rec    []byte
}

// numbered is a segment that knows its number.
type numbered interface{ Number() uint64 }

func tailOf(seg store.Segment) Tail { return Tail{seg.(numbered).Number(), seg.Name()} }

// OpenLog calls replay with the records that earlier owners have kept and not dropped, one after the other; there may
// also be some whose Commit has never returned. The log takes records only after Begin. A store has one log.
func (s *Store) OpenLog(ctx context.Context, replay func(rec []byte) error) (*Log, error) {
	l := &Log{s: s, o: s.o, proc: s.o.proc, next: 1, short: make(chan struct{}, 1)}
	l.changed.L = &l.mu
	l.ctx, l.stop = context.WithCancel(context.Background())
	s.o.log.Store(l)
	next := uint64(0)
	for _, seg := range s.tail {
		var err error
		if next, err = l.read(ctx, seg, next, replay); err != nil {
			return nil, fmt.Errorf("cannot read %s of the log: %w", seg.Name(), err)
		}
	}
	return l, nil
}

// read calls replay with the records of seg from number next on, or all if next is 0, taken from the copy that has
// most of them. It returns the number after the last one.
func (l *Log) read(ctx context.Context, seg store.Segment, next uint64, replay func(rec []byte) error) (uint64, error) {
	var best []byte
	end, clean := next, false // clean: nothing follows the records; a damaged copy has something there
	buf := make([]byte, min(l.s.SegmentSize(), firstRead))
	number := seg.(numbered).Number()
	look := func() error {
		var why error
		reached := false
		l.s.EachCopy(ctx, seg, buf, func(err error) {
			if err != nil {
				why = err
				return
			}
			e, off := scanLog(buf, number, next, nil)
			// seen: buf has what follows the records, if anything does.
			seen := len(buf) == l.s.SegmentSize() || off+frameHeader <= len(buf)
			if ends := seen && len(bytes.Trim(buf[off:], "\x00")) == 0; e > end {
				end, clean, best = e, ends, append(best[:0], buf...)
			} else if e == end && ends {
				clean = true
			}
			reached = true
		})
		if !reached {
			return why
		}
		return nil
	}
	err := look()
	if err == nil && clean && best == nil {
		return end, nil // nothing was written to it
	}
	buf = make([]byte, l.s.SegmentSize())
	if err == nil {
		end, clean, best = next, false, nil
		err = look()
	}
	// The bytes after the last record were being written when the owner died, or are damage. Another copy shows
	// which.
	if err == nil && !clean && l.s.Reach(ctx, seg) > 0 {
		l.o.cfg.Logger.Warn("the log has something behind its last record, and waits for another copy, which cannot be reached", "segment", seg.Name(), "at most", waitForCopy)
		for until := l.proc.Now().Add(waitForCopy); l.s.Reach(ctx, seg) > 0 && l.proc.Now().Before(until); {
			if err := l.o.pause(ctx, errAway); err != nil {
				return 0, err
			}
		}
	}
	if err == nil && !clean {
		err = look()
	}
	if err == nil && best != nil {
		scanLog(best, number, next, func(rec []byte) bool { err = replay(rec); return err == nil })
	}
	return end, err
}

var errAway = errors.New("a copy of the log cannot be reached")

// scanLog finds the records of a segment, which are in order: from number next on, or from any number if next is 0.
// It returns the number that would follow, and where its frame would begin. The bytes may be anything.
func scanLog(b []byte, segment, next uint64, yield func(rec []byte) bool) (end uint64, off int) {
	if len(b) < logHeader || binary.LittleEndian.Uint64(b) != logMagic || binary.LittleEndian.Uint64(b[8:]) != segment {
		return next, 0
	}
	for off = logHeader; len(b)-off >= frameHeader; {
		n := int(binary.LittleEndian.Uint32(b[off+4:]))
		if n > len(b)-off-frameHeader || frameSum(b[off:off+frameHeader+n], segment, off) != binary.LittleEndian.Uint32(b[off:]) {
			break
		}
		number := binary.LittleEndian.Uint64(b[off+8:])
		if number > next && next != 0 || number == 0 || number == 1<<64-1 {
			break // a record is missing
		}
		if number == next || next == 0 { // otherwise the record was in an earlier segment, too
			next = number + 1
			if yield != nil && !yield(b[off+frameHeader:off+frameHeader+n]) {
				break
			}
		}
		off += frameHeader + n
	}
	return next, off
}

func frameSum(f []byte, segment uint64, off int) uint32 {
	seed := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, segment), uint64(off))
	return crc32.Update(crc32.Checksum(seed, castagnoli), castagnoli, f[4:])
}

func appendFrame(b []byte, f frame, segment uint64, off int) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.rec)))
	b = binary.LittleEndian.AppendUint64(b, f.number)
	b = append(b, f.rec...)
	binary.LittleEndian.PutUint32(b[at:], frameSum(b[at:], segment, off))
	return b
}

// Begin drops the records that were replayed, which a checkpoint of the heap has by now, and lets the log take
// records.
func (l *Log) Begin(ctx context.Context) error {
	err := l.refill(ctx)
	full := errors.Is(err, store.ErrStoreFull) && len(l.s.tail) > 0
	if full || err == nil {
		l.mu.Lock()
		for _, seg := range l.s.tail {
			l.gone = append(l.gone, used{Tail: tailOf(seg), seg: seg})
		}
		l.mu.Unlock()
		l.s.tail = nil
	}
	if full { // give back what was replayed first, which makes room
		if err = l.publish(ctx); err == nil {
			err = l.refill(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot begin a log: %w", err)
	}
	l.mu.Lock()
	l.began = true
	l.mu.Unlock()
	l.wantSpares() // which also gives back what was replayed, without anybody waiting for it
	l.wg.Go(l.proc, l.keep)
	return nil
}

// free gives back a segment that the manifest does not list.
func (l *Log) free(seg store.Segment) {
	if err := seg.Free(l.ctx); err != nil && l.ctx.Err() == nil {
		l.o.cfg.Logger.Warn("cannot give back a segment of the log; it is pruned when the heap is opened again", "segment", seg.Name(), "error", err)
	}
}

// refill borrows spare segments, and makes the manifest list the log as it is now. Only one goroutine at a time calls
// it, and nothing else changes what the manifest lists.
func (l *Log) refill(ctx context.Context) error {
	l.mu.Lock()
	have, gone := len(l.spares), len(l.gone) // spares may be used up meanwhile, but are not added by anybody else
	l.mu.Unlock()
	if have >= someSpares && gone == 0 {
		return nil
	}
	var err error
	for have+len(l.fresh) < someSpares {
		var seg store.Segment
		if seg, err = l.s.Alloc(ctx); err != nil {
			break // fewer will do
		}
		l.fresh = append(l.fresh, used{Tail: tailOf(seg), seg: seg})
	}
	none := have+len(l.fresh) == 0
	l.s.poor.Store(none && gone == 0 && errors.Is(err, store.ErrStoreFull))
	if none && gone == 0 {
		return err
	}
	if err := l.publish(ctx); err != nil {
		return err
	}
	if none {
		return l.refill(ctx) // publish has given segments back, so there is room
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spares, l.since, l.fresh = append(l.spares, l.fresh...), time.Time{}, nil
	l.changed.Broadcast()
	return nil
}

// publish makes the manifest list the log's segments, and gives back those that it lists no more. Only refill and
// Begin call it.
func (l *Log) publish(ctx context.Context) error {
	o := l.o
	if err := o.begin(ctx); err != nil {
		return err
	}
	var gone []used
	err := o.change(ctx, mostWithMoves(len(o.m.Root)), func(m *Manifest) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		m.Tail, gone = nil, slices.Clone(l.gone)
		for _, u := range slices.Concat(l.used, l.spares, l.fresh) {
			m.Tail = append(m.Tail, Tail{u.Number, u.seg.Name()})
		}
		return nil
	})
	o.end()
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.gone = slices.DeleteFunc(l.gone, func(u used) bool { return slices.ContainsFunc(gone, func(g used) bool { return g.Number == u.Number }) })
	l.mu.Unlock()
	for _, u := range gone {
		l.free(u.seg)
	}
	return nil
}

// keep refills spares whenever there are too few, until Close.
func (l *Log) keep() {
	for {
		if l.ended(nil, l.short) {
			return
		}
		for l.refill(l.ctx) != nil {
			if l.ended(l.proc.NewTimer(logPause), nil) {
				return
			}
		}
	}
}

// ended waits for the timer or the signal, either of which may be nil, and reports whether the log has ended by then.
func (l *Log) ended(timer *turns.Timer, signal <-chan struct{}) bool {
	switch l.proc.Wait(timer, l.ctx.Done(), l.o.superseded, signal) {
	case 0:
		return true
	case 1:
		l.fail(ErrSuperseded)
		return true
	}
	return false
}

func (l *Log) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = err
	}
	l.changed.Broadcast()
}

// ErrLogClosed says that the log was closed.
var ErrLogClosed = errors.New("the log is closed")

// Append adds a record, which is copied, and returns its number. It does not wait: Commit does. A record has at most
// MaxRecord bytes.
func (l *Log) Append(rec []byte) (uint64, error) {
	if len(rec) > l.MaxRecord() {
		return 0, fmt.Errorf("cannot append a record of %d bytes to the log, at most %d", len(rec), l.MaxRecord())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.failed != nil:
		return 0, l.failed
	case l.closed || !l.began:
		return 0, ErrLogClosed
	}
	n := l.next
	l.next++
	l.frames = append(l.frames, frame{n, slices.Clone(rec)})
	return n, nil
}

// MaxRecord is how many bytes a record may have.
func (l *Log) MaxRecord() int { return l.s.SegmentSize() - logHeader - frameHeader }

// Last is the number of the last record that was appended.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next - 1
}

// Commit returns when all records up to this number are kept. Concurrent calls share writes.
func (l *Log) Commit(number uint64) error {
	return l.until(func() bool { return l.kept >= number })
}

// until writes, or waits while another goroutine does, until is reports true.
func (l *Log) until(is func() bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case is():
			return nil
		case l.failed != nil:
			return l.failed
		case l.closed && !l.writing:
			return ErrLogClosed
		case l.writing || l.closed:
			l.changed.Wait(l.proc)
		default:
			l.write()
		}
	}
}

// Ask asks for evidence that there is no other owner at some moment after the call. Shown waits for it.
func (l *Log) Ask() (ticket uint64) { return l.begun.Load() + 1 } // the number of the next write

// Shown returns when the evidence of a ticket is there. It uses no clock: the evidence is that all copies of a
// segment of the log have taken a write that began after Ask. If nothing was appended meanwhile, the write is an
// empty one behind the last record. Concurrent calls share writes.
func (l *Log) Shown(ticket uint64) error {
	return l.until(func() bool { return l.shown >= ticket })
}

// write writes some of the appended records, or an empty frame if there are none. If it needs a spare segment and
// there is none it waits for a change instead. l.mu must be held; it is released meanwhile.
func (l *Log) write() {
	write := l.begun.Add(1)
	if (len(l.used) == 0 || !l.fits(&l.used[len(l.used)-1])) && !l.advance() {
		return
	}
	u := &l.used[len(l.used)-1]
	number, at, seg := u.Number, u.off, u.seg
	var b []byte
	if at == 0 {
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, logMagic), number)
	}
	n := 0
	for _, f := range l.frames {
		size := frameHeader + len(f.rec)
		if at+len(b)+size > l.s.SegmentSize() || n > 0 && len(b)+size > mostWritten {
			break
		}
		b = appendFrame(b, f, number, at+len(b))
		n++
	}
	end, last := at+len(b), uint64(0)
	if n > 0 {
		last = l.frames[n-1].number
	} else {
		end, b = at, append(b, noFrame[:]...) // the next frame overwrites it
	}
	err := l.writeTo(seg, b, at)
	u = &l.used[len(l.used)-1] // the same segment: used may have been reallocated
	if err == nil {
		l.shown = write
		if u.off = end; n > 0 {
			u.last = last
			l.frames, l.kept = slices.Delete(l.frames, 0, n), last
		}
	} else {
		// Some copies may have got part of this write. That does no harm: the next segment gets the same records with
		// the same numbers.
		u.off = l.s.SegmentSize()
		if !errors.Is(err, store.ErrSealed) {
			select {
			case <-l.o.superseded:
				l.failed = ErrSuperseded
			default:
				l.o.cfg.Logger.Warn("cannot write to a segment of the log, and go on in another one", "segment", seg.Name(), "error", err)
			}
		}
	}
	l.changed.Broadcast()
}

// writeTo writes to a segment. l.mu must be held; it is released meanwhile.
func (l *Log) writeTo(seg store.Segment, b []byte, off int) error {
	l.writing = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.writing = false
	}()
	return seg.Write(l.ctx, b, off)
}

// noFrame is what is written when there is no record to write: its number, 0, is that of no record.
var noFrame [frameHeader]byte

// fits reports whether the next frame has room in u.
func (l *Log) fits(u *used) bool {
	size := frameHeader
	if len(l.frames) > 0 {
		size += len(l.frames[0].rec)
	}
	return max(u.off, logHeader)+size <= l.s.SegmentSize()
}

// wantSpares wakes keep, which refills spares and gives segments back.
func (l *Log) wantSpares() {
	select {
	case l.short <- struct{}{}:
	default:
	}
}

// advance goes on to the next spare. If there is none it waits until something has changed, and reports false. l.mu
// must be held.
func (l *Log) advance() bool {
	l.wantSpares()
	if len(l.spares) == 0 {
		if l.since.IsZero() {
			l.since = l.proc.Now()
		}
		l.changed.Wait(l.proc)
		return false
	}
	l.used = append(l.used, l.spares[0])
	l.spares = slices.Delete(l.spares, 0, 1)
	return true
}

// Copies returns the least number of copies of records that are committed and in no checkpoint yet, and whether
// everything that the heap and the log have is on a disk as well.
func (l *Log) Copies() (n int, disk bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	segs := l.used
	if len(segs) == 0 {
		segs = l.spares
	}
	for i, u := range segs {
		if has := l.s.CopiesOf(u.seg); i == 0 || has < n {
			n = has
		}
	}
	return n, l.s.Everywhere()
}

// Starved returns an error if records have had to wait for a segment for some time, nil otherwise.
func (l *Log) Starved() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() || l.proc.Since(l.since) < starving {
		return nil
	}
	return fmt.Errorf("no far memory can be had for the log for %v", l.proc.Since(l.since).Round(time.Second))
}

// Drop gives back, soon, the segments that have only records up to number upTo, which a checkpoint of the heap has.
func (l *Log) Drop(upTo uint64) {
	l.mu.Lock()
	l.dropped = max(l.dropped, upTo)
	n := 0
	// The last segment may still be written to.
	for n < len(l.used) && l.used[n].last <= upTo && (n < len(l.used)-1 || !l.writing && !l.fits(&l.used[n])) {
		n++
	}
	l.gone = append(l.gone, l.used[:n]...)
	l.used = slices.Delete(l.used, 0, n)
	l.mu.Unlock()
	l.wantSpares()
}

// Abandon makes all calls that wait for records to be kept fail, now and later. Some of the records may be kept
// nevertheless.
func (l *Log) Abandon() { l.fail(ErrLogClosed) }

// spent reports whether the log has ended and the next owner needs nothing of it: a checkpoint has everything that
// was appended.
func (l *Log) spent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.began && l.closed && l.failed == nil && l.dropped >= l.next-1
}

// Close ends the log when everything that was appended is kept, or cannot be. What no checkpoint has stays for the
// next owner.
func (l *Log) Close() error {
	last := l.Last()
	timer := l.proc.AfterFunc(closeTimeout, func() { l.fail(fmt.Errorf("the last records are not kept: %w", context.DeadlineExceeded)) })
	err := l.Commit(last)
	timer.Stop()
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	l.stop()
	l.wg.Wait(l.proc)
	return err
}

const closeTimeout = 5 * time.Second
