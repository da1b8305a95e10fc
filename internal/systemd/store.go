package systemd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Store is the descriptor store of a service manager, or of package keeper: it keeps
// descriptors, and with them the memory behind, while the daemon is not running. The
// protocol is that of sd_pid_notify_with_fds(3) and sd_listen_fds_with_names(3).
type Store struct {
	path string

	mu   sync.Mutex // guards the fields below
	conn *net.UnixConn
	kept map[string]*os.File
}

// ErrKeeper is returned when the process that is to keep memory is gone.
var ErrKeeper = errors.New("the keeper of the daemon's memory is gone: start the daemon again as before, with --keep, and the new keeper is handed everything")

// OpenStore returns the descriptor store of the service manager that
// started this process, or nil if there is none. It takes the descriptors
// that the manager passed on out of the environment.
func OpenStore() (*Store, error) {
	conn, err := Dial()
	if err != nil || conn == nil {
		return nil, err
	}
	kept, err := Files()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Store{path: os.Getenv("NOTIFY_SOCKET"), conn: conn, kept: kept}, nil
}

// Keep hands f over under name. When it returns, the death of this process no longer
// frees the memory.
func (s *Store) Keep(name string, f *os.File) error {
	// FDPOLL=0: a memfd is never readable in epoll's sense, and a manager
	// that polled it would drop it.
	return s.send("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, unix.UnixRights(int(f.Fd())))
}

// Forget ends what Keep began.
func (s *Store) Forget(name string) error {
	return s.send("FDSTOREREMOVE=1\nFDNAME="+name, nil)
}

func (s *Store) send(msg string, oob []byte) error {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	// A wedged manager must not wedge the daemon.
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return fmt.Errorf("cannot tell the service manager: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot tell the service manager: %w", err)
	}
	// Not WriteMsgUnix, which refuses connected datagram sockets.
	var serr error
	err = raw.Write(func(fd uintptr) bool {
		serr = unix.Sendmsg(int(fd), []byte(msg), oob, nil, 0)
		return serr != unix.EAGAIN
	})
	switch err = errors.Join(err, serr); {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.EPIPE):
		return ErrKeeper
	case err != nil:
		return fmt.Errorf("cannot tell the service manager: %w", err)
	}
	return nil
}

// Check reports whether what was handed over is still kept. If renewed, it is another
// process that keeps now, and it has nothing yet: everything has to be handed over again.
func (s *Store) Check() (renewed bool, err error) {
	if err := s.send("X_POLDER_CHECK=1", nil); !errors.Is(err, ErrKeeper) { // service managers ignore it
		return false, err
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.path, Net: "unixgram"})
	if err != nil {
		return false, ErrKeeper
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.Close()
	s.conn = conn
	return true, nil
}

// tendEvery is how often Tend looks for the keeper.
const tendEvery = 500 * time.Millisecond

// Tend returns when a new keeper has come and again has handed it everything, so that the
// daemon is to end, or when ctx is done. It calls lost when there is no keeper any more.
func (s *Store) Tend(ctx context.Context, again func() error, lost func(error)) {
	ticker := time.NewTicker(tendEvery)
	defer ticker.Stop()
	for orphan := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		renewed, err := s.Check()
		if renewed {
			if err = again(); err == nil {
				return
			}
		}
		gone := errors.Is(err, ErrKeeper) // and not only busy
		if gone && !orphan {
			lost(err)
		}
		orphan = gone
	}
}

// Close ends the connection with the service manager, which keeps what it has.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.kept {
		f.Close()
	}
	clear(s.kept)
	return s.conn.Close()
}

// Kept returns what a former process handed over under name, once, or nil. The caller
// owns the file.
func (s *Store) Kept(name string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.kept[name]
	delete(s.kept, name)
	return f
}

// Rest returns the names of what has been kept and not been asked for.
func (s *Store) Rest() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.kept {
		names = append(names, name)
	}
	return names
}
