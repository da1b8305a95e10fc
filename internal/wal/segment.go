package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"

	"polder/internal/failpoint"

	"golang.org/x/sys/unix"
)

// While there is no room for the next segment, it is tried again after pauses
// that grow from retryFirst to retryMost.
const (
	retryFirst = 10 * time.Millisecond
	retryMost  = time.Second
)

// rotate goes on to the next segment, until need bytes have room. It waits, and
// lets go of l.mu meanwhile, only if no segment is ready although there is
// room, or if too many full ones wait for the disk.
//
// Preconditions: l.mu is held.
func (l *Log) rotate(need int64) error {
	for need > l.room {
		switch {
		case l.closed:
			return ErrClosed
		case l.failed != nil:
			return l.failed
		case len(l.full) >= maxFull:
			l.flushed.Wait()
		case l.ready != nil:
			if err := l.nextSegment(); err != nil {
				return err
			}
		case l.starved != nil:
			return l.starved
		default:
			l.flushed.Wait() // for prepare
		}
	}
	return nil
}

// nextSegment lets the segment that is ready take the place of the full one.
//
// Preconditions: l.mu is held.
func (l *Log) nextSegment() error {
	f := l.ready
	l.ready = nil
	defer l.prepareNext()
	if err := l.startSegment(f, l.next); err != nil {
		f.Close()
		return err
	}
	if len(l.seg.buf) > 0 { // the full segment is written on its own: later records get another group
		l.group++
	}
	last := l.next - 1
	l.seg.last = last
	l.full = append(l.full, l.seg)
	l.seg = &segment{file: f, off: segHeaderSize, named: true}
	l.room = l.segSize - segHeaderSize
	l.wg.Go(func() {
		_ = l.Commit(last, true) // an error stays in the log, and every later call returns it
	})
	return nil
}

// prepareNext has the next segment made ready in the background.
//
// Preconditions: l.mu is held, l.ready is nil.
func (l *Log) prepareNext() {
	if !l.preparing && !l.closed {
		l.preparing = true
		l.wg.Go(l.prepare)
	}
}

// prepare makes the next segment ready, as soon as there is room for it.
func (l *Log) prepare() {
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		f, err := l.newSegment()
		l.mu.Lock()
		l.starved = err
		done := err == nil || l.closed
		if done {
			l.preparing = false
			l.ready = f
		}
		l.flushed.Broadcast()
		l.mu.Unlock()
		if err == nil && !l.noSync {
			// So that a later sync of what is written over the zeros changes no
			// metadata. Nothing depends on it, and nobody waits for it: the segment
			// may be filled and closed meanwhile, which Control minds.
			if c, err := f.SyscallConn(); err == nil {
				_ = c.Control(func(fd uintptr) { _ = unix.Fdatasync(int(fd)) })
			}
		}
		if done {
			return
		}
		if l.starve != nil {
			l.starve(err)
		}
		select {
		case <-l.quit:
		case <-l.freed:
		case <-time.After(pause):
		}
	}
}

// Starved returns why there is no room for the next segment, or nil if there is
// some, or if nobody knows yet.
func (l *Log) Starved() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.starved
}

// newSegment creates a file of zeros, whose space is promised. Nothing of it is
// on the medium yet.
func (l *Log) newSegment() (*os.File, error) {
	path := filepath.Join(l.dir, readyName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot prepare a log segment: %w", err)
	}
	if err = allocate(f, l.segSize); err == nil {
		err = zeroFill(f, 0, l.segSize)
	}
	if err != nil {
		f.Close()
		os.Remove(path)
		return nil, fmt.Errorf("cannot prepare a log segment of %d bytes in %s: %w", l.segSize, l.dir, err)
	}
	return f, nil
}

// allocate takes the space of a file, as far as the file system can promise it
// before it is written to.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
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
