package wal

import (
	"fmt"
	"os"

	"polder/internal/failpoint"
)

// Snapshot collects the records of a checkpoint: those that, replayed into an
// empty state, give the state that all records so far have given.
type Snapshot struct {
	buf  []byte
	n    uint64
	upto uint64
}

// Snapshot begins a checkpoint of the records appended so far.
//
// Preconditions: the caller holds the lock under which it appends, until it
// has added its whole state.
func (l *Log) Snapshot() *Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Snapshot{buf: ckptHeader(l.next - 1), upto: l.next - 1}
}

// Add adds a record, which must not be empty.
func (s *Snapshot) Add(rec []byte) {
	s.n++
	s.buf = appendFrame(s.buf, frame{lsn: s.n, payload: rec})
}

// Save writes the checkpoint and drops the segments and checkpoints that it
// replaces. If it fails, the log is as it was.
func (l *Log) Save(s *Snapshot) error {
	l.saving.Lock()
	defer l.saving.Unlock()
	if err := l.Commit(s.upto, true); err != nil {
		return err
	}
	s.Add([]byte(ckptEnd))
	tmp := ckptPath(l.dir, s.upto) + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot save a checkpoint: %w", err)
	}
	failpoint.Hit("wal.checkpoint-begun")
	_, err = f.Write(s.buf)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	failpoint.Hit("wal.checkpoint-written")
	if err == nil {
		err = os.Rename(tmp, ckptPath(l.dir, s.upto))
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("cannot save a checkpoint: %w", err)
	}
	failpoint.Hit("wal.checkpoint-named")
	if err := syncDir(l.dir); err != nil {
		return err
	}
	l.dropOld(s.upto)
	l.mu.Lock()
	l.since = 0
	l.mu.Unlock()
	return nil
}

// dropOld removes what the checkpoint upto stands for. What cannot be removed
// is removed after the next checkpoint.
func (l *Log) dropOld(upto uint64) {
	names, err := list(l.dir)
	if err != nil {
		return
	}
	for _, c := range names.checkpoints {
		if c < upto {
			os.Remove(ckptPath(l.dir, c))
		}
	}
	for i, first := range names.segments {
		if i+1 < len(names.segments) && names.segments[i+1] <= upto+1 {
			os.Remove(segPath(l.dir, first))
			failpoint.Hit("wal.segment-dropped")
		}
	}
}
