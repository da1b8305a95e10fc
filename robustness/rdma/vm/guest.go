package vm

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
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"polder/robustness/rdma/plan"
)

// Config describes a virtual machine. Kernel, Init and Plan must be given.
type Config struct {
	Name   string // in messages and as the guest's host name
	Kernel *Kernel
	// Init is the path of the program guestinit, linked statically.
	Init string
	// Plan is what the guest does. Its Hostname and Modules are set by
	// Start.
	Plan plan.Plan
	// Files are put into the guest: absolute paths there, paths here. All
	// are executable.
	Files map[string]string
	// MemoryMiB is the guest's memory; 0: 1024.
	MemoryMiB int
	// CPUs is the number of processors; 0: 2.
	CPUs int
	// Cable is the end of a Cable that is to be the guest's eth0; nil: none.
	// Start closes it.
	Cable *os.File
	// Host has the guest's eth0 reach what listens on this host's loopback
	// interface, at HostAddress, in the place of a Cable. Start sets the plan's
	// Address.
	Host bool
	// MAC is the last byte of eth0's address.
	MAC byte
	// BootTimeout is when a guest that has not come up counts as hanging and
	// is killed; 0: one minute.
	BootTimeout time.Duration
	// Timeout is the same for its plan, once it is up; 0: 5 minutes.
	Timeout time.Duration
	// Console is called with every line on the guest's console; nil: none.
	Console func(line string)
	// Event is called with every event of the guest's; nil: none.
	Event func(plan.Event)
}

// HostAddress is where a guest with Config.Host finds this host.
const HostAddress = "10.0.2.2"

// guestAddress is that of such a guest.
const guestAddress = "10.0.2.15/24"

// tailLines is how many of the last lines of the console a Result has.
const tailLines = 25

// Guest is a virtual machine that has been started.
type Guest struct {
	cfg    Config
	cmd    *exec.Cmd
	dir    string                  // holds the initial file system
	cancel context.CancelCauseFunc // kills QEMU
	began  time.Time
	limit  *time.Timer    // cancels
	output sync.WaitGroup // the goroutines that read what the guest says

	done   chan struct{} // closed when result is valid
	result Result

	tail  []string // written by the console's goroutine
	steps []Report // written by the events' goroutine
}

// Report is what became of a step.
type Report struct {
	Step    string
	Outcome string // plan.Passed, plan.Failed, plan.Hung; empty: it has not ended
	Why     string
	Took    time.Duration
	Tests   int
}

// Result is how a guest has ended.
type Result struct {
	Name string
	// Err is nil if the guest has passed. Otherwise it says what happened.
	Err error
	// Steps has a report for every step of the plan.
	Steps []Report
	// Tail is the last lines on the console.
	Tail []string
	// Took is from the start of QEMU to its end.
	Took time.Duration
}

// Why a guest has not passed, besides steps that have not.
var (
	ErrPanicked = errors.New("the guest panicked or reset itself")
	ErrHung     = errors.New("the guest hung and was killed")
	ErrKilled   = errors.New("the guest was killed")
	ErrQEMU     = errors.New("QEMU failed")
)

// Start boots a guest. The caller must Wait for it. When ctx ends, the guest is
// killed.
func Start(ctx context.Context, cfg Config) (g *Guest, err error) {
	if cfg.Cable != nil {
		defer cfg.Cable.Close()
	}
	if cfg.MemoryMiB == 0 {
		cfg.MemoryMiB = 1024
	}
	if cfg.CPUs == 0 {
		cfg.CPUs = 2
	}
	if cfg.Host {
		cfg.Plan.Address = guestAddress
	}
	if cfg.BootTimeout == 0 {
		cfg.BootTimeout = time.Minute
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Minute
	}
	dir, err := os.MkdirTemp("", "polder-guest-")
	if err != nil {
		return nil, fmt.Errorf("cannot start guest %s: %w", cfg.Name, err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
			err = fmt.Errorf("cannot start guest %s: %w", cfg.Name, err)
		}
	}()
	initrd := filepath.Join(dir, "initrd")
	if err := writeInitrd(initrd, &cfg); err != nil {
		return nil, err
	}
	eventRead, eventWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	consoleRead, consoleWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	g = &Guest{cfg: cfg, dir: dir, cancel: cancel, done: make(chan struct{})}
	for _, s := range cfg.Plan.Steps {
		g.steps = append(g.steps, Report{Step: s.Name})
	}
	g.cmd = exec.CommandContext(ctx, "qemu-system-x86_64", arguments(cfg, initrd)...)
	g.cmd.Stdout, g.cmd.Stderr = consoleWrite, consoleWrite
	g.cmd.ExtraFiles = []*os.File{eventWrite} // 3
	if cfg.Cable != nil {
		g.cmd.ExtraFiles = append(g.cmd.ExtraFiles, cfg.Cable) // 4
	}
	g.began = time.Now()
	g.limit = time.AfterFunc(cfg.BootTimeout, func() { cancel(ErrHung) })
	err = g.cmd.Start()
	eventWrite.Close()
	consoleWrite.Close()
	if err != nil {
		g.limit.Stop()
		cancel(nil)
		eventRead.Close()
		consoleRead.Close()
		return nil, err
	}
	g.output.Add(2)
	go g.readConsole(consoleRead)
	go g.readEvents(eventRead)
	go g.wait(ctx)
	return g, nil
}

