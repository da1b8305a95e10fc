package softnic

import (
	"fmt"

	"polder/verbs"
)

// NIC is the engine. See the package comment.
type NIC struct {
	cfg      Config
	out      Output
	counters Counters

	pds  table[domain]
	cqs  table[cq]
	qps  table[qp]
	keys keyTable

	allocators table[allocator]
	answer     [verbs.AllocAnswerSize]byte // of the ALLOC being executed

	links map[Link]*link // looked up, never iterated over

	runHead, runTail *qp        // queue pairs with something to do, linked by nextRun
	pacer            func(Task) // if set, gets them instead
	overrun          []*cq

	pkt     Packet      // the packet being emitted: there is only ever one
	word    [8]byte     // payload of a READ response of one aligned word
	scratch []byte      // payload gathered from several SGEs; MTU bytes once needed
	sgl     []verbs.SGE // of the request that begins; MaxSGE of room
}

// domain is a protection domain.
type domain struct {
	num  uint32
	refs int // regions, windows and queue pairs in it
}

// link is what the NIC knows about a link.
type link struct {
	id      Link
	blocked []*qp // waiting for Resume, in order
}

// New returns a NIC that sends through out.
func New(cfg Config, out Output) (*NIC, error) {
	cfg, err := cfg.normalized()
	if err != nil {
		return nil, fmt.Errorf("cannot create a NIC: %w", err)
	}
	n := &NIC{cfg: cfg, out: out, links: make(map[Link]*link)}
	n.pds.limit = maxSlots
	n.cqs.limit = cfg.MaxCQs
	n.qps.limit = cfg.MaxQPs
	n.keys.init(cfg.MaxKeys)
	n.allocators.limit = maxSlots
	n.sgl = make([]verbs.SGE, 0, cfg.MaxSGE)
	return n, nil
}

// Counters returns the totals so far.
func (n *NIC) Counters() Counters { return n.counters }

// AllocPD allocates a protection domain.
func (n *NIC) AllocPD() (uint32, error) {
	d := &domain{}
	num, ok := n.pds.add(d)
	if !ok {
		return 0, fmt.Errorf("cannot allocate a protection domain: %w", verbs.ErrNoResources)
	}
	d.num = num
	return num, nil
}

// DeallocPD frees a protection domain with nothing left in it.
func (n *NIC) DeallocPD(num uint32) error {
	d := n.pds.get(num)
	if d == nil {
		return fmt.Errorf("cannot close protection domain %d: no such domain: %w", num, verbs.ErrInvalid)
	}
	if d.refs > 0 {
		return fmt.Errorf("cannot close protection domain %d: %d objects are left in it: %w", num, d.refs, verbs.ErrBusy)
	}
	n.pds.remove(num)
	return nil
}

// burst is how many packets and work requests a queue pair may handle before
// the next one has its turn.
const burst = 64

// payloadUnit is how many bytes of payload cost as much as a work request.
const payloadUnit = 4096

// Run does what there is to do, up to Config.RunBudget packets and work
// requests, and reports whether anything is left. Call it after any other
// method that may have given the NIC something to do.
func (n *NIC) Run() (more bool) {
	budget := n.cfg.RunBudget
	for {
		if len(n.overrun) > 0 {
			n.failOverrun()
		}
		q := n.runHead
		if q == nil {
			return false
		}
		if budget <= 0 {
			return true
		}
		if n.runHead = q.nextRun; n.runHead == nil {
			n.runTail = nil
		}
		q.nextRun, q.queued = nil, false
		budget -= n.serve(q, min(budget, burst))
	}
}

// Pending reports whether Run has anything to do.
func (n *NIC) Pending() bool { return n.runHead != nil || len(n.overrun) > 0 }

// schedule puts q at the end of the run queue, unless it is there.
func (n *NIC) schedule(q *qp) {
	if q.queued || q.blocked {
		return
	}
	q.queued = true
	if n.pacer != nil {
		n.pacer(Task{q})
		return
	}
	if n.runTail == nil {
		n.runHead = q
	} else {
		n.runTail.nextRun = q
	}
	n.runTail = q
}

// serve lets q handle up to budget packets and work requests, responses
// first, and reports what that cost: at least 1, and more for payload.
//
// Preconditions: budget > 0.
func (n *NIC) serve(q *qp, budget int) int {
	before := n.counters.PayloadSent
	if q.downOwed {
		q.downOwed = false
		n.emit(q, &Packet{Kind: KindDown})
	}
	used := n.respond(q, budget)
	if used < budget {
		used += n.execute(q, budget-used)
	}
	if used >= budget && q.hasWork() {
		n.schedule(q)
	}
	q.check()
	return max(used, 1) + int((n.counters.PayloadSent-before)/payloadUnit)
}

// ready reports whether q may emit a packet now; if not, q is suspended until
// Resume.
func (n *NIC) ready(q *qp) bool {
	if q.link.id == Loopback || n.out.Ready(q.link.id) {
		return true
	}
	if !q.blocked {
		q.blocked = true
		q.link.blocked = append(q.link.blocked, q)
	}
	return false
}

// emit sends p to q's peer.
func (n *NIC) emit(q *qp, p *Packet) {
	p.DestQP = q.remote
	n.counters.PacketsSent++
	n.counters.PayloadSent += uint64(len(p.Payload))
	if q.link.id == Loopback {
		n.Receive(Loopback, p)
		return
	}
	n.out.Send(q.link.id, p)
}

// Resume tells the NIC that a link is Ready again.
func (n *NIC) Resume(id Link) {
	l := n.links[id]
	if l == nil {
		return
	}
	for i, q := range l.blocked {
		l.blocked[i] = nil
		q.blocked = false
		n.schedule(q)
	}
	l.blocked = l.blocked[:0]
}

// LinkDown tells the NIC that a link is gone: every queue pair that was
// connected over it goes to the error state.
func (n *NIC) LinkDown(id Link) {
	if id == Loopback {
		return
	}
	for _, q := range n.qps.items {
		if q != nil && q.link != nil && q.link.id == id {
			n.peerGone(q)
		}
	}
	n.Resume(id) // what is blocked has nothing left to send
	delete(n.links, id)
}

// Disconnect tells the peer at the other end of a link that its queue pair
// has no counterpart here. It is sent during the call.
func (n *NIC) Disconnect(id Link, remoteQPN uint32) {
	if id != Loopback {
		n.counters.PacketsSent++
		n.out.Send(id, &Packet{Kind: KindDown, DestQP: remoteQPN & psnMask})
	}
}
