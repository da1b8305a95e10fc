// Package dirlock has one process at a time use a directory.
package dirlock

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A process that is started again may find that the one before has not ended yet. It waits for patience, and looks
// every pause.
const (
	patience = time.Second
	pause    = 10 * time.Millisecond
)

// Lock locks a directory, by the file "lock" in it, until the file that it returns is closed. The lock is the kernel's
// and ends with the process. While another process has the lock, Lock waits for up to a second, and says so on log.
func Lock(dir string, log *slog.Logger) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the directory: %w", err)
	}
	began, said := time.Now(), false
	for ; ; time.Sleep(pause) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Since(began) >= patience {
			break
		}
		if !said {
			said = true
			log.Info("another process uses the directory: waiting until it has ended", "dir", dir, "at most", patience)
		}
	}
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("another process uses it: %w", err)
	}
	f.Close()
	return nil, fmt.Errorf("cannot lock %s: %w", dir, err)
}
