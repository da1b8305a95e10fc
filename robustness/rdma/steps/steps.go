// Package steps carries out the steps of a plan: it runs programs one after
// another, or in the background, shows their output, bounds their time, and
// reports what became of each. A guest's init does this in the guest, and
// robustness/rdma does it on a host that has an RDMA device of its own.
//
// A Runner is for one goroutine at a time.
package steps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"polder/robustness/rdma/plan"
)

const (
	// awaitLimit bounds how long a step waits for an address to accept.
	awaitLimit = 60 * time.Second
	// lastWords is how long a program may take to print its goroutines, or
	// to end when it is told to.
	lastWords = 15 * time.Second
)

// Runner carries out steps.
type Runner struct {
	// Env is the environment of every step.
	Env []string
	// Dir is the directory that they run in.
	Dir string
	// Output takes what they write, line by line.
	Output io.Writer
	// Report is called with what becomes of them: plan.Started and
	// plan.Ended. It may be called by several goroutines at once.
	Report func(plan.Event) error

	background []*running
	early      chan error
}

// Failed delivers an error when a background step has ended too early. It is
// valid after Run.
func (r *Runner) Failed() <-chan error { return r.early }

// Run runs all steps and returns the first error. A step that fails does not
// keep the others from running: what they say may explain it. Background steps
// go on until End.
func (r *Runner) Run(steps []plan.Step) error {
	r.early = make(chan error, len(steps))
	var first error
	for _, s := range steps {
		if err := r.step(s); err != nil {
			err = fmt.Errorf("step %q: %w", s.Name, err)
			fmt.Fprintln(r.Output, err)
			if first == nil {
				first = err
			}
		}
	}
	return first
}

func (r *Runner) step(s plan.Step) error {
	if s.Await != "" {
		if err := await(s.Await); err != nil {
			r.ended(s, plan.Failed, err, 0, 0)
			return err
		}
	}
	if err := r.Report(plan.Event{Kind: plan.Started, Step: s.Name}); err != nil {
		return err
	}
	p, err := r.start(s)
	if err != nil {
		r.ended(s, plan.Failed, err, 0, 0)
		return err
	}
	if s.Background {
		r.background = append(r.background, p)
		go func() {
			<-p.done
			err := fmt.Errorf("step %q has ended too early", s.Name)
			if p.err != nil {
				err = fmt.Errorf("%w: %w", err, p.err)
			}
			r.early <- err
		}()
		return nil
	}
	outcome, err := p.finish(s.Timeout)
	r.ended(s, outcome, err, time.Since(p.began), p.passed())
	return err
}

// End ends the background steps, the last one first, and returns the first error.
func (r *Runner) End() error {
	var first error
	for i := len(r.background) - 1; i >= 0; i-- {
		p := r.background[i]
		outcome, err := plan.Failed, errors.New("it ended too early")
		select {
		case <-p.done:
		default:
			p.signal(unix.SIGTERM)
			outcome, err = p.finish(lastWords)
		}
		r.ended(p.step, outcome, err, time.Since(p.began), p.passed())
		if err != nil && first == nil {
			first = fmt.Errorf("step %q: %w", p.step.Name, err)
		}
	}
	return first
}

func (r *Runner) ended(s plan.Step, outcome string, why error, took time.Duration, tests int) {
	e := plan.Event{Kind: plan.Ended, Step: s.Name, Outcome: outcome, Took: took, Tests: tests}
	if why != nil {
		e.Why = why.Error()
	}
	if err := r.Report(e); err != nil {
		fmt.Fprintln(r.Output, err)
	}
}

// await waits until addr accepts a connection.
func await(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), awaitLimit)
	defer cancel()
	for {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing listens at %s: %w", addr, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// running is the program of a step.
type running struct {
	step  plan.Step
	cmd   *exec.Cmd
	began time.Time
	done  chan struct{} // closed when the program has ended and all output is out
	err   error         // how it ended; valid after done
	tests int           // how many tests have passed; valid after done
}

func (r *Runner) start(s plan.Step) (*running, error) {
	p := &running{step: s, began: time.Now(), done: make(chan struct{})}
	p.cmd = exec.Command(s.Args[0], s.Args[1:]...)
	p.cmd.Dir = r.Dir
	p.cmd.Env = append(append([]string{}, r.Env...), s.Env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start: %w", err)
	}
	p.cmd.Stdout, p.cmd.Stderr = write, write
	if err := p.cmd.Start(); err != nil {
		read.Close()
		write.Close()
		return nil, fmt.Errorf("cannot start: %w", err)
	}
	write.Close()
	go func() {
		p.tests = show(read, r.Output)
		read.Close()
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// show copies a program's output, line by line, and counts the tests that it
// says have passed.
func show(r io.Reader, w io.Writer) (passed int) {
	b := bufio.NewReader(r)
	for {
		line, err := b.ReadString('\n')
		if strings.HasPrefix(strings.TrimLeft(line, " "), "--- PASS: ") {
			passed++
		}
		io.WriteString(w, line)
		if err != nil {
			return passed
		}
	}
}

// finish waits for the program, and kills it when its time is up.
func (p *running) finish(limit time.Duration) (outcome string, err error) {
	select {
	case <-p.done:
	case <-time.After(limit):
		p.signal(unix.SIGQUIT)
		select {
		case <-p.done:
		case <-time.After(lastWords):
			p.signal(unix.SIGKILL)
			// A process that is stuck in the kernel does not die of it.
			select {
			case <-p.done:
			case <-time.After(lastWords):
			}
		}
		return plan.Hung, fmt.Errorf("has not ended after %v", limit)
	}
	switch {
	case p.err != nil:
		return plan.Failed, p.err
	case p.tests < p.step.Tests:
		return plan.Failed, fmt.Errorf("%d tests have passed, want %d at least", p.tests, p.step.Tests)
	}
	return plan.Passed, nil
}

// passed is how many tests have passed, or 0 if the program has not ended.
func (p *running) passed() int {
	select {
	case <-p.done:
		return p.tests
	default:
		return 0
	}
}

// signal sends a signal to the program and its children.
func (p *running) signal(s unix.Signal) {
	if err := unix.Kill(-p.cmd.Process.Pid, s); err != nil {
		fmt.Fprintf(os.Stderr, "cannot send %v to step %q: %v\n", s, p.step.Name, err)
	}
}
