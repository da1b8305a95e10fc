// Package wal is a write-ahead log: records are appended, committed in groups,
// and replayed at the next start.
//
// A directory holds segments, named by the number of their first record, and
// at most one finished checkpoint, which stands for every record up to its
// number. Segments are filled with zeros before they are used, so that a
// commit neither grows a file nor meets a full disk: a full disk is met when
// the next segment is prepared, and Append then refuses the record before
// anything else has happened.
//
// Recovery accepts what a crash leaves (a last write that is cut off) and
// refuses everything else with a *CorruptError: a frame is covered by two
// CRC32C, one for its header and one for its payload.
//
// Concurrency: Append and Commit are for any number of goroutines. Commits
// are grouped without a goroutine of their own: the first that comes writes
// for all that have appended so far, and the others wait for it; likewise for
// syncs, during which writing goes on. The order of
// records is that of the calls to Append; callers that need it to follow
// their state's call Append under their own lock. Lock order: the caller's
// lock, then Log.mu.
package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
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

	// noSync is for tests that open thousands of logs: nothing is synced.
	noSync bool
}

// Log is an open write-ahead log.
type Log struct {
	dir     string
	segSize int64
	noSync  bool
	// restarted is Options.Restarted, for recovery.
	restarted bool

	committed atomic.Uint64 // every record up to it is written
	synced    atomic.Uint64 // every record up to it is on the medium

	mu      sync.Mutex // guards everything below
	flushed sync.Cond  // a write or a sync has ended; its lock is mu
	seg     *os.File   // the segment that is written to
	room    int64      // bytes of it that no record has been promised
	off     int64      // where the next write goes
	next    uint64     // number of the next record
	group   uint32     // number of the next write
	buf     []byte     // frames appended and not yet taken by a write
	spare   []byte     // the other buffer
	writing bool       // some goroutine writes without holding mu
	syncing bool       // some goroutine syncs the segment, likewise
	failed  error      // the write that failed, for good
	closed  bool
	since   int64 // bytes appended since the last checkpoint

	named bool // the segment has got its name since the directory was synced

	ready     *os.File       // the next segment, zeroed, or nil
	preparing bool           // a goroutine prepares it
	wg        sync.WaitGroup // the goroutine that prepares it
	saving    sync.Mutex     // held by Save; before mu
}

