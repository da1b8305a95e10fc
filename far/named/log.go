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

// A log is records in segments, its tail, which the manifest lists before anything is written to them. A segment begins with
//
//	u64 magic, u64 number of the segment
//
// and has frames, of which each is
//
//	u32 CRC32C of the rest, begun with the CRC32C of the segment's number and the frame's offset
//	u32 length of the record, u64 number of the record, and the record
//
// Records are numbered from 1 on. One whose write has failed in one segment is written again to the next one, with
// the same number.
const (
	logMagic    = 0x676f4c6c6f50<<8 | 1 // "PolLog"
	logHeader   = 16
	frameHeader = 16

	// mostWritten is how many bytes of frames are written at a time, but for one that is longer.
	mostWritten = 256 << 10
	// someSpares is how many empty segments there are to be, so that nobody waits for one, nor for the manifest.
	someSpares = 3

	// firstRead is how much is read of a segment to see whether there is anything in it.
	firstRead = 4 << 10
	// logPause is for how long the store or the manifest is left alone after it has failed.
	logPause = 50 * time.Millisecond
	// starving is for how long there may be no spares until that is said.
	starving = 2 * time.Second
	// waitForCopy is for how long what may be the end of the log, or damaged, waits for a copy that cannot be reached.
	waitForCopy = copies.DefaultRepairAfter
)

// Tail is a segment of the log.
type Tail struct {
	Number uint64
	Name   string
}

