package main

import (
	"time"

	"polder/robustness/rdma/plan"
)

// mechanisms are the ways of managing memory that the pool's suite runs with
// over a device without work-request chains.
var mechanisms = []string{"rpcmw"}

// scenario is some guests and what runs in them.
type scenario struct {
	name    string
	device  string // for the table
	guests  []guest
	timeout time.Duration
}

// guest is one virtual machine of a scenario. With two, they are on a wire, and
// the first one serves the second.
type guest struct {
	name    string
	address string // on the wire; empty: it has none
	suites  []suite
	// killed says that the other guest has this one killed: then it need
	// not pass.
	killed bool
	mib    int
}

// suite is one program that runs in a guest, and one row of the table.
type suite struct {
	name       string
	program    program
	also       []program // that it starts itself
	args       []string
	env        []string
	background bool
	await      string
	timeout    time.Duration
}

func (s suite) programs() []program { return append([]program{s.program}, s.also...) }

func (s suite) step() plan.Step {
	args := append([]string{s.program.path()}, s.args...)
	if s.program.kind == goTest {
		args = append([]string{s.program.path(), "-test.v", "-test.timeout=" + s.timeout.String()}, s.args...)
	}
	return plan.Step{
		Name: s.name, Args: args, Env: s.env, GoTest: s.program.kind == goTest,
		Background: s.background, Await: s.await,
		// A Go test that hangs says itself where, just before.
		Timeout: s.timeout + 10*time.Second,
	}
}

var (
	roundtrip = program{kind: goProgram, source: "polder/robustness/rdma/roundtrip"}
	reference = program{kind: cProgram, source: "robustness/rdma/roundtrip/reference/roundtrip.c"}
)

func scenarios(mechanisms []string) []scenario {
	one := guest{name: "alone", mib: 1536, suites: []suite{
		{name: "round trips in C", program: reference, args: []string{"rxe0", "read", "8", "1", "2000", "poll"}, timeout: time.Minute},
	}}
	return []scenario{
		{name: "one-guest", device: "rxe over lo", guests: []guest{one}, timeout: 8 * time.Minute},
	}
}
