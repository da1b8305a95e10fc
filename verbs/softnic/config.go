package softnic

import (
	"fmt"

	"polder/verbs"
)

// MaxRdAtom is how many READs and atomics a queue pair may have outstanding,
// and how many a responder takes: a constant of the protocol.
const MaxRdAtom = 128

// Link is a connection to a peer, numbered by whoever carries the packets.
type Link uint32

// Loopback is the link of queue pairs that are connected on the same NIC.
const Loopback Link = 0

// Output is what a NIC's driver provides. Its methods are called from inside
// the NIC's; they must not call back into it.
type Output interface {
	// Send puts a packet on a link. The packet, and its payload, which
	// aliases registered memory, are valid during the call only.
	Send(Link, *Packet)
	// Ready reports whether another packet may be sent on the link. After
	// it has said no, the driver calls NIC.Resume when that has changed.
	Ready(Link) bool
	// Completion says that a completion was added to a CQ. It is called
	// for every one.
	Completion(cqn uint32)
	// Event raises an asynchronous event.
	Event(verbs.AsyncEvent)
}

// Config sizes a NIC. The zero value of every field is a sensible default.
type Config struct {
	Name       string // for DeviceAttr; "softnic" if empty
	MTU        int    // most payload bytes in a packet it sends; MaxPayload
	MaxQPs     int    // 65535, which is also the most
	MaxCQs     int    // 65535
	MaxKeys    int    // most MRs and MWs together; 1<<24 - 1, which is also the most
	MaxQPDepth int    // 32768
	MaxCQDepth int    // 1<<22
	MaxSGE     int    // 32
	MaxMsgSize uint32 // 1 GiB
	// Prefetch makes the NIC read an entry of a work queue when it is enabled, or posted to a queue that is not
	// managed, as RNICs may. Otherwise it reads the entry when it executes it.
	Prefetch  bool
	RunBudget int // most packets, work requests and 4 KiB of payload that one Run handles; 4096
}

// normalized returns c with its defaults filled in, or says what is wrong.
func (c Config) normalized() (Config, error) {
	if c.Name == "" {
		c.Name = "softnic"
	}
	for _, f := range []struct {
		name        string
		v           *int
		def, lo, hi int
	}{
		{"MTU", &c.MTU, MaxPayload, 64, MaxPayload},
		{"MaxQPs", &c.MaxQPs, maxSlots, 1, maxSlots},
		{"MaxCQs", &c.MaxCQs, maxSlots, 1, maxSlots},
		{"MaxKeys", &c.MaxKeys, maxKeys, 1, maxKeys},
		{"MaxQPDepth", &c.MaxQPDepth, 32768, 1, 1 << 20},
		{"MaxCQDepth", &c.MaxCQDepth, 1 << 22, 1, 1 << 26},
		{"MaxSGE", &c.MaxSGE, 32, 2, 256},
		{"RunBudget", &c.RunBudget, 4096, 1, 1 << 30},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < f.lo || *f.v > f.hi {
			return c, fmt.Errorf("%s is %d, not between %d and %d: %w", f.name, *f.v, f.lo, f.hi, verbs.ErrInvalid)
		}
	}
	if c.MaxMsgSize == 0 {
		c.MaxMsgSize = 1 << 30
	}
	return c, nil
}

// Attr tells what the NIC can do.
func (n *NIC) Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{
		Name:        n.cfg.Name,
		MaxQP:       n.cfg.MaxQPs,
		MaxCQ:       n.cfg.MaxCQs,
		MaxQPDepth:  n.cfg.MaxQPDepth,
		MaxSGE:      n.cfg.MaxSGE,
		MaxMsgSize:  n.cfg.MaxMsgSize,
		MaxRdAtom:   MaxRdAtom,
		WaitEnable:  true,
		Prefetches:  n.cfg.Prefetch,
		BoundsMW:    true,
		Type1Keys:   true,
		HostAtomics: true,
		Alloc:       true,
	}
}

// Counters are totals since the NIC was made.
type Counters struct {
	PacketsSent, PacketsReceived uint64
	PayloadSent, PayloadReceived uint64 // bytes
	PacketsDropped               uint64 // no queue pair wanted them
	WorkRequests                 uint64 // executed from send queues
	Completions                  uint64
	Binds, Invalidations         uint64
	Allocs, Frees                uint64 // by ALLOC and FREE
	AccessErrors                 uint64 // requests of peers that violated protection
	RequestErrors                uint64 // requests of peers that were invalid
	LocalErrors                  uint64 // local work requests that failed
}
