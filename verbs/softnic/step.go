package softnic

import (
	"encoding/binary"
	"slices"
)

// Runnable lists the queue pairs that have something to do, in the order in
// which Run would serve them. Runnable and RunOne are for schedulers that try
// other orders than Run's: model checkers.
func (n *NIC) Runnable() []uint32 {
	var nums []uint32
	for q := n.runHead; q != nil; q = q.nextRun {
		nums = append(nums, q.num)
	}
	return nums
}

// RunOne has one queue pair of Runnable's do one thing: send a packet, or
// execute a work request.
func (n *NIC) RunOne(num uint32) {
	for at, prev := &n.runHead, (*qp)(nil); *at != nil; prev, at = *at, &(*at).nextRun {
		q := *at
		if q.num != num {
			continue
		}
		if *at = q.nextRun; n.runTail == q {
			n.runTail = prev
		}
		q.nextRun, q.queued = nil, false
		n.serve(q, 1)
		return
	}
}

// AppendState appends to b the state that decides what every queue pair will do, apart from registered memory: NICs
// with equal states and equal memory go on alike. READs whose data is on its way are distinguished by number only.
func (n *NIC) AppendState(b []byte) []byte {
	le := binary.LittleEndian
	runnable := n.Runnable()
	slices.Sort(runnable) // RunOne does not look at the order
	for _, num := range runnable {
		b = le.AppendUint32(b, num)
	}
	for _, q := range n.qps.items {
		if q == nil {
			continue
		}
		b = le.AppendUint32(b, q.num)
		b = append(b, byte(q.state))
		for _, r := range []*ring{&q.sq, &q.rq} {
			for _, v := range []uint64{r.posted, r.enabled, r.next, r.done} {
				b = le.AppendUint64(b, v)
			}
			b = append(b, r.fetched...)
		}
		b = le.AppendUint32(b, uint32(q.req.reads.len())<<16|uint32(q.rsp.responses.len()))
		b = le.AppendUint32(b, q.req.una)
	}
	for _, c := range n.cqs.items {
		if c != nil {
			b = le.AppendUint64(b, c.successes)
		}
	}
	return b
}

// Position is the index of the work request that a queue pair executes next,
// and how many responses it owes its peer.
func (n *NIC) Position(num uint32) (next uint64, responses int) {
	q := n.qps.get(num)
	if q == nil {
		return 0, 0
	}
	return q.sq.next, q.rsp.responses.len()
}
