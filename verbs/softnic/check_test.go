package softnic

import (
	"testing"

	"polder/verbs"
)

// checkNIC checks what must hold between any two calls.
func checkNIC(t testing.TB, n *NIC) {
	t.Helper()
	refs := make(map[*region]int)
	attached := make(map[*allocator]int)
	for _, a := range n.allocators.items {
		if a != nil {
			for _, key := range []verbs.RKey{a.cfg.Table, a.cfg.Queue, a.cfg.Memory} {
				refs[n.keys.get(key)]++
			}
		}
	}
	for _, q := range n.qps.items {
		if q != nil && q.alloc != nil {
			attached[q.alloc.from]++
		}
	}
	for _, a := range n.allocators.items {
		if a != nil && a.refs != attached[a] {
			t.Fatalf("an allocator counts %d queue pairs, has %d", a.refs, attached[a])
		}
	}
	for _, q := range n.qps.items {
		if q == nil {
			continue
		}
		q.check()
		for _, r := range []*ring{&q.sq, &q.rq} {
			if r.mr != nil {
				refs[r.mr]++
			}
		}
		var prev *region
		for w := q.windows; w != nil; prev, w = w, w.next {
			if w.owner != q || w.qpn != q.num || w.mr == nil || w.prev != prev {
				t.Fatalf("QP %d: its list of windows is broken at %v", q.num, w.key)
			}
		}
	}
	for i, r := range n.keys.regions {
		switch {
		case r == nil:
			continue
		case int(r.key.Index()) != i:
			t.Fatalf("region %v has index %d", r.key, i)
		case r.window == 0:
			continue
		case r.mr == nil:
			if r.mem != nil || r.access != 0 || r.qpn != 0 || r.owner != nil {
				t.Fatalf("unbound window %v grants something", r.key)
			}
			continue
		}
		refs[r.mr]++
		if n.keys.get(r.mr.key) != r.mr || r.base < r.mr.base || r.base+uint64(len(r.mem)) > r.mr.base+uint64(len(r.mr.mem)) {
			t.Fatalf("window %v is not within region %v", r.key, r.mr.key)
		}
		if &r.mem[0] != &r.mr.mem[r.base-r.mr.base] {
			t.Fatalf("window %v has other memory than its region", r.key)
		}
	}
	for _, r := range n.keys.regions {
		if r != nil && r.window == 0 && r.refs != refs[r] {
			t.Fatalf("region %v counts %d references, has %d", r.key, r.refs, refs[r])
		}
	}
	for _, c := range n.cqs.items {
		if c != nil && c.queue.len() > c.depth {
			t.Fatalf("CQ %d of %d holds %d", c.num, c.depth, c.queue.len())
		}
	}
}