const (
	segMagic      = "PLDRWAL2"
	segHeaderSize = 20 // magic, first record's number, CRC32C of both
	readyName     = "next.tmp"
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
	l.buf = appendFrame(l.buf, frame{group: l.group, lsn: lsn, synced: l.synced.Load(), payload: rec})
	if l.room < l.segSize/2 && l.ready == nil && !l.preparing {
		l.preparing = true
		l.wg.Go(l.prepare)
	}
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

// write writes what has been appended. It lets go of l.mu while it writes.
//
// Preconditions: l.mu is held, l.writing is false.
func (l *Log) write() {
	buf, off, upto, seg := l.buf, l.off, l.next-1, l.seg
	l.buf, l.spare = l.spare[:0], nil
	l.off += int64(len(buf))
	l.group++
	l.writing = true
	l.mu.Unlock()

	failpoint.Hit("wal.before-write")
	_, err := seg.WriteAt(buf, off)
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

// sync brings what has been written to the medium. It lets go of l.mu while it
// does, and others may write meanwhile, but not go on to the next segment.
//
// Preconditions: l.mu is held, l.syncing is false.
func (l *Log) sync() {
	upto, seg, named := l.committed.Load(), l.seg, l.named
	l.named = false
	l.syncing = true
	l.mu.Unlock()

	err := l.syncSegment(seg, named)
	failpoint.Hit("wal.after-sync")

	l.mu.Lock()
	l.syncing = false
	switch {
	case l.failed != nil:
	case err != nil:
		l.failed = fmt.Errorf("cannot sync the log: %w", err)
	default:
		l.synced.Store(upto)
	}
	l.flushed.Broadcast()
}

// busy reports whether some goroutine uses the segment without holding l.mu,
// which must be held.
func (l *Log) busy() bool { return l.writing || l.syncing }

// syncSegment brings a segment to the medium, and its name if that is new.
func (l *Log) syncSegment(seg *os.File, named bool) error {
	if l.noSync {
		return nil
	}
	if err := unix.Fdatasync(int(seg.Fd())); err != nil {
		return err
	}
	if named {
		return syncDir(l.dir)
	}
	return nil
}

// rotate goes on to the next segment, until need bytes have room. It may let
// go of l.mu, and other records may then be appended before this one.
//
// Preconditions: l.mu is held.
func (l *Log) rotate(need int64) error {
	for need > l.room {
		switch {
		case l.closed:
			return ErrClosed
		case l.failed != nil:
			return l.failed
		case l.busy(), l.preparing && l.ready == nil:
			l.flushed.Wait()
		// What belongs to the old segment must be on the medium before anything
		// of the new one can be.
		case len(l.buf) > 0:
			l.write()
		case l.synced.Load() < l.next-1:
			l.sync()
		default:
			if err := l.nextSegment(); err != nil {
				return err
			}
		}
	}
	return nil
}

// nextSegment lets the segment that is ready, or one made now, take the place
// of the full one.
//
// Preconditions: l.mu is held, nothing is left to write.
func (l *Log) nextSegment() error {
	f := l.ready
	l.ready = nil
	if f == nil {
		var err error
		if f, err = l.newSegment(); err != nil {
			return err
		}
	}
	if err := l.startSegment(f, l.next); err != nil {
		f.Close()
		return err
	}
	l.seg.Close()
	l.named = true
	l.seg, l.off, l.room = f, segHeaderSize, l.segSize-segHeaderSize
	return nil
}

// prepare makes the next segment ready, so that no commit waits for it.
func (l *Log) prepare() {
	f, err := l.newSegment()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.preparing = false
	if err == nil {
		l.ready = f // an error is met again, and told, by rotate
	}
	l.flushed.Broadcast()
}

// newSegment creates a file of zeros, whose space is promised. Nothing of it is
// on the medium before the first commit that is synced.
func (l *Log) newSegment() (*os.File, error) {
	path := filepath.Join(l.dir, readyName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot prepare a log segment: %w", err)
	}
	if err := zeroFill(f, 0, l.segSize); err != nil {
		f.Close()
		os.Remove(path)
		return nil, fmt.Errorf("cannot prepare a log segment of %d bytes: %w", l.segSize, err)
	}
	return f, nil
}

func zeroFill(f *os.File, from, to int64) error {
	zeros := make([]byte, min(256<<10, max(0, to-from)))
	for at := from; at < to; {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), to-at)], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// startSegment writes the header of the prepared file and gives it its name.
func (l *Log) startSegment(f *os.File, first uint64) error {
	if _, err := f.WriteAt(segHeader(first), 0); err != nil {
		return fmt.Errorf("cannot start a log segment: %w", err)
	}
	failpoint.Hit("wal.before-rename")
	if err := os.Rename(filepath.Join(l.dir, readyName), segPath(l.dir, first)); err != nil {
		return fmt.Errorf("cannot start a log segment: %w", err)
	}
	failpoint.Hit("wal.after-rename")
	return nil
}

func segHeader(first uint64) []byte {
	b := append(make([]byte, 0, segHeaderSize), segMagic...)
	b = binary.LittleEndian.AppendUint64(b, first)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func segPath(dir string, first uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%016x.log", first))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot sync %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("cannot sync %s: %w", dir, err)
	}
	return nil
}

// Since returns how many bytes have been appended since the last checkpoint
// that was saved: when to save the next is the caller's choice.
func (l *Log) Since() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since
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
	l.closed = true
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
	return errors.Join(err, l.seg.Close())
}