// Log keeps records beside the heap: what has changed since its last checkpoint. All methods may be called by any number
// of goroutines.
//
// A record that Commit has returned for is in all copies of its segment, so it survives the process that has written it
// and what copies survive. An owner whose heap another one has taken over gets no such answer any more: the nodes have ended
// its queue pairs before the next owner reads the log.
type Log struct {
	s     *Store
	o     *Owner
	proc  *turns.Process
	stop  context.CancelFunc
	ctx   context.Context
	wg    turns.Group
	short chan struct{} // capacity 1: there are too few spares

	mu      sync.Mutex
	changed turns.Cond // when one of what follows changes
	began   bool       // guarded by mu
	closed  bool       // guarded by mu
	failed  error      // guarded by mu
	next    uint64     // number of the next record; guarded by mu
	kept    uint64     // number of the last one that is in all copies; guarded by mu
	frames  []frame    // that are not; guarded by mu
	shown   uint64     // number of the last write that all copies have; guarded by mu
	writing bool       // guarded by mu
	dropped uint64     // up to which records a checkpoint has them; guarded by mu
	used    []used     // segments that were written to, the last one still is; guarded by mu
	spares  []used     // the manifest lists them, too; guarded by mu
	since   time.Time  // when there was none left, or zero; guarded by mu
	gone    []used     // segments that the manifest need not list any more, and may still; guarded by mu

	begun atomic.Uint64 // how many writes have begun; only the one that holds mu changes it

	fresh []used // spares of which it is not known whether the manifest lists them; refill's
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

// OpenLog gives replay, one after the other, the records that earlier owners have kept and not dropped, and maybe some that they
// were about to keep. The log takes records after Begin. There is one log of a store.
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

// read gives replay the records of seg from that with the number next on: those of the copy that has most of them. It returns
// the number of the one behind them.
func (l *Log) read(ctx context.Context, seg store.Segment, next uint64, replay func(rec []byte) error) (uint64, error) {
	var best []byte
	end, clean := next, false // nothing follows the records: a copy that is damaged has something there
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
			seen := len(buf) == l.s.SegmentSize() || off+frameHeader <= len(buf) // what follows the records, if anything does
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
	// What follows was being written when the owner died, or is damaged. Another copy says which.
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

// scanLog finds the records of a segment, which are in order from that with the number next on, or from any number if that is 0.
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
			break // there is one missing
		}
		if number == next || next == 0 { // else it was written before, to another segment
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

// Begin drops what was replayed, which a checkpoint of the heap has by now, and has the log take records.
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
	if full { // but for what was replayed
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
	l.wantSpares() // and gives back what was replayed, for which nobody waits
	l.wg.Go(l.proc, l.keep)
	return nil
}

// free gives back a segment that the manifest does not list.
func (l *Log) free(seg store.Segment) {
	if err := seg.Free(l.ctx); err != nil && l.ctx.Err() == nil {
		l.o.cfg.Logger.Warn("cannot give back a segment of the log; it is pruned when the heap is opened again", "segment", seg.Name(), "error", err)
	}
}

// refill borrows spares, and has the manifest list the log as it is now. One goroutine calls it at a time, and nobody else
// changes what the manifest lists.
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
		return l.refill(ctx) // of what has been given back
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spares, l.since, l.fresh = append(l.spares, l.fresh...), time.Time{}, nil
	l.changed.Broadcast()
	return nil
}

// publish has the manifest list the log's segments, and gives back those that it does not list any more. It is refill's.
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

// keep keeps spares, until Close.
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

// Commit returns when all records up to that of the number are kept. Those who wait share writes.
func (l *Log) Commit(number uint64) error {
	return l.until(func() bool { return l.kept >= number })
}

// until writes, or waits for others that do, until what is to be has come true.
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

// Ask asks for evidence that there is no other owner, at some moment after the call. Shown waits for it.
func (l *Log) Ask() (ticket uint64) { return l.begun.Load() + 1 } // of a write that has not begun

// Shown returns when the evidence of a ticket is there, without any clock: all copies of a segment of the log have taken a write that was
// begun after Ask. If nothing was appended meanwhile, that is one of no record, behind the last one. Those who wait share writes.
func (l *Log) Shown(ticket uint64) error {
	return l.until(func() bool { return l.shown >= ticket })
}

// write writes some of what was appended, if there is anything, or waits for a spare. l.mu must be held; it is let go meanwhile.
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
	u = &l.used[len(l.used)-1] // it is the same one
	if err == nil {
		l.shown = write
		if u.off = end; n > 0 {
			u.last = last
			l.frames, l.kept = slices.Delete(l.frames, 0, n), last
		}
	} else {
		// What some copies have got of it is the same as what is written to the next segment, and has the same numbers.
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

// writeTo writes to a segment. l.mu must be held; it is let go meanwhile.
func (l *Log) writeTo(seg store.Segment, b []byte, off int) error {
	l.writing = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.writing = false
	}()
	return seg.Write(l.ctx, b, off)
}

// noFrame is what is written where there is nothing to be written: its number is that of no record.
var noFrame [frameHeader]byte

// fits reports whether what is written next has room in u.
func (l *Log) fits(u *used) bool {
	size := frameHeader
	if len(l.frames) > 0 {
		size += len(l.frames[0].rec)
	}
	return max(u.off, logHeader)+size <= l.s.SegmentSize()
}

// wantSpares has keep look for spares, and give back what is gone.
func (l *Log) wantSpares() {
	select {
	case l.short <- struct{}{}:
	default:
	}
}

// advance takes the next spare, or waits until something has changed and reports false. l.mu must be held.
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

// Copies says how many copies there are at least of what was committed and no checkpoint has yet, and whether all that the heap has, and the log, is
// on a disk as well.
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

// Starved says why records have had to wait for some time, nil if they have not.
func (l *Log) Starved() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() || l.proc.Since(l.since) < starving {
		return nil
	}
	return fmt.Errorf("no far memory can be had for the log for %v", l.proc.Since(l.since).Round(time.Second))
}

// Drop has what has only records up to that of the number, which a checkpoint of the heap has, be given back soon.
func (l *Log) Drop(upTo uint64) {
	l.mu.Lock()
	l.dropped = max(l.dropped, upTo)
	n := 0
	for n < len(l.used) && l.used[n].last <= upTo && (n < len(l.used)-1 || !l.writing && !l.fits(&l.used[n])) { // the last one is written to
		n++
	}
	l.gone = append(l.gone, l.used[:n]...)
	l.used = slices.Delete(l.used, 0, n)
	l.mu.Unlock()
	l.wantSpares()
}

// Abandon has all fail that wait until something is kept, now and later. Some of what they have appended may be kept.
func (l *Log) Abandon() { l.fail(ErrLogClosed) }

// spent reports whether the log has ended, and the next owner needs nothing of it: a checkpoint has all that was appended.
func (l *Log) spent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.began && l.closed && l.failed == nil && l.dropped >= l.next-1
}

// Close ends the log when what was appended is kept, or cannot be. What it has stays for the next owner, but for what a checkpoint has.
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
