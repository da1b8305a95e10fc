// Package keeper keeps a daemon's descriptors while the daemon is not running,
// and runs it again when it has crashed: a service manager for one process.
//
// It speaks the part of systemd's protocol that systemd.Store uses: the
// process finds a datagram socket in NOTIFY_SOCKET, sends it descriptors with
// FDSTORE=1 and FDNAME, and finds them again, from 3 on, announced by
// LISTEN_FDS and LISTEN_FDNAMES, when it is started anew.
//
// A keeper that is killed leaves its daemon behind: it serves, but for what needs
// a keeper. A new keeper in the same directory is handed what the old one kept,
// by the daemon, which then ends, and the new keeper starts another.
//
// Concurrency: Run is for one goroutine; it has another one that reads the
// socket, which ends with it.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options say what to run.
type Options struct {
	// Dir is the daemon's directory, where the keeper's socket is and where the
	// daemon holds a lock on the file "lock". Without it, the socket is in a
	// temporary directory, and nobody can take a keeper's place.
	Dir string
	// Path and Args are the program and its arguments.
	Path string
	Args []string
	// Env is added to this process's environment.
	Env []string
	// Stdout and Stderr are the program's. The default is this process's.
	Stdout, Stderr *os.File
	// Grace is how long the program may take to end when it is asked to. The
	// default is 10 s.
	Grace time.Duration
	// Started, if not nil, is called with the pid each time that the program
	// was started.
	Started func(pid int)
	// Signals are passed on to the program; nil for none.
	Signals <-chan os.Signal
	// Log is where crashes are told. The default is slog.Default().
	Log *slog.Logger
}

// ErrExit is returned when the program has ended by itself with an exit code
// that says that it is of no use to run it again.
var ErrExit = errors.New("the program has ended")

// handOver is how long a daemon that has lost its keeper may take to hand
// everything to a new one and end.
const handOver = 10 * time.Second

