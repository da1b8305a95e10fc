package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tempPrefix is what the names of temporary directories of ours begin with.
const tempPrefix = "polder-up-"

// lockName is the file in each that its process holds a lock on. The kernel
// drops the lock however the process ends.
const lockName = "lock"

// tempDir makes a directory that is gone when the process has ended in good
// order, and removes those of processes that have not.
func (p *process) tempDir() (string, error) {
	p.removeStale()
	for {
		dir, err := os.MkdirTemp("", tempPrefix)
		if err != nil {
			return "", err
		}
		lock, err := lockDir(dir, os.O_CREATE)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EWOULDBLOCK) {
			continue // somebody took it for a stale one before it was locked
		}
		if err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
		p.onClose(func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) })
		return dir, nil
	}
}

// lockDir locks a directory. Its error is fs.ErrNotExist if there is no lock file,
// any more or, without os.O_CREATE, yet, and unix.EWOULDBLOCK if it is locked.
func lockDir(dir string, flags int) (lock *os.File, err error) {
	name := filepath.Join(dir, lockName)
	if lock, err = os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|flags, 0o600); err != nil {
		return nil, err
	}
	if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		// It may have been removed between the two calls.
		var held, there os.FileInfo
		if held, err = lock.Stat(); err == nil {
			if there, err = os.Lstat(name); err == nil && !os.SameFile(held, there) {
				err = fs.ErrNotExist
			}
		}
	}
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("cannot lock %s: %w", dir, err)
	}
	return lock, nil
}

// removeStale removes the directories of processes that are dead.
func (p *process) removeStale() {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	if err != nil {
		return // the directory's name is a bad pattern
	}
	for _, dir := range dirs {
		lock, err := lockDir(dir, 0)
		if err != nil {
			continue // alive, or not ours
		}
		if err := os.RemoveAll(dir); err != nil {
			p.Logger.Info("cannot remove what a dead process has left", "directory", dir, "error", err)
		}
		lock.Close()
	}
}
