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

// A log consists of records in segments, its tail. The manifest lists a segment before anything is written to it. A
// segment begins with
//
//	u64 magic, u64 number of the segment
//
// and goes on with frames, each of which is
//
//	u32 CRC32C of the rest, begun with the CRC32C of the segment's number and the frame's offset
//	u32 length of the record, u64 number of the record, and the record
//
// Records are numbered from 1 on. A record that could not be written to one segment is written again to the next
// segment, with the same number.
const (
	logMagic    = 0x676f4c6c6f50<<8 | 1 // "PolLog"
	logHeader   = 16
	frameHeader = 16

	// mostWritten is how many bytes of frames are written at a time at most, unless a single frame is longer.
	mostWritten = 256 << 10
	// someSpares is how many empty segments the log keeps, so that no write waits for a segment or for the manifest.
	someSpares = 3

	// firstRead is how many bytes of a segment are read to see whether there is anything in it.
	firstRead = 4 << 10
	// logPause is how long the log waits after the store or the manifest has failed, before it tries again.
	logPause = 50 * time.Millisecond
	// starving is how long the log may have no spares before Starved says so.
	starving = 2 * time.Second
	// waitForCopy is how long the reading of a segment waits for a copy that cannot be reached. It waits if something
	// follows the last record of the copies that can be read: that may be a write which was under way, or damage.
	waitForCopy = copies.DefaultRepairAfter
)

// Tail is a segment of the log.
type Tail struct {
	Number uint64
	Name   string
}

