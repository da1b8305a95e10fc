// Package plan is what a guest is told to do and how it says what became of
// it: the vocabulary between the program that boots guests (robustness/rdma and
// its package vm), the guests' init (guestinit), and the tests that run in them.
//
// # On the wire
//
// The plan is a JSON file in the guest's initial file system. Events are JSON
// objects, one a line, on the guest's second serial port; they go from the
// guest to the host only. The guest's first serial port is its console, for
// people. The last word is the exit code of QEMU, which the guest sets through
// the isa-debug-exit device: it is written once, when everything has passed,
// and no other way for QEMU to end gives the same code.
package plan

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

const (
	// File is where the guest's init finds its plan.
	File = "/plan.json"
	// EventPort is the serial port for events.
	EventPort = "/dev/ttyS1"
	// PassCode is what a guest writes to the exit device when every step has
	// passed. QEMU's own exit code is then PassCode<<1 | 1 = 85. It is not
	// the plain 0 (and 1), because QEMU exits with 1 when it cannot start,
	// and with 0 when the guest panics.
	PassCode = 42
	// FailCode is what a guest writes when a step has failed: QEMU exits
	// with 87.
	FailCode = 43
	// ExitPort is the I/O port of the exit device.
	ExitPort = 0xf4
	// ReleasePort is the TCP port at which a guest with Plan.Serve waits to
	// be released.
	ReleasePort = 7
)

// ExitStatus is the exit status of QEMU for a code that the guest has written.
func ExitStatus(code int) int { return code<<1 | 1 }

// Plan is what a guest does between booting and powering off.
type Plan struct {
	// Hostname is the guest's name.
	Hostname string
	// Modules are the kernel modules to load, in order, as paths in the
	// guest.
	Modules []string
	// Device is the name of the Soft-RoCE device to create; empty: none.
	Device string
	// Address is the guest's IPv4 address with prefix length on the wire
	// (eth0); empty: there is no wire, and the device is over lo.
	Address string
	// Env is set for every step.
	Env []string
	// Steps run one after another.
	Steps []Step
	// Serve makes the guest wait, after the last step has ended, until
	// another guest releases it; the background steps end then.
	Serve bool
	// Release is the address of a guest to release at the end; empty: none.
	Release string
}

// Step is one program to run.
type Step struct {
	// Name is what the step is called in events and tables.
	Name string
	// Args are the program and its arguments.
	Args []string
	// Env is added to the environment.
	Env []string
	// Tests is how many tests and subtests must have passed at least, if the
	// program is a test binary of Go: a pattern that matches none passes.
	Tests int
	// Background lets the next step start at once. The program is told to
	// end (SIGTERM) when the plan is at its end, and must then exit with 0.
	// If it ends before, the guest fails.
	Background bool
	// Await is a TCP address ("192.168.7.1:7471") that must accept
	// connections before the step starts.
	Await string
	// Timeout is when the step has failed and is killed. A Go program prints
	// its goroutines first.
	Timeout time.Duration
}

// Kinds of events.
const (
	Booted  = "booted"  // init runs, modules are loaded, the device exists
	Started = "started" // a step has started
	Ended   = "ended"   // a step has ended
	Asked   = "asked"   // a program in the guest asks something of the host
)

// Outcomes of a step.
const (
	Passed = "passed"
	Failed = "failed"
	Hung   = "hung"
)

// Event is one line from a guest.
type Event struct {
	Kind    string
	Step    string        `json:",omitempty"`
	Outcome string        `json:",omitempty"` // of an Ended step
	Why     string        `json:",omitempty"` // it has not passed
	Took    time.Duration `json:",omitempty"`
	Tests   int           `json:",omitempty"` // passed tests and subtests of a Go test
	Request []string      `json:",omitempty"` // what is asked, for Asked
}

// Requests that a program in a guest can make of the host with Ask.
const (
	// CutWire drops every frame on the wire between two guests from now on.
	// Neither guest is told, as with a switch that fails.
	CutWire = "cut-wire"
	// MendWire carries frames again.
	MendWire = "mend-wire"
	// KillPeer kills the other guest's virtual machine at once.
	KillPeer = "kill-peer"
)

// Emit writes an event. Several processes may call it at once: an event is one
// write, which the kernel does not interleave with others.
func (e Event) Emit(port *os.File) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("cannot encode event: %w", err)
	}
	if _, err := port.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("cannot send event to the host: %w", err)
	}
	return nil
}

// Ask makes a request of the host. There is no answer: what comes of it shows.
func Ask(request ...string) error {
	port, err := os.OpenFile(EventPort, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("cannot ask the host to %v: %w", request, err)
	}
	defer port.Close()
	return Event{Kind: Asked, Request: request}.Emit(port)
}

// Read reads the guest's own plan.
func Read() (*Plan, error) {
	b, err := os.ReadFile(File)
	if err != nil {
		return nil, fmt.Errorf("cannot read the guest's plan: %w", err)
	}
	p := new(Plan)
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("cannot read the guest's plan: %w", err)
	}
	return p, p.Check()
}

// Check returns an error if the plan cannot be carried out.
func (p *Plan) Check() error {
	for i, s := range p.Steps {
		switch {
		case s.Name == "":
			return fmt.Errorf("cannot use plan: step %d has no name", i)
		case len(s.Args) == 0:
			return fmt.Errorf("cannot use plan: step %q has no program", s.Name)
		case s.Timeout <= 0 && !s.Background:
			return fmt.Errorf("cannot use plan: step %q has no time-out", s.Name)
		case slices.ContainsFunc(p.Steps[:i], func(o Step) bool { return o.Name == s.Name }):
			return fmt.Errorf("cannot use plan: two steps are called %q", s.Name)
		}
	}
	return nil
}