// arguments are QEMU's. File descriptor 3 takes the events, 4 is the wire.
func arguments(cfg Config, initrd string) []string {
	args := []string{
		"-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max",
		"-smp", strconv.Itoa(cfg.CPUs), "-m", strconv.Itoa(cfg.MemoryMiB) + "M",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-serial", "stdio",
		"-chardev", "file,id=events,path=/dev/fd/3", "-serial", "chardev:events",
		"-kernel", cfg.Kernel.Image(), "-initrd", initrd,
		"-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on rdinit=/init " + clockArguments(),
		"-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=4", plan.ExitPort),
	}
	wire := "dgram,id=wire,local.type=fd,local.str=4"
	if cfg.Host {
		wire = "user,id=wire"
	}
	if cfg.Cable != nil || cfg.Host {
		args = append(args, "-netdev", wire,
			"-device", fmt.Sprintf("virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:00:00:%02x", cfg.MAC))
	}
	return args
}

// writeInitrd writes the guest's initial file system.
func writeInitrd(name string, cfg *Config) error {
	modules, err := cfg.Kernel.Modules()
	if err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	a := newArchive(f)
	a.char("/dev/console", 0o600, 5, 1) // the kernel opens it before /dev is mounted
	a.copyFile("/init", 0o755, cfg.Init)
	cfg.Plan.Hostname = cfg.Name
	cfg.Plan.Modules = nil
	for _, m := range modules {
		in := path.Join("/modules", filepath.Base(m))
		a.copyFile(in, 0o644, m)
		cfg.Plan.Modules = append(cfg.Plan.Modules, in)
	}
	for in, from := range cfg.Files {
		a.copyFile(in, 0o755, from)
	}
	if err := cfg.Plan.Check(); err != nil {
		return err
	}
	p, err := json.Marshal(cfg.Plan)
	if err != nil {
		return err
	}
	a.file(plan.File, 0o644, p)
	if err := a.close(); err != nil {
		return err
	}
	return f.Close()
}

// Kill kills the virtual machine at once, as a power failure would.
func (g *Guest) Kill() {
	g.cancel(ErrKilled)
}

// Wait waits until the guest has ended and returns how.
func (g *Guest) Wait() Result {
	<-g.done
	return g.result
}

func (g *Guest) wait(ctx context.Context) {
	g.output.Wait() // both pipes end with the process
	err := g.cmd.Wait()
	took := time.Since(g.began)
	r := Result{Name: g.cfg.Name, Steps: g.steps, Tail: g.tail, Took: took}
	g.limit.Stop()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrHung):
		r.Err = fmt.Errorf("%w after %.1fs", ErrHung, took.Seconds())
	case errors.Is(cause, ErrKilled):
		r.Err = ErrKilled
	case cause != nil:
		r.Err = fmt.Errorf("%w: %w", ErrKilled, cause)
	default:
		r.Err = verdict(g.cmd.ProcessState.ExitCode(), err, g.steps)
	}
	g.cancel(nil)
	os.RemoveAll(g.dir)
	g.result = r
	close(g.done)
}

// verdict says why a guest whose QEMU ended by itself has not passed; nil: it
// has.
func verdict(status int, err error, steps []Report) error {
	switch status {
	case plan.ExitStatus(plan.PassCode):
	case plan.ExitStatus(plan.FailCode):
		for _, s := range steps {
			if s.Outcome != plan.Passed && s.Outcome != "" {
				return fmt.Errorf("step %q %s: %s", s.Step, s.Outcome, s.Why)
			}
		}
		return errors.New("the guest reports a failure")
	case 0:
		return ErrPanicked
	default:
		return fmt.Errorf("%w: %v", ErrQEMU, err)
	}
	for _, s := range steps {
		if s.Outcome != plan.Passed {
			return fmt.Errorf("the guest passed, but did not say so of step %q", s.Step)
		}
	}
	return nil
}

func (g *Guest) readConsole(r io.ReadCloser) {
	defer g.output.Done()
	defer r.Close()
	lines(r, func(line []byte) {
		s := printable(line)
		if len(g.tail) == tailLines {
			g.tail = append(g.tail[:0], g.tail[1:]...)
		}
		g.tail = append(g.tail, s)
		if g.cfg.Console != nil {
			g.cfg.Console(s)
		}
	})
}

func (g *Guest) readEvents(r io.ReadCloser) {
	defer g.output.Done()
	defer r.Close()
	lines(r, func(line []byte) {
		var e plan.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return // noise on the port; a step that is not reported does not pass
		}
		switch e.Kind {
		case plan.Booted:
			g.limit.Reset(g.cfg.Timeout)
		case plan.Ended:
			for i := range g.steps {
				if g.steps[i].Step == e.Step {
					g.steps[i] = Report{e.Step, e.Outcome, e.Why, e.Took, e.Tests}
				}
			}
		}
		if g.cfg.Event != nil {
			g.cfg.Event(e)
		}
	})
}

// lines calls f with every line, without its end. Very long lines come in
// pieces.
func lines(r io.Reader, f func([]byte)) {
	b := bufio.NewReaderSize(r, 1<<16)
	for {
		line, _, err := b.ReadLine()
		if err != nil {
			return
		}
		f(bytes.TrimRight(line, "\r"))
	}
}

// printable is a line of the console without what would move the cursor of
// whoever looks at it.
func printable(line []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, string(line))
}
