// Package wal is a write-ahead log: records are appended, committed in groups,
// and replayed at the next start.
//
// A directory holds segments, named by the number of their first record, and
// at most one finished checkpoint, which stands for every record up to its
// number. Segments are filled with zeros before they are used, so that a
// commit neither grows a file nor meets a full disk: a full disk is met when
// the next segment is prepared, in the background, and Append then refuses the
// record before anything else has happened. Preparing is tried again, with
// pauses, until there is room.
//
// A checkpoint is what makes room, so it must not need any: its file is the
// reserve, whose space the log holds for it. See Log.Reserve.
//
// Recovery accepts what a crash leaves (a last write that is cut off) and
// refuses everything else with a *CorruptError: a frame is covered by two
// CRC32C, one for its header and one for its payload.
//
// Concurrency: Append and Commit are for any number of goroutines. Append
// neither writes records nor syncs; it goes on to the next segment while those
// before it have not been written or synced yet. It waits only if segments
// fill faster than they are prepared or synced. Commits are grouped: the first
// that comes writes for all that have appended so far, and the others wait for
// it; likewise for syncs, during which writing goes on. A full segment is
// synced in the background. The order of records is that of the calls to
// Append; callers that need it to follow their state's call Append under their
// own lock. Lock order: the caller's lock, then Log.mu.
package wal

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"polder/internal/failpoint"

	"golang.org/x/sys/unix"
)

// ErrClosed is returned by operations on a closed log.
var ErrClosed = errors.New("the log is closed")

// ErrTooLarge is returned for a record that no segment can hold.
var ErrTooLarge = errors.New("the record is larger than a segment")

// Options tune a log. The zero value is what production uses.
type Options struct {
	// SegmentSize is the size of a segment in bytes. The default is 4 MiB.
	SegmentSize int64
	// Restarted says that the machine may have restarted since the log was
	// written: commits that were not synced may then be missing.
	Restarted bool
	// Starved, if not nil, is called when no room can be had for the next
	// segment, each time that it has been tried. No lock of the log is held.
	Starved func(error)

	// noSync is for tests that open thousands of logs: nothing is synced.
	noSync bool
}

// Log is an open write-ahead log.
type Log struct {
	dir     string
	segSize int64
	noSync  bool
	starve  func(error) // Options.Starved
	// restarted is Options.Restarted, for recovery.
	restarted bool

	committed atomic.Uint64 // every record up to it is written
	synced    atomic.Uint64 // every record up to it is on the medium

	mu      sync.Mutex // guards everything below
	flushed sync.Cond  // a write, a sync or a preparation has ended; its lock is mu
	seg     *segment   // the segment that records are appended to
	full    []*segment // those before it that are not on the medium yet, oldest first
	room    int64      // bytes of seg that no record has been promised
	next    uint64     // number of the next record
	group   uint32     // number of the write that will carry records appended now
	spare   []byte     // a buffer that no segment uses
	writing bool       // some goroutine writes without holding mu
	syncing bool       // some goroutine syncs segments, likewise
	failed  error      // the write that failed, for good
	closed  bool
	since   int64 // bytes of records behind the checkpoint
	saved   int64 // bytes of the checkpoint
	reserve int64 // bytes of the reserve; 0 if there is none

	ready     *os.File       // the next segment, zeroed, or nil
	preparing bool           // a goroutine prepares it
	starved   error          // why it could not be prepared the last time, or nil
	wg        sync.WaitGroup // the goroutines that prepare and sync segments
	quit      chan struct{}  // closed by Close
	freed     chan struct{}  // a checkpoint has made room
}

// segment is a file that records are written to.
type segment struct {
	// Guarded by Log.mu.
	file  *os.File
	off   int64  // where the next write goes
	buf   []byte // frames appended and not yet taken by a write
	last  uint64 // its last record, once it is full
	named bool   // it has got its name since the directory was synced
}

const (
	segMagic      = "PLDRWAL2"
	segHeaderSize = 20 // magic, first record's number, CRC32C of both
	readyName     = "next.tmp"

	// maxFull bounds the full segments that wait for the disk.
	maxFull = 16
)

// Append adds a record to the log and returns its number. The record is
// neither durable nor visible to a recovery until Commit. It fails, without
// effect, if no disk space can be had for the record.
func (l *Log) Append(rec []byte) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	need := frameSize + int64(len(rec))
	switch {
	case l.closed:
		return 0, ErrClosed
	case l.failed != nil:
		return 0, l.failed
	case len(rec) == 0:
		return 0, fmt.Errorf("cannot append to the log: %w", errEmpty)
	case need > l.segSize-segHeaderSize:
		return 0, fmt.Errorf("cannot append %d bytes to the log: %w", len(rec), ErrTooLarge)
	}
	if need > l.room {
		if err := l.rotate(need); err != nil {
			return 0, err
		}
	}
	lsn := l.next
	l.next++
	l.room -= need
	l.since += need
	l.seg.buf = appendFrame(l.seg.buf, frame{group: l.group, lsn: lsn, synced: l.synced.Load(), payload: rec})
	return lsn, nil
}

