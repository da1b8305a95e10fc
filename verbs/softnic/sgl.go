package softnic

import "polder/verbs"

// cursor walks along an SGL.
type cursor struct {
	sgl []verbs.SGE
	i   int    // the SGE to go on with
	off uint32 // in it
}

func (c *cursor) advance(k uint32) {
	if c.off += k; c.off == c.sgl[c.i].Length {
		c.i, c.off = c.i+1, 0
	}
}

// skipEmpty moves on to an SGE with bytes left.
//
// Preconditions: there is one.
func (c *cursor) skipEmpty() {
	for c.off == c.sgl[c.i].Length {
		c.i, c.off = c.i+1, 0
	}
}

// set makes c begin sgl, which is copied.
func (c *cursor) set(sgl []verbs.SGE) {
	c.sgl, c.i, c.off = append(c.sgl[:0], sgl...), 0, 0
}

// checkSGL reports whether every SGE may be accessed with the right need.
func (n *NIC) checkSGL(pd *domain, sgl []verbs.SGE, need verbs.Access) bool {
	for i := range sgl {
		if s := &sgl[i]; s.Length > 0 && n.local(pd, s.LKey, s.Addr, uint64(s.Length), need) == nil {
			return false
		}
	}
	return true
}

// gather returns the next size bytes: a part of registered memory where they
// lie together, the scratch buffer otherwise; or false if an SGE is not
// accessible any more.
//
// Preconditions: c has as many bytes left; size <= MTU.
func (n *NIC) gather(pd *domain, c *cursor, size uint32) ([]byte, bool) {
	if size == 0 {
		return nil, true
	}
	c.skipEmpty()
	if s := &c.sgl[c.i]; s.Length-c.off >= size {
		mem := n.local(pd, s.LKey, s.Addr+uint64(c.off), uint64(size), 0)
		c.advance(size)
		return mem, mem != nil
	}
	if n.scratch == nil {
		n.scratch = make([]byte, n.cfg.MTU)
	}
	out := n.scratch[:0]
	for left := size; left > 0; {
		c.skipEmpty()
		s := &c.sgl[c.i]
		k := min(left, s.Length-c.off)
		mem := n.local(pd, s.LKey, s.Addr+uint64(c.off), uint64(k), 0)
		if mem == nil {
			return nil, false
		}
		out = append(out, mem...)
		c.advance(k)
		left -= k
	}
	return out, true
}

// scatter stores data, and reports whether every SGE was accessible.
//
// Preconditions: c has at least len(data) bytes left.
func (n *NIC) scatter(pd *domain, c *cursor, data []byte) bool {
	for len(data) > 0 {
		c.skipEmpty()
		s := &c.sgl[c.i]
		k := min(uint32(len(data)), s.Length-c.off)
		mem := n.local(pd, s.LKey, s.Addr+uint64(c.off), uint64(k), verbs.AccessLocalWrite)
		if mem == nil {
			return false
		}
		move(mem, data[:k])
		c.advance(k)
		data = data[k:]
	}
	return true
}
