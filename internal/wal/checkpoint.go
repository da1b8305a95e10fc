package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"polder/internal/failpoint"

	"golang.org/x/sys/unix"
)

// A checkpoint goes to its file in parts of partBytes, and each syncEvery bytes
// to the medium: a single sync at the end would keep those of the log waiting.
const (
	partBytes = 256 << 10
	syncEvery = 4 << 20
)

// reserveName is the file whose space the next checkpoint takes.
const reserveName = "reserve.tmp"

// Snapshot collects the records of a checkpoint: replayed into an empty state, they give the same state as all
// records of the log up to a certain one.
//
// Any goroutine may add records, also while another one writes. Everything else is for one goroutine. That goroutine
// may release the lock under which records are appended, as long as what is added is the state of when the snapshot
// began. It ends with Log.Save or Discard. There is one snapshot at a time.
type Snapshot struct {
	l *Log

	mu  sync.Mutex
	buf []byte // what is not written yet; guarded by mu
	n   uint64 // records that were added; guarded by mu

	written  []byte   // the buffer that was written last, to be used again
	f        *os.File // nil before the first part is written
	tmp      string   // its name
	recycled bool     // it was the reserve
	upto     uint64
	since    int64 // bytes of records since the last checkpoint that it stands for
	size     int64 // bytes written
	unsynced int64 // bytes of them that were not synced
	err      error // the first part that could not be written
}

// Snapshot begins a checkpoint of the records appended so far.
//
// Preconditions: the caller holds the lock under which it appends.
func (l *Log) Snapshot() *Snapshot {
	// Allocate now, so that Add never waits for memory.
	buf, written := make([]byte, 0, 2*partBytes), make([]byte, 0, 2*partBytes)
	l.mu.Lock()
	defer l.mu.Unlock()
	upto := l.next - 1
	return &Snapshot{l: l, buf: append(buf, ckptHeader(upto)...), upto: upto, written: written, since: l.since, tmp: ckptPath(l.dir, upto) + ".tmp"}
}

// Add adds a record, which must not be empty. It does not write.
func (s *Snapshot) Add(rec []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	s.buf = appendFrame(s.buf, frame{lsn: s.n, payload: rec})
}

// Flush writes what has been added, if it is worth a write. If it fails, so
// will Save.
func (s *Snapshot) Flush() error {
	s.mu.Lock()
	worth := len(s.buf) >= partBytes
	s.mu.Unlock()
	if worth {
		s.write()
	}
	return s.err
}

// write writes what has been added.
func (s *Snapshot) write() {
	s.mu.Lock()
	part := s.buf
	s.buf = s.written[:0]
	s.mu.Unlock()
	s.written = part
	if s.err == nil && s.f == nil {
		s.err = s.create()
	}
	if s.err != nil {
		return
	}
	_, s.err = s.f.WriteAt(part, s.size)
	failpoint.Hit("wal.checkpoint-part")
	s.size += int64(len(part))
	s.unsynced += int64(len(part))
	if s.err == nil && s.unsynced >= syncEvery && !s.l.noSync {
		s.unsynced = 0
		s.err = unix.Fdatasync(int(s.f.Fd()))
	}
}

// create makes the checkpoint's file of the reserve, if there is one.
func (s *Snapshot) create() (err error) {
	l := s.l
	s.recycled = os.Rename(filepath.Join(l.dir, reserveName), s.tmp) == nil
	l.setReserve(0)
	s.f, err = os.OpenFile(s.tmp, os.O_WRONLY|os.O_CREATE, 0o600)
	failpoint.Hit("wal.checkpoint-begun")
	return err
}

// Discard ends a snapshot that will not be saved. Its file is the reserve again.
func (s *Snapshot) Discard() {
	if s.f == nil {
		return
	}
	size := int64(0)
	if st, err := s.f.Stat(); err == nil {
		size = st.Size()
	}
	s.f.Close()
	s.f = nil
	if !s.recycled || os.Rename(s.tmp, filepath.Join(s.l.dir, reserveName)) != nil {
		os.Remove(s.tmp)
		return
	}
	s.l.setReserve(size)
}

// Save writes the checkpoint and drops the segments and checkpoints that it
// replaces. If it fails, the log is as it was.
func (l *Log) Save(s *Snapshot) error {
	defer s.Discard()
	if err := l.Commit(s.upto, true); err != nil {
		return err
	}
	s.Add([]byte(ckptEnd))
	s.write()
	if s.err == nil {
		s.err = s.finish()
	}
	if s.err != nil {
		return fmt.Errorf("cannot save a checkpoint: %w", s.err)
	}
	failpoint.Hit("wal.checkpoint-named")
	if !l.noSync {
		if err := syncDir(l.dir); err != nil {
			return err
		}
	}
	l.dropOld(s.upto)
	l.mu.Lock()
	l.since -= s.since
	l.saved = s.size
	l.mu.Unlock()
	select {
	case l.freed <- struct{}{}:
	default:
	}
	return nil
}

// finish brings the file to the medium and gives it its name.
func (s *Snapshot) finish() error {
	err := s.f.Truncate(s.size)
	if err == nil && !s.l.noSync {
		err = s.f.Sync()
	}
	failpoint.Hit("wal.checkpoint-written")
	if err == nil {
		err = os.Rename(s.tmp, ckptPath(s.l.dir, s.upto))
	}
	if err != nil {
		return err
	}
	err = s.f.Close()
	s.f = nil
	return err
}

// Reserve makes sure that the next checkpoint finds the space of n bytes, so
// that it can be saved when the disk is full. The caller says how large its
// state has become; the log then holds somewhat more. It must not be called
// between Snapshot and Save.
func (l *Log) Reserve(n int64) error {
	n = max(n, l.segSize)
	l.mu.Lock()
	have := l.reserve
	l.mu.Unlock()
	if have >= n {
		return nil
	}
	n += n / 4
	f, err := os.OpenFile(filepath.Join(l.dir, reserveName), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot reserve space for a checkpoint: %w", err)
	}
	defer f.Close()
	if err = unix.Fallocate(int(f.Fd()), 0, 0, n); errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = zeroFill(f, have, n)
	}
	if err != nil {
		err = errors.Join(err, f.Truncate(have))
		return fmt.Errorf("cannot reserve %d bytes for a checkpoint in %s: %w", n, l.dir, err)
	}
	l.setReserve(n)
	return nil
}

func (l *Log) setReserve(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserve = n
}

// dropOld removes what the checkpoint upto stands for; the checkpoint before it
// becomes the reserve. What cannot be removed is removed after the next
// checkpoint.
func (l *Log) dropOld(upto uint64) {
	names, err := list(l.dir)
	if err != nil {
		return
	}
	for _, c := range names.checkpoints {
		if c < upto {
			l.recycle(ckptPath(l.dir, c))
		}
	}
	for i, first := range names.segments {
		if i+1 < len(names.segments) && names.segments[i+1] <= upto+1 {
			os.Remove(segPath(l.dir, first))
			failpoint.Hit("wal.segment-dropped")
		}
	}
}

// recycle makes a file that is not needed any more the reserve, unless there is one.
func (l *Log) recycle(path string) {
	st, err := os.Stat(path)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || l.reserve > 0 || os.Rename(path, filepath.Join(l.dir, reserveName)) != nil {
		os.Remove(path)
		return
	}
	l.reserve = st.Size()
}