// Log keeps records beside the heap: what has changed since its last checkpoint. All methods may be called by any
// number of goroutines.
//
// When Commit has returned for a record, all copies of the record's segment have it. So the record survives the
// process that has written it, and the losses that copies survive. Once another owner has taken the heap over, Commit
// does not succeed any more: the nodes have ended this owner's queue pairs before the next owner reads the log.
type Log struct {
	s     *Store
	o     *Owner
	proc  *turns.Process
	stop  context.CancelFunc
	ctx   context.Context
	wg    turns.Group
	short chan struct{} // capacity 1: there are too few spares

	mu      sync.Mutex
	changed turns.Cond // signals that one of the following has changed
	began   bool       // guarded by mu
	closed  bool       // guarded by mu
	failed  error      // guarded by mu
	next    uint64     // number of the next record; guarded by mu
	kept    uint64     // number of the last record that is in all copies; guarded by mu
	frames  []frame    // records that are not kept yet; guarded by mu
	shown   uint64     // number of the last write that all copies have; guarded by mu
	writing bool       // guarded by mu
	dropped uint64     // a checkpoint has the records up to this number; guarded by mu
	used    []used     // segments that were written to; the last one still is; guarded by mu
	spares  []used     // empty segments, which the manifest lists, too; guarded by mu
	since   time.Time  // when there were no spares left, or zero; guarded by mu
	gone    []used     // segments that the manifest may still list, but need not; guarded by mu

	begun atomic.Uint64 // how many writes have begun; changes under mu

	fresh []used // borrowed segments that the manifest may or may not list yet; only refill and what it calls use it
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

// numbered is a segment that tells its number.
type numbered interface{ Number() uint64 }

func tailOf(seg store.Segment) Tail { return Tail{seg.(numbered).Number(), seg.Name()} }

// OpenLog calls replay with the records that earlier owners have kept and not dropped, one after the other, and maybe
// with some that they were about to keep. The log takes records only after Begin. A store has one log.
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

// read calls replay with the records of seg, from the record number next on, as the copy with the most records has
// them. It returns the number that follows the last of them.
func (l *Log) read(ctx context.Context, seg store.Segment, next uint64, replay func(rec []byte) error) (uint64, error) {
	var best []byte
	// clean says that a copy with all records up to end has nothing behind them. A damaged copy would have something
	// there.
	end, clean := next, false
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
			seen := len(buf) == l.s.SegmentSize() || off+frameHeader <= len(buf) // buf shows what follows the records
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
	// What follows the records was being written when the owner died, or is damaged. Another copy would tell.
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

// scanLog finds the records of a segment, in the order of their numbers, from the number next on, or from any number
// if next is 0. It returns the number that would follow, and where the frame of that record would begin. The bytes
// may be anything.
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
		if number == next || next == 0 { // else an earlier segment has the record, too
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

// Begin drops the records that were replayed, which a checkpoint of the heap must have by now, and lets the log take
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
	if full { // the segments that were replayed may be all that fills the store: give them back first
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
	l.wantSpares() // keep also gives back what was replayed, so that nobody waits for that
	l.wg.Go(l.proc, l.keep)
	return nil
}

// free gives back a segment that the manifest does not list.
func (l *Log) free(seg store.Segment) {
	if err := seg.Free(l.ctx); err != nil && l.ctx.Err() == nil {
		l.o.cfg.Logger.Warn("cannot give back a segment of the log; it is pruned when the heap is opened again", "segment", seg.Name(), "error", err)
	}
}

// refill borrows spares, and makes the manifest list the segments that the log has now. Only one goroutine at a time
// calls it, and nobody else changes which segments the manifest lists.
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
		return l.refill(ctx) // publish has given segments back
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spares, l.since, l.fresh = append(l.spares, l.fresh...), time.Time{}, nil
	l.changed.Broadcast()
	return nil
}

// publish makes the manifest list the log's segments, and gives back those that it lists no longer. Only Begin and
// refill call it.
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

// keep refills the spares whenever it is told to, until the log ends.
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

// ended waits for the timer or the signal, either of which may be nil. It reports whether the log has ended before
// that.
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

// MaxRecord returns how many bytes a record may have.
func (l *Log) MaxRecord() int { return l.s.SegmentSize() - logHeader - frameHeader }

// Last returns the number of the last record that was appended.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next - 1
}

// Commit returns when all records up to that number are kept. Concurrent calls share writes.
func (l *Log) Commit(number uint64) error {
	return l.until(func() bool { return l.kept >= number })
}

// until writes, or waits while another goroutine writes, until is returns true. It fails if the log has failed, or is
// closed and no write is under way. is is called with l.mu held.
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

// Ask asks for evidence that there is no other owner at some moment after the call. Shown waits for the evidence.
func (l *Log) Ask() (ticket uint64) { return l.begun.Load() + 1 } // the number of a write that has not begun

// Shown returns when there is the evidence that a ticket of Ask is for. It needs no clock: the evidence is that all
// copies of a segment of the log have taken a write that began after Ask. If there is no record to write, this write
// puts noFrame behind the last record. Concurrent calls share writes.
func (l *Log) Shown(ticket uint64) error {
	return l.until(func() bool { return l.shown >= ticket })
}

// write writes some of the records in frames, or noFrame if there are none. If there is no segment to write to, it
// waits instead until something changes. l.mu must be held; it is released meanwhile.
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
	u = &l.used[len(l.used)-1] // the same segment, but Drop may have moved its place in used
	if err == nil {
		l.shown = write
		if u.off = end; n > 0 {
			u.last = last
			l.frames, l.kept = slices.Delete(l.frames, 0, n), last
		}
	} else {
		// Some copies may have a part of these records. That does no harm: the next segment gets the same records
		// with the same numbers.
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

// noFrame is written when there is no record to write. The number in it, 0, is that of no record.
var noFrame [frameHeader]byte

// fits reports whether u has room for the next frame.
func (l *Log) fits(u *used) bool {
	size := frameHeader
	if len(l.frames) > 0 {
		size += len(l.frames[0].rec)
	}
	return max(u.off, logHeader)+size <= l.s.SegmentSize()
}

// wantSpares makes keep look for spares, and give back the segments in gone.
func (l *Log) wantSpares() {
	select {
	case l.short <- struct{}{}:
	default:
	}
}

// advance begins to use the next spare. If there is none, it waits until something has changed, and reports false.
// l.mu must be held.
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

// Copies returns how many copies at places that answer, at least, there are of every record that was committed and
// that no checkpoint has yet; and whether all that the heap and the log have is on a disk as well.
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

// Starved returns an error that says for how long records may have had to wait for far memory, nil if that is not
// long.
func (l *Log) Starved() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() || l.proc.Since(l.since) < starving {
		return nil
	}
	return fmt.Errorf("no far memory can be had for the log for %v", l.proc.Since(l.since).Round(time.Second))
}

// Drop says that a checkpoint of the heap has the records up to number upTo. Segments that have no later records will
// soon be given back.
func (l *Log) Drop(upTo uint64) {
	l.mu.Lock()
	l.dropped = max(l.dropped, upTo)
	n := 0
	// The last segment is dropped only if no write is under way and the next frame goes to another one.
	for n < len(l.used) && l.used[n].last <= upTo && (n < len(l.used)-1 || !l.writing && !l.fits(&l.used[n])) {
		n++
	}
	l.gone = append(l.gone, l.used[:n]...)
	l.used = slices.Delete(l.used, 0, n)
	l.mu.Unlock()
	l.wantSpares()
}

// Abandon makes all calls fail, now and later, that wait until records are kept. Some of these records may be kept
// all the same.
func (l *Log) Abandon() { l.fail(ErrLogClosed) }

// spent reports whether the log has ended and the next owner needs nothing of it, since a checkpoint has all records.
func (l *Log) spent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.began && l.closed && l.failed == nil && l.dropped >= l.next-1
}

// Close waits until all records that were appended are kept or the log has failed, but for at most closeTimeout, and
// ends the log. The segments stay for the next owner, except those that Drop gives back.
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
