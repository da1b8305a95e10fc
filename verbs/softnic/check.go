package softnic

import (
	"fmt"

	"polder/internal/invariants"
	"polder/verbs"
)

// check panics if q is not what a queue pair must be between two calls. It
// costs nothing unless invariants are enabled.
func (q *qp) check() {
	if !invariants.Enabled {
		return
	}
	for _, r := range []*ring{&q.sq, &q.rq} {
		if r.done > r.next || r.next-r.done > r.depth || !r.managed && r.next > r.posted {
			panic(fmt.Sprintf("BUG: QP %d: done %d, next %d, posted %d of %d", q.num, r.done, r.next, r.posted, r.depth))
		}
	}
	if q.req.reads.len() > MaxRdAtom || q.rsp.responses.len() > MaxRdAtom {
		panic(fmt.Sprintf("BUG: QP %d: %d reads, %d responses", q.num, q.req.reads.len(), q.rsp.responses.len()))
	}
	if q.state == verbs.StateError &&
		(q.req.reads.len() > 0 || q.req.msg.active || q.rsp.msg.kind != 0 || q.sq.done != q.sq.next || q.waiting != nil) {
		panic(fmt.Sprintf("BUG: QP %d is in the error state and not at rest", q.num))
	}
}