// Commit returns when every record up to lsn is written, so that it survives
// the death of this process; and, if sync, is on the medium, so that it
// survives the loss of power.
func (l *Log) Commit(lsn uint64, sync bool) error {
	if l.committed.Load() >= lsn && (!sync || l.synced.Load() >= lsn) { // fast path
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.failed != nil:
			return l.failed
		case l.committed.Load() >= lsn && (!sync || l.synced.Load() >= lsn):
			return nil
		case l.closed && !l.busy():
			return ErrClosed
		case l.closed:
			l.flushed.Wait()
		case sync && l.syncing:
			l.flushed.Wait() // what gathers meanwhile is written at once
		case l.committed.Load() < lsn && !l.writing:
			l.write()
		case l.committed.Load() >= lsn:
			l.sync()
		default:
			l.flushed.Wait()
		}
	}
}

// Committed returns the number of the last record that is written.
func (l *Log) Committed() uint64 { return l.committed.Load() }

// Last returns the number of the last record appended.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next - 1
}

// Synced returns the number of the last record that is on the medium.
func (l *Log) Synced() uint64 { return l.synced.Load() }

// write writes what has been appended to the oldest segment that has
// something to write. It lets go of l.mu while it writes.
//
// Preconditions: l.mu is held, l.writing is false.
func (l *Log) write() {
	seg, upto := l.seg, l.next-1
	for _, full := range l.full {
		if len(full.buf) > 0 {
			seg, upto = full, full.last
			break
		}
	}
	buf, off := seg.buf, seg.off
	seg.buf = nil
	if seg == l.seg {
		seg.buf, l.spare = l.spare[:0], nil
		l.group++
	}
	seg.off += int64(len(buf))
	l.writing = true
	l.mu.Unlock()

	failpoint.Hit("wal.before-write")
	_, err := seg.file.WriteAt(buf, off)
	failpoint.Hit("wal.after-write")

	l.mu.Lock()
	l.writing = false
	l.spare = buf
	switch {
	case l.failed != nil:
		// A sync that went on meanwhile: the system may forget what was written.
	case err != nil:
		// What the file holds now is unknown: nothing more may be promised.
		l.failed = fmt.Errorf("cannot write the log: %w", err)
	default:
		l.committed.Store(upto)
	}
	l.flushed.Broadcast()
}

// sync brings what has been written to the medium, segment by segment. It lets
// go of l.mu while it does, and others may write meanwhile.
//
// Preconditions: l.mu is held, l.syncing is false.
func (l *Log) sync() {
	upto := l.committed.Load()
	segs := append(slices.Clone(l.full), l.seg)
	named := false
	for _, seg := range segs {
		named = named || seg.named
		seg.named = false
	}
	l.syncing = true
	l.mu.Unlock()

	err := l.syncSegments(segs, named)
	failpoint.Hit("wal.after-sync")

	l.mu.Lock()
	l.syncing = false
	switch {
	case l.failed != nil:
	case err != nil:
		l.failed = fmt.Errorf("cannot sync the log: %w", err)
	default:
		l.synced.Store(upto)
		for len(l.full) > 0 && l.full[0].last <= upto {
			l.full[0].file.Close()
			l.full = l.full[1:]
		}
	}
	l.flushed.Broadcast()
}

// busy reports whether some goroutine uses a segment without holding l.mu,
// which must be held.
func (l *Log) busy() bool { return l.writing || l.syncing }

// syncSegments brings segments to the medium, and their names if one is new.
func (l *Log) syncSegments(segs []*segment, named bool) error {
	if l.noSync {
		return nil
	}
	for _, seg := range segs {
		if err := unix.Fdatasync(int(seg.file.Fd())); err != nil {
			return err
		}
	}
	if named {
		return syncDir(l.dir)
	}
	return nil
}

// Since returns how many bytes of records there are behind the checkpoint.
func (l *Log) Since() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since
}

// Size returns how many bytes recovery would have to read: the checkpoint and
// what is behind it. When that is worth a new checkpoint is the caller's
// choice.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.saved + l.since
}

// Close commits what has been appended, to the medium, and closes the log.
// Closing twice is a no-op.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	last := l.next - 1
	l.mu.Unlock()
	err := l.Commit(last, true)

	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.quit)
	}
	l.flushed.Broadcast()
	for l.busy() {
		l.flushed.Wait()
	}
	l.mu.Unlock()
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ready != nil {
		l.ready.Close()
		l.ready = nil
	}
	errs := []error{err}
	for _, seg := range append(l.full, l.seg) { // full ones are left if the log has failed
		errs = append(errs, seg.file.Close())
	}
	l.full = nil
	return errors.Join(errs...)
}
