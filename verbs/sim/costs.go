package sim

import (
	"fmt"
	"time"
)

// Costs are what the primitive operations of the simulated hardware take. They
// are the only parameters of the model.
//
// Sources. "RedN" is Reda et al., NSDI '22, sections 5.1 and 5.2: the verbs of a
// ConnectX-5 one by one; OneSidedMW is built on its code (section 5 of the
// OneSidedMW paper) and runs on the same NIC. Its text is not among this
// project's sources, so its figures count as assumptions here. "OneSidedMW" is
// the paper that this simulation is about. Nothing is fitted to the latencies
// that it measured with 24 threads; Bind alone is fitted, to the one that it
// gives for one thread.
type Costs struct {
	// PCIeWrite is a posted write across PCIe, one way, with what the
	// processor does for it: the doorbell, and the completion until it is
	// polled. RedN: a NOP takes 1.21 µs from post to poll, which is two of
	// these, one PCIeRead and one Execute.
	PCIeWrite time.Duration
	// PCIeRead is a read across PCIe, there and back: to fetch work-queue
	// entries, payload, a context, or the word of an atomic operation.
	// RedN: an entry that must be fetched by itself costs 0.54 µs, and one
	// that need not 0.17.
	PCIeRead time.Duration
	// PCIeRate is the throughput of PCIe 3.0 x16 in each direction, in
	// bytes a second. Assumed.
	PCIeRate int64

	// Execute is how long a processing unit is busy with a work request
	// that lies before it. RedN, as above.
	Execute time.Duration
	// Bind is what binding or invalidating a window adds to that. Fitted to
	// OneSidedMW, figure 10(b), one thread: an allocation takes 10.7 µs.
	Bind time.Duration
	// Units is how many processing units execute send queues. RedN: 8 per
	// port of a ConnectX-5.
	Units int
	// Window is how many entries of a send queue one fetch brings: 8, which
	// is the usual 512 bytes of one PCIe read. Assumed. An entry that was
	// rewritten since is fetched again; on hardware its chain would have to
	// see to that (RedN's doorbell order), for the same cost.
	Window int
	// Inline is the most payload that a processor posts with the request
	// itself, for queues that are not managed. Assumed.
	Inline uint32

	// Receive is what the receiving pipeline adds to a packet's latency.
	// RedN: a WRITE takes 1.6 µs, two of these and a wire's round trip
	// longer than a NOP.
	Receive time.Duration
	// Contexts is how many contexts of queue pairs lie beside the units; a
	// queue pair whose context does not costs a PCIeRead when its turn
	// comes. A queue parked in a WAIT keeps its context there while there
	// is room. Assumed: four for each unit. OneSidedMW (section 3.2) says
	// that offloading "consumes hardware resources", and not which.
	Contexts int

	// Wire is the propagation one way. RedN: 0.25 µs both ways, back to
	// back; and 0.09 µs for the switch of OneSidedMW's testbed, assumed.
	Wire time.Duration
	// LinkRate is OneSidedMW's 100 Gbit/s, in bytes a second.
	LinkRate int64
	// MTU is the payload of a packet, and Header what the wire adds to it
	// (InfiniBand's LRH, BTH, RETH and checksums).
	MTU, Header int

	// RPC is how long the memory node's core is busy with one request to
	// allocate: to notice it, allocate, and post a bind and a reply.
	// Derived from OneSidedMW, section 6.1.2: with chunks of 4 KiB and
	// values of 1 KiB RPC-MW reaches 6.0 % of Static-MR's peak, and the
	// node's core is what it waits for. The peak is taken to be the link's:
	// an insert of RACE hashing brings one WRITE of 1,048 bytes, four READs
	// and one CMP_SWAP, 1,312 bytes with their headers, so 9.53 million a
	// second; 6.0 % of that, four to a chunk, is a chunk in 7.0 µs.
	RPC time.Duration
	// Client is what a client's code does between two operations. Assumed.
	Client time.Duration
}

// Testbed returns the costs of the OneSidedMW paper's testbed.
func Testbed() Costs {
	return Costs{
		PCIeWrite: 335 * time.Nanosecond,
		PCIeRead:  370 * time.Nanosecond,
		PCIeRate:  13e9,
		Execute:   170 * time.Nanosecond,
		Bind:      1040 * time.Nanosecond,
		Units:     8,
		Window:    8,
		Inline:    220,
		Receive:   70 * time.Nanosecond,
		Contexts:  32,
		Wire:      215 * time.Nanosecond,
		LinkRate:  12.5e9,
		MTU:       4096,
		Header:    42,
		RPC:       7 * time.Microsecond,
		Client:    100 * time.Nanosecond,
	}
}

// check says what is wrong with c.
func (c *Costs) check() error {
	for _, d := range []struct {
		name string
		v    time.Duration
	}{
		{"PCIeWrite", c.PCIeWrite}, {"PCIeRead", c.PCIeRead}, {"Execute", c.Execute},
		{"Bind", c.Bind}, {"Receive", c.Receive}, {"Wire", c.Wire},
		{"RPC", c.RPC}, {"Client", c.Client},
	} {
		if d.v < 0 || d.v > time.Second {
			return fmt.Errorf("%s is %v, not between 0 and 1 s", d.name, d.v)
		}
	}
	for _, d := range []struct {
		name  string
		v, lo int64
		most  int64
	}{
		{"PCIeRate", c.PCIeRate, 1e6, 1e15}, {"LinkRate", c.LinkRate, 1e6, 1e15},
		{"Units", int64(c.Units), 1, 1 << 16}, {"Window", int64(c.Window), 1, maxWindow},
		{"Contexts", int64(c.Contexts), 1, 1 << 16}, {"MTU", int64(c.MTU), 64, 64 << 10},
		{"Header", int64(c.Header), 0, 1 << 16}, {"Inline", int64(c.Inline), 0, 1 << 16},
	} {
		if d.v < d.lo || d.v > d.most {
			return fmt.Errorf("%s is %d, not between %d and %d", d.name, d.v, d.lo, d.most)
		}
	}
	return nil
}

// maxWindow is the most entries of a fetch.
const maxWindow = 64

// transfer is how long size bytes take at a rate.
func transfer(size, rate int64) time.Duration {
	return time.Duration((size*int64(time.Second) + rate - 1) / rate)
}
