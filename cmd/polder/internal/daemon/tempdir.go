package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tempPrefix is the prefix of our temporary directories' names.
const tempPrefix = "polder-up-"

// lockName is the file in each temporary directory that its process holds a lock on.
// The kernel drops the lock however the process ends.
const lockName = "lock"

// tempDir makes a directory that is removed when the process ends in good order. It also
// removes the directories of processes that did not end in good order.
func (p *process) tempDir() (string, error) {
	p.removeStale()
	for {
		dir, err := os.MkdirTemp("", tempPrefix)
		if err != nil {
			return "", err
		}
		lock, err := lockDir(dir, os.O_CREATE)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EWOULDBLOCK) {
			continue // another process took it for a stale directory before it was locked
		}
		if err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
		p.onClose(func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) })
		return dir, nil
	}
}

// lockDir locks a directory. Its error is fs.ErrNotExist if the lock file was removed, or,
// without os.O_CREATE, does not exist yet, and unix.EWOULDBLOCK if another process has the lock.
func lockDir(dir string, flags int) (lock *os.File, err error) {
	name := filepath.Join(dir, lockName)
	if lock, err = os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|flags, 0o600); err != nil {
		return nil, err
	}
	if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		// The file may have been removed between OpenFile and Flock.
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
			continue // its process is alive, or it is not ours
		}
		if err := os.RemoveAll(dir); err != nil {
			p.Logger.Info("cannot remove what a dead process has left", "directory", dir, "error", err)
		}
		lock.Close()
	}
}
