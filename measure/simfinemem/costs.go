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
	// Register and RegisterPage are what registering memory costs the memory node's core: mapping and pinning it, and
	// writing the NIC's translation table. Register is for each request, RegisterPage for each page. Published: more
	// than 480 µs for 4 MiB, which is 1,024 pages. Assumed: 20 µs of that do not grow with the size.
	Register, RegisterPage time.Duration
	// Host is how long the memory node's core is busy with one chunk that was freed:
	// to find it, to post and to poll two binds, and to publish the keys. Assumed; the
	// binds themselves are the NIC's (sim.Costs.Bind).
	Host time.Duration
	// Zero is how long the memory node's core takes to clear a page of 4 KiB: at 10 GB/s, assumed. The paper's text
	// does not say what its node does about the contents of freed memory.
	Zero time.Duration
	// Wake is the time from a completion until the goroutine that waited for it runs. Assumed.
	Wake time.Duration
}

// Testbed returns the costs of the testbed.
func Testbed() Costs {
	return Costs{
		Costs:        sim.Testbed(),
		IPC:          2 * time.Microsecond,
		Serve:        200 * time.Nanosecond,
		Register:     20 * time.Microsecond,
		RegisterPage: 450 * time.Nanosecond,
		Host:         250 * time.Nanosecond,
		Zero:         400 * time.Nanosecond,
		Wake:         5 * time.Microsecond,
	}
}

// Of the testbed.
const (
	computeNodes = 16
	mostThreads  = 128
)

// sweeps vary, one by one, what was assumed of the memory node.
var sweeps = []struct {
	name string
	set  func(*Costs)
}{
	{"zeroing 0 µs", func(c *Costs) { c.Zero = 0 }},
	{"zeroing 0.8 µs", func(c *Costs) { c.Zero = 800 * time.Nanosecond }},
	{"host 0.1 µs", func(c *Costs) { c.Host = 100 * time.Nanosecond }},
	{"host 0.5 µs", func(c *Costs) { c.Host = 500 * time.Nanosecond }},
	{"wake 1 µs", func(c *Costs) { c.Wake = time.Microsecond }},
	{"wake 20 µs", func(c *Costs) { c.Wake = 20 * time.Microsecond }},
	{"all of it free", func(c *Costs) { c.Zero, c.Host, c.Wake = 0, 0, 0 }},
	{"binds of 0.5 µs", func(c *Costs) { c.Bind = 500*time.Nanosecond - c.Execute }},
}