// awaitHandOver returns when no daemon uses the directory.
func awaitHandOver(ctx context.Context, opt Options) error {
	for began := time.Now(); ; {
		lock, err := lockFile(filepath.Join(opt.Dir, "lock"))
		if err == nil {
			return lock.Close()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if time.Since(began) > handOver {
			return fmt.Errorf("cannot keep %s: a daemon uses it that was not started with --keep, or is stopped: end it first", opt.Dir)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	return f, nil
}

// Run runs the program until ctx is done, and then asks it to end with SIGTERM.
// A program that is killed by a signal is run again, at once the first time,
// with growing pauses when it dies young. One that exits is not: it has said
// what is wrong.
func Run(ctx context.Context, opt Options) error {
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	if opt.Grace == 0 {
		opt.Grace = 10 * time.Second
	}
	if opt.Stdout == nil {
		opt.Stdout = os.Stdout
	}
	if opt.Stderr == nil {
		opt.Stderr = os.Stderr
	}
	s, err := newStore(opt.Dir)
	if err != nil {
		return err
	}
	defer s.close()
	if opt.Dir != "" {
		if err := awaitHandOver(ctx, opt); err != nil {
			return err
		}
		if err := s.drain(); err != nil {
			return err
		}
		if n := s.len(); n > 0 {
			opt.Log.Info("a daemon without keeper has handed its memory over", "descriptors", n)
		}
	}
	for pause := time.Duration(0); ; {
		began := time.Now()
		crashed, err := s.runOnce(ctx, opt)
		if !crashed {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		opt.Log.Warn("the daemon has died and is started again", "cause", err, "descriptors", s.len())
		if time.Since(began) > 10*time.Second {
			pause = 0
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(max(2*pause, 10*time.Millisecond), 5*time.Second)
	}
}

// runOnce runs the program until it ends. It reports whether it was killed.
func (s *store) runOnce(ctx context.Context, opt Options) (crashed bool, err error) {
	names, files, err := s.all()
	if err != nil {
		return false, err
	}
	cmd := exec.Command(opt.Path, opt.Args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, opt.Stdout, opt.Stderr
	cmd.ExtraFiles = files
	cmd.Env = append(slices.Clone(os.Environ()), opt.Env...)
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+s.path, "LISTEN_PID=",
		"LISTEN_FDS="+strconv.Itoa(len(files)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	err = cmd.Start()
	for _, f := range files {
		f.Close()
	}
	if err != nil {
		return false, fmt.Errorf("cannot start the daemon: %w", err)
	}
	if opt.Started != nil {
		opt.Started(cmd.Process.Pid)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for running := true; running; {
		select {
		case err = <-ended:
			running = false
		case sig := <-opt.Signals:
			_ = cmd.Process.Signal(sig) // fails only if it has ended
		case <-ctx.Done():
			_ = cmd.Process.Signal(unix.SIGTERM)
			select {
			case err = <-ended:
			case <-time.After(opt.Grace):
				_ = cmd.Process.Kill()
				err = <-ended
			}
			running = false
		}
	}
	if merr := s.drain(); merr != nil {
		return false, merr
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false, err
	}
	if exit.ExitCode() == -1 {
		return true, err
	}
	return false, fmt.Errorf("%w with code %d", ErrExit, exit.ExitCode())
}

// store is a descriptor store behind a datagram socket.
type store struct {
	tmp   string   // a directory of its own, or ""
	lock  *os.File // held while this keeper has the daemon's directory, or nil
	path  string
	conn  *net.UnixConn
	done  chan struct{}
	marks chan struct{}

	mu   sync.Mutex // guards kept
	kept map[string]*os.File
}

const mark = "POLDER_KEEPER_MARK=1"

// maxPath is how long the path of a Unix socket may be.
const maxPath = 107

// newStore makes a store in dir, or in a directory of its own if dir is empty.
func newStore(dir string) (_ *store, err error) {
	var tmp string
	var lock *os.File
	if dir != "" {
		if dir, err = filepath.Abs(dir); err == nil {
			err = os.MkdirAll(dir, 0o700)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot make the keeper's directory: %w", err)
		}
		if lock, err = lockFile(filepath.Join(dir, "keeper.lock")); err != nil {
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = fmt.Errorf("another keeper does: %w", err)
			}
			return nil, fmt.Errorf("cannot keep %s: %w", dir, err)
		}
	}
	path := filepath.Join(dir, "keeper.sock")
	os.Remove(path)                       // a dead keeper's
	if dir == "" || len(path) > maxPath { // the daemon will find no other keeper there
		if tmp, err = os.MkdirTemp("", "polder-keeper"); err != nil { // mode 0700: this user's alone
			return nil, fmt.Errorf("cannot make the keeper's directory: %w", err)
		}
		path = filepath.Join(tmp, "keeper.sock")
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		os.RemoveAll(tmp)
		if lock != nil {
			lock.Close()
		}
		return nil, fmt.Errorf("cannot make the keeper's socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot make the keeper's socket: %w", err)
	}
	s := &store{tmp: tmp, lock: lock, path: path, conn: conn, done: make(chan struct{}), marks: make(chan struct{}, 1), kept: map[string]*os.File{}}
	go s.read()
	return s, nil
}

func (s *store) read() {
	defer close(s.done)
	buf := make([]byte, 4096)
	oob := make([]byte, unix.CmsgSpace(4*16))
	for {
		n, oobn, _, _, err := s.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			return
		}
		s.handle(string(buf[:n]), descriptors(oob[:oobn]))
	}
}

func (s *store) handle(msg string, files []*os.File) {
	var keep, forget bool
	name := "stored"
	for line := range strings.SplitSeq(msg, "\n") {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "FDSTORE":
			keep = value == "1"
		case "FDSTOREREMOVE":
			forget = value == "1"
		case "FDNAME":
			name = value
		}
	}
	s.mu.Lock()
	if (forget || keep && len(files) > 0) && s.kept[name] != nil {
		s.kept[name].Close()
		delete(s.kept, name)
	}
	if keep && len(files) > 0 {
		s.kept[name] = files[0]
		files = files[1:]
	}
	s.mu.Unlock()
	for _, f := range files {
		f.Close()
	}
	if msg == mark {
		s.marks <- struct{}{}
	}
}

// drain returns when all that was sent before has been read.
func (s *store) drain() error {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("cannot reach the keeper's own socket: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(mark)); err != nil {
		return fmt.Errorf("cannot reach the keeper's own socket: %w", err)
	}
	<-s.marks
	return nil
}

// all returns duplicates of all that is kept, which the caller closes: the
// program may tell the store to forget some as soon as it runs.
func (s *store) all() (names []string, files []*os.File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.kept {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, nil, fmt.Errorf("cannot hand over what is kept: %w", err)
		}
		names, files = append(names, name), append(files, os.NewFile(uintptr(fd), name))
	}
	return names, files, nil
}

func (s *store) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.kept)
}

func (s *store) close() {
	s.conn.Close()
	<-s.done
	for _, f := range s.kept {
		f.Close()
	}
	os.Remove(s.path)
	if s.tmp != "" {
		os.RemoveAll(s.tmp)
	}
	if s.lock != nil {
		s.lock.Close()
	}
}

func descriptors(oob []byte) []*os.File {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "kept"))
		}
	}
	return files
}
