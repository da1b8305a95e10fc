// Package keeper keeps a daemon's descriptors while the daemon is not running,
// and runs it again when it has crashed: a service manager for one process.
//
// It speaks the part of systemd's protocol that package resource uses: the
// process finds a datagram socket in NOTIFY_SOCKET, sends it descriptors with
// FDSTORE=1 and FDNAME, and finds them again, from 3 on, announced by
// LISTEN_FDS and LISTEN_FDNAMES, when it is started anew.
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
	s, err := newStore()
	if err != nil {
		return err
	}
	defer s.close()
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
	dir, path string
	conn      *net.UnixConn
	done      chan struct{}
	marks     chan struct{}

	mu   sync.Mutex // guards kept
	kept map[string]*os.File
}

const mark = "POLDER_KEEPER_MARK=1"

func newStore() (*store, error) {
	dir, err := os.MkdirTemp("", "polder-keeper") // mode 0700: this user's alone
	if err != nil {
		return nil, fmt.Errorf("cannot make the keeper's directory: %w", err)
	}
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("cannot make the keeper's socket: %w", err)
	}
	s := &store{dir: dir, path: path, conn: conn, done: make(chan struct{}), marks: make(chan struct{}, 1), kept: map[string]*os.File{}}
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
	os.RemoveAll(s.dir)
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
