// Package child runs programs beside this one: the daemons that a benchmark,
// a demonstration or a test needs in processes of their own.
//
// A [Process] does not outlive its parent, whatever happens to it (Linux's
// parent-death signal), and is waited for exactly once. What it writes to its
// standard error is kept, the last part of it, for error messages.
//
// A Process may be used by any number of goroutines.
package child

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command says what to run.
type Command struct {
	Path string
	Args []string
	// Env is added to this process's environment, of which variables that
	// begin with POLDER_ are left out: they configure the parent.
	Env []string
	// Files are the program's file descriptors from 3 on. They stay the
	// caller's.
	Files []*os.File
	// Network has the program be in a network namespace of its own, which ends with what is in it. It takes
	// the right to make one.
	Network bool
	// Stdout and Stderr, if set, receive what the program writes.
	Stdout, Stderr io.Writer
}

// Process is a running program.
type Process struct {
	cmd    *exec.Cmd
	name   string
	stderr *tail
	done   chan struct{} // closed when the program has ended
	err    error         // why; set before done is closed
	addrs  map[string]string
}

// stopTimeout is how long Stop waits for a program to end of itself.
const stopTimeout = 10 * time.Second

// Start runs a program. It does not wait for anything.
func Start(c Command) (*Process, error) {
	return start(c, nil)
}

// StartReady runs a daemon of Polder's with the flag --ready-file, and waits
// until it says where it listens, or ends, or ctx is done. Command.Files begin
// at 4 there.
func StartReady(ctx context.Context, c Command) (*Process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", c.Path, err)
	}
	defer func() { _ = r.Close() }()
	c.Args = append(c.Args[:len(c.Args):len(c.Args)], "--ready-file", "/dev/fd/3")
	p, err := start(c, w)
	_ = w.Close() // the child has its own
	if err != nil {
		return nil, err
	}

	type answer struct {
		addrs map[string]string
		err   error
	}
	ready := make(chan answer, 1)
	go func() {
		var a answer
		a.err = json.NewDecoder(bufio.NewReader(r)).Decode(&a.addrs)
		ready <- a
	}()
	var a answer
	select {
	case a = <-ready:
	case <-ctx.Done():
		p.Kill()
		<-ready // the pipe's other end is closed now
		return nil, fmt.Errorf("cannot start %s: it is not ready: %w", p.name, context.Cause(ctx))
	}
	if a.err != nil {
		// It closed the pipe and said nothing: it is ending.
		select {
		case <-p.done:
		case <-time.After(stopTimeout):
			p.Kill()
		}
		return nil, fmt.Errorf("cannot start %s: %w", p.name, p.explain())
	}
	p.addrs = a.addrs
	return p, nil
}

func start(c Command, ready *os.File) (*Process, error) {
	cmd := exec.Command(c.Path, c.Args...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "POLDER_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, c.Env...)
	cmd.ExtraFiles = c.Files
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if c.Network {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	}
	if ready != nil {
		cmd.ExtraFiles = append([]*os.File{ready}, c.Files...)
	}
	p := &Process{cmd: cmd, stderr: &tail{to: c.Stderr}, done: make(chan struct{})}
	p.name = strings.Join(append([]string{c.Path}, c.Args...), " ")
	cmd.Stdout, cmd.Stderr = c.Stdout, p.stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", p.name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Addr is where the daemon's service of that name listens, "" if it has none.
// Only processes that StartReady started have addresses.
func (p *Process) Addr(service string) string { return p.addrs[service] }

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is why the program ended: nil for an exit with code zero. It waits for
// the end.
func (p *Process) Err() error {
	<-p.done
	if p.err == nil {
		return nil
	}
	return p.explain()
}

// Ended waits for the end of a program that should have gone on, and returns why it ended. It never returns nil.
func (p *Process) Ended() error {
	<-p.done
	return p.explain()
}

// ExitCode waits for the end and returns the exit code, -1 after a signal.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

func (p *Process) explain() error {
	err := p.err
	if err == nil {
		err = errors.New("it ended with exit code 0")
	}
	if said := strings.TrimSpace(p.stderr.String()); said != "" {
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// Stderr is the last part of what the program wrote to its standard error.
func (p *Process) Stderr() string { return p.stderr.String() }

// Signal sends a signal. Of SIGSTOP it returns when all threads of the program have stopped, or when the program
// has ended: they stop a moment after it was sent.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil || s != syscall.SIGSTOP {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.PID(), nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		switch err {
		case unix.EINTR:
		case unix.ECHILD: // it has ended, and was waited for
			return os.ErrProcessDone
		default:
			return err
		}
	}
}

// Kill ends the program with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.done
}

// Stop asks the program to end with SIGTERM, waits, and kills it if it does
// not. It returns what is wrong with its end.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		p.Kill()
		return fmt.Errorf("cannot stop %s: it did not end within %v of SIGTERM: killed", p.name, stopTimeout)
	}
	if p.err != nil {
		return fmt.Errorf("%s ended badly: %w", p.name, p.explain())
	}
	return nil
}

// EndWithin waits for the program to end of itself. If it takes longer than d, it is asked
// with SIGQUIT, to which programs in Go answer with what each goroutine does, and is killed
// if it does not end then either. The error has what it wrote to its standard error.
func (p *Process) EndWithin(d time.Duration) error {
	select {
	case <-p.done:
		return nil
	case <-time.After(d):
	}
	_ = p.cmd.Process.Signal(syscall.SIGQUIT) // fails only if it has ended
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		p.Kill()
	}
	return fmt.Errorf("%s did not end within %v: %s", p.name, d, p.stderr.String())
}

// Resident is the program's resident memory in bytes: anonymous, file and
// shared pages, as the kernel counts them exactly.
func (p *Process) Resident() (int64, error) { return Resident(p.PID()) }

// Resident is the resident memory in bytes of a process of this machine.
func Resident(pid int) (int64, error) {
	// smaps_rollup walks the page tables; the counters of status and statm
	// lag behind by up to some pages a thread.
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, fmt.Errorf("cannot read the resident memory of process %d: %w", pid, err)
	}
	for line := range bytes.Lines(b) {
		var kib int64
		if _, err := fmt.Sscanf(string(line), "Rss: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("cannot read the resident memory of process %d: there is no Rss in smaps_rollup", pid)
}

// tail keeps the last tailSize bytes written to it, or a little more, and
// passes all on.
type tail struct {
	to io.Writer

	mu sync.Mutex
	b  []byte // guarded by mu
}

const tailSize = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.b = append(t.b, p...)
	if len(t.b) > 2*tailSize {
		t.b = append(t.b[:0], t.b[len(t.b)-tailSize:]...)
	}
	t.mu.Unlock()
	if t.to != nil {
		return t.to.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
