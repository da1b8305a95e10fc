package simfinemem

import (
	"time"

	"polder/verbs/sim"
)

// Costs are what primitive operations take. They are the simulation's only
// parameters; sim.Costs has those of the NIC and of the memory node's core.
type Costs struct {
	sim.Costs

	// IPC is what it costs an application to hand a request to the allocation
	// service of its compute node and to be woken with the answer, both ways
	// together. Published: 2 to 10 µs.
	IPC time.Duration
	// Serve is how long the service is busy with a request in itself: to
	// look for a chunk in its cache and to post the next operation.
	// Assumed.
	Serve time.Duration
	// Register and RegisterPage are what registering memory costs the memory
	// node's core: mapping and pinning it, and writing the NIC's translation
	// table. Published: more than 480 µs for 4 MiB, which is 1,024 pages.
	// That the part that does not grow with the size is 20 µs is assumed.
	Register, RegisterPage time.Duration
	// Rebind is how long the memory node's background worker is busy with
	// one chunk that was freed. Published: 1 to 3 µs for a bind, of which the
	// NIC has several under way; what the core does for it is assumed.
	Rebind time.Duration
	// Scan is how long it rests between two looks for what was freed. Assumed.
	Scan time.Duration
}

// Testbed returns the costs of the testbed.
func Testbed() Costs {
	return Costs{
		Costs:        sim.Testbed(),
		IPC:          2 * time.Microsecond,
		Serve:        200 * time.Nanosecond,
		Register:     20 * time.Microsecond,
		RegisterPage: 450 * time.Nanosecond,
		Rebind:       250 * time.Nanosecond,
		Scan:         10 * time.Microsecond,
	}
}

// Of the testbed.
const (
	computeNodes = 16
	mostThreads  = 128
)
