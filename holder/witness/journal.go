package witness

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"polder/internal/dirlock"
	"polder/internal/wal"
)

const (
	// segmentSize is the size of the log's files, of which there are two or three.
	segmentSize = 1 << 20
	// logFactor is how many times longer than its live content the log becomes before a checkpoint.
	logFactor = 4
)

// journal is an acceptor together with the log in which its changes are kept.
type journal struct {
	lock *os.File // locks the directory
	log  *wal.Log // nil if nothing is kept on disk; then lock is nil, too

	mu  sync.Mutex
	acc *acceptor // guarded by mu
	rec []byte    // of the change that is being appended; guarded by mu
}

// openJournal reads the witness that is in the directory, or makes a new one there.
func openJournal(dir string, l limits, log *slog.Logger) (_ *journal, fresh bool, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, false, fmt.Errorf("cannot make the witness's directory: %w", err)
	}
	lock, err := dirlock.Lock(dir, log)
	if err != nil {
		return nil, false, err
	}
	j := &journal{lock: lock, acc: newAcceptor(l)}
	defer func() {
		if err != nil {
			err = errors.Join(err, j.close())
		}
	}()
	restarted, remember := wal.Restarted(filepath.Join(dir, "boot"))
	j.log, _, err = wal.Open(filepath.Join(dir, "log"), wal.Options{SegmentSize: segmentSize, Restarted: restarted}, j.replay)
	if err != nil {
		return nil, false, err
	}
	if err := remember(); err != nil {
		return nil, false, err
	}
	if j.acc.id != (Identity{}) {
		return j, false, nil
	}
	if n := len(j.acc.registers); n > 0 || j.acc.set != nil {
		return nil, false, fmt.Errorf("cannot use %s: its log has no identity, and %d registers", dir, n)
	}
	last, err := j.keep(&change{Kind: changeIdentity, ID: newIdentity()})
	if err == nil {
		err = j.log.Commit(last, true)
	}
	return j, true, err
}

// forgetful returns a journal of cells, without a log: they end with the process.
func forgetful(l limits) *journal {
	j := &journal{acc: newAcceptor(l)}
	j.acc.cells, j.acc.id = true, newIdentity()
	return j
}

// replay applies a record of the log.
func (j *journal) replay(rec []byte) error {
	c, err := decodeChange(rec)
	if err != nil {
		return err
	}
	j.acc.apply(c)
	return nil
}

// keep appends a change to the log and applies it. It returns the change's number, which must be committed before
// anybody is told.
//
// Preconditions: mu is held, or no other goroutine has the journal yet.
func (j *journal) keep(c *change) (uint64, error) {
	if j.log == nil {
		j.acc.apply(c)
		return 0, nil
	}
	j.rec = c.append(j.rec[:0])
	n, err := j.log.Append(j.rec)
	if err == nil {
		j.acc.apply(c)
	}
	return n, err
}

// decide answers a request. The answer must not leave before commit has returned nil.
func (j *journal) decide(q *request) (r reply, commit uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r, changes := j.acc.decide(q)
	for _, c := range changes {
		if _, err := j.keep(c); err != nil {
			r = reply{From: j.acc.id, Status: statusBroken, Text: err.Error()}
			break
		}
	}
	r.Call = q.Call
	if j.log == nil {
		return r, 0
	}
	return r, j.log.Last() // the answer also waits for earlier changes, since it may show them
}

// commit returns when all changes up to number n are on the medium.
func (j *journal) commit(n uint64) error {
	if j.log == nil {
		return nil
	}
	return j.log.Commit(n, true)
}

// starved returns why there is no room for the next part of the log, or nil.
func (j *journal) starved() error {
	if j.log == nil {
		return nil
	}
	return j.log.Starved()
}

// shorten makes a checkpoint when the log is much longer than its live content, or when there is no room for more.
// Otherwise it reserves room for a checkpoint.
//
// Preconditions: one goroutine at a time calls it.
func (j *journal) shorten() error {
	j.mu.Lock()
	alive := j.alive()
	j.mu.Unlock()
	reserved := j.log.Reserve(alive)
	if j.log.Since() < logFactor*max(alive, segmentSize) && j.log.Starved() == nil {
		return reserved
	}
	j.mu.Lock()
	s := j.log.Snapshot()
	j.acc.all(func(c *change) { s.Add(c.append(nil)) })
	j.mu.Unlock()
	return j.log.Save(s)
}

// alive is roughly how many bytes a checkpoint would have.
//
// Preconditions: mu is held.
func (j *journal) alive() int64 { return j.acc.used + 256*int64(len(j.acc.registers)+1) }

func (j *journal) close() (err error) {
	if j.log != nil {
		err = j.log.Close()
	}
	if j.lock != nil {
		err = errors.Join(err, j.lock.Close())
	}
	return err
}
