package main

import (
	"time"

	"polder/robustness/rdma/plan"
)

// The ways of managing memory that the pool's suite runs with: the one that a
// node uses on a device without work-request chains, and all that such a device
// can do.
var (
	usual = []string{"rpcmw", "finemem"}
	all   = []string{"rpcmw", "rpcmw1", "finemem", "finemr", "staticmr"}
)

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
	background bool
	await      string
	timeout    time.Duration
	tests      int // of a Go test, how many must have passed at least; 0: one
}

func (s suite) programs() []program { return append([]program{s.program}, s.also...) }

// step is how the suite runs, with its program at path. Unless that is polder
// itself, it gets env.
func (s suite) step(path string, env []string) plan.Step {
	if s.program == polder {
		env = nil
	}
	args, tests := append([]string{path}, s.args...), 0
	if s.program.kind == goTest {
		tests = max(1, s.tests)
		args = append([]string{path, "-test.v", "-test.timeout=" + s.timeout.String()}, s.args...)
	}
	return plan.Step{
		Name: s.name, Args: args, Env: env, Tests: tests,
		Background: s.background, Await: s.await,
		// A Go test that hangs says itself where, just before.
		Timeout: s.timeout + 10*time.Second,
	}
}

// The programs that suites run.
var (
	verbsTest   = program{goTest, "polder/verbs/ibv"}
	windowsTest = program{goTest, "polder/robustness/rdma/windows"}
	poolTest    = program{goTest, "polder/pool"}
	guestsTest  = program{goTest, "polder/robustness/rdma/twoguests"}
	polder      = program{goProgram, "polder/cmd/polder"}
	roundtrip   = program{goProgram, "polder/robustness/rdma/roundtrip"}
	reference   = program{cProgram, "robustness/rdma/roundtrip/reference/roundtrip.c"}
)

// Where the guests of two are on their wire.
const (
	nodeAddress   = "192.168.7.1/24"
	clientAddress = "192.168.7.2/24"
	nodeListen    = "192.168.7.1:7070"
)

// scenarios is everything that there is to run on a device of that name. What
// takes long is left out unless long is set.
func scenarios(device string, managers []string, long bool) []scenario {
	// What a node offers on such a device by default; and without trying keys
	// through the node, since the windows' suite does that to the device; nor
	// finemem's many registrations, of which each try costs a queue pair.
	attack := []string{"-test.run=TestIBVAttack//^(rpcmw|finemem)$", "-test.skip=/tries_all_256_keys/|/own_registrations/finemem"}
	attackLimit := 4 * time.Minute
	if long {
		attack, attackLimit = []string{"-test.run=TestIBVAttack"}, 9*time.Minute
	}
	one := guest{name: "alone", mib: 1536}
	one.suites = append(one.suites,
		suite{name: "verbs", program: verbsTest, timeout: 4 * time.Minute},
		suite{name: "windows", program: windowsTest, timeout: 2 * time.Minute},
	)
	for _, m := range managers {
		one.suites = append(one.suites, suite{name: "pool, " + m, program: poolTest,
			args: []string{"-test.run=TestIBVManagers/^" + m + "$"}, timeout: 4 * time.Minute,
			tests: 2}) // the test itself passes also if there is no such manager
	}
	one.suites = append(one.suites,
		suite{name: "attacks", program: poolTest, args: attack, timeout: attackLimit},
		suite{name: "round trips", program: roundtrip, also: []program{reference},
			args: []string{"-device", device}, timeout: 2 * time.Minute})

	node := guest{name: "node", address: nodeAddress, mib: 512, killed: true, suites: []suite{{
		name: "polder node", program: polder, background: true, args: []string{
			"node", "--fabric", "rdma", "--device", device, "--listen", nodeListen, "--lend", "128MiB", "--client-budget", "0",
			"--manager", "rpcmw", "--grace", "1m", "--insecure",
		},
	}}}
	client := guest{name: "client", address: clientAddress, mib: 768}
	lender := guest{name: "node", address: nodeAddress, mib: 512, suites: []suite{{
		name: "a client that is killed", program: guestsTest, args: []string{"-test.run=AClientThatIsKilled"}, timeout: 2 * time.Minute,
	}}}
	victim := guest{name: "client", address: clientAddress, mib: 512, killed: true, suites: []suite{{
		name: "borrowing", program: guestsTest, args: []string{"-test.run=BorrowsUntilItIsKilled"},
		await: nodeListen, timeout: 2 * time.Minute,
	}}}
	for _, t := range []struct{ name, run string }{
		{"the main job", "MainJob"},
		{"a link lost for 5 s", "LinkLost"},
		{"a node that is killed", "NodeThatIsKilled"}, // the last one, of course
	} {
		client.suites = append(client.suites, suite{
			name: t.name, program: guestsTest, also: []program{polder}, args: []string{"-test.run=" + t.run},
			await: nodeListen, timeout: 2 * time.Minute,
		})
	}
	return []scenario{
		{name: "one-guest", device: "rxe over lo", guests: []guest{one}, timeout: 20 * time.Minute},
		{name: "two-guests", device: "rxe over a wire", guests: []guest{node, client}, timeout: 6 * time.Minute},
		{name: "killed-client", device: "rxe over a wire", guests: []guest{lender, victim}, timeout: 4 * time.Minute},
	}
}
