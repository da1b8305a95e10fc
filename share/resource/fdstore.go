package resource

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/systemd"
)

// Store keeps descriptors, and with them the memory behind, while the daemon
// is not running.
type Store interface {
	// Keep hands f over under name. When it returns, the death of this
	// process no longer frees the memory.
	Keep(name string, f *os.File) error
	// Forget ends what Keep began.
	Forget(name string) error
	// Kept returns what a former process handed over under name, once, or
	// nil. The caller owns the file.
	Kept(name string) *os.File
	// Check reports whether what was handed over is still kept. If renewed, it
	// is another process that keeps now, and it has nothing yet: everything
	// has to be handed over again.
	Check() (renewed bool, err error)
	// Rest returns the names of what has been kept and not been asked for.
	Rest() []string
}

// notifyStore is the descriptor store of a service manager: the protocol of
// sd_pid_notify_with_fds(3) and sd_listen_fds_with_names(3).
type notifyStore struct {
	path string

	mu   sync.Mutex // guards the fields below
	conn *net.UnixConn
	kept map[string]*os.File
}

// ErrKeeper is returned when the process that is to keep memory is gone.
var ErrKeeper = errors.New("the keeper of the daemon's memory is gone: start polder share --keep again, with the same --dir")

// ServiceStore returns the descriptor store of the service manager that
// started this process, or nil if there is none. It takes the descriptors
// that the manager passed on out of the environment.
func ServiceStore() (Store, error) {
	conn, err := systemd.Dial()
	if err != nil || conn == nil {
		return nil, err
	}
	kept, err := systemd.Files()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &notifyStore{path: os.Getenv("NOTIFY_SOCKET"), conn: conn, kept: kept}, nil
}

func (s *notifyStore) Keep(name string, f *os.File) error {
	// FDPOLL=0: a memfd is never readable in epoll's sense, and a manager
	// that polled it would drop it.
	return s.send("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, unix.UnixRights(int(f.Fd())))
}

func (s *notifyStore) Forget(name string) error {
	return s.send("FDSTOREREMOVE=1\nFDNAME="+name, nil)
}

func (s *notifyStore) send(msg string, oob []byte) error {
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

func (s *notifyStore) Check() (renewed bool, err error) {
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

func (s *notifyStore) Kept(name string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.kept[name]
	delete(s.kept, name)
	return f
}

func (s *notifyStore) Rest() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.kept {
		names = append(names, name)
	}
	return names
}
