package memnode

import (
	"errors"
	"fmt"

	"polder/memnode/wire"
	"polder/verbs"
)

// serve takes c's completions and answers its requests. An error means that c
// must be disconnected.
func (n *Node) serve(c *client) error {
	var wcs [2 * credits]verbs.WC
	for {
		k := c.cq.Poll(wcs[:])
		if k == 0 {
			return nil
		}
		for _, wc := range wcs[:k] {
			if err := wc.Err(); err != nil {
				return fmt.Errorf("management queue pair failed: %w", err)
			}
			if wc.ID&replyID != 0 {
				c.replies = append(c.replies, uint8(wc.ID))
			} else {
				c.waiting = append(c.waiting, received{slot: uint8(wc.ID), size: uint16(wc.ByteLen)})
			}
		}
		for len(c.waiting) > 0 && len(c.replies) > 0 {
			r := c.waiting[0]
			c.waiting = append(c.waiting[:0], c.waiting[1:]...)
			if err := n.answer(c, r); err != nil {
				return err
			}
		}
	}
}

var errShort = errors.New("request without a header")

// answer executes the request r.
func (n *Node) answer(c *client, r received) error {
	var req wire.Request
	badErr := req.Decode(c.buffer(int(r.slot))[:r.size])
	if badErr != nil && r.size < wire.RequestHeader {
		n.counters.malformed.Add(1)
		return errShort
	}
	reply := wire.Reply{Op: req.Op &^ 0x80, ID: req.ID}
	n.grants = n.grants[:0]
	if badErr != nil {
		n.counters.malformed.Add(1)
		n.warn("malformed request", "peer", c.conn.RemoteAddr(), "error", badErr)
		reply.Status = wire.StatusBad
	} else if c.access == nil {
		reply.Status = wire.StatusNoAccess
	} else {
		switch req.Op {
		case wire.OpAlloc:
			reply.Status = n.alloc(c, req.N)
		case wire.OpFree:
			reply.Status, reply.N = n.free(c, &req)
		case wire.OpOwned:
			reply.Status = n.owned(c, int(req.Skip), req.N)
		}
	}
	n.countChunks() // before the client can know
	reply.Space = n.space(c.session)
	// The request has been used up: its buffer is the client's next credit.
	if err := c.postRecv(r.slot); err != nil {
		return err
	}
	slot := c.replies[len(c.replies)-1]
	c.replies = c.replies[:len(c.replies)-1]
	msg := wire.AppendReply(c.buffer(credits + int(slot))[:0], &reply, n.grants)
	return c.postReply(slot, len(msg))
}

// space is what s may still allocate.
func (n *Node) space(s *session) wire.Space {
	return wire.Space{
		Free:   uint32(n.chunks.available()),
		Budget: uint32(n.cfg.budget() - len(s.chunks)),
	}
}

// alloc lends c up to want chunks, and leaves their keys in n.grants.
func (n *Node) alloc(c *client, want int) wire.Status {
	s := c.session
	left := n.cfg.budget() - len(s.chunks)
	if left == 0 {
		n.counters.noMemory.Add(1)
		return wire.StatusBudget
	}
	n.ids = n.ids[:0]
	for range min(want, left) {
		i, ok := n.chunks.take()
		if !ok {
			break
		}
		n.ids = append(n.ids, i)
	}
	if len(n.ids) == 0 {
		n.counters.noMemory.Add(1)
		return wire.StatusNoMemory
	}
	done, err := n.chunks.bind(c.access, n.ids)
	for _, i := range n.ids[done:] {
		n.chunks.untake(i)
	}
	if done == 0 {
		n.warn("cannot bind windows", "peer", c.conn.RemoteAddr(), "error", err)
		return wire.StatusFailed
	}
	for _, i := range n.ids[:done] {
		n.chunks.lend(i, s)
		n.grant(i)
	}
	n.counters.allocs.Add(int64(done))
	return wire.StatusOK
}

func (n *Node) grant(i uint32) {
	n.grants = append(n.grants, wire.Grant{Chunk: i, Key: n.chunks.all[i].mw.RKey()})
}

// free takes the chunks of r's list back if all of them are c's, and otherwise
// none.
func (n *Node) free(c *client, r *wire.Request) (wire.Status, int) {
	n.ids = n.ids[:0]
	for k := range r.N {
		i := r.Chunk(k)
		if !n.chunks.ownedBy(i, c.session) {
			n.counters.notOwner.Add(1)
			n.warn("client freed what is not its own", "peer", c.conn.RemoteAddr(), "chunk", i)
			return wire.StatusNotOwner, 0
		}
		n.ids = append(n.ids, i)
	}
	if duplicates(n.ids) {
		n.counters.notOwner.Add(1)
		n.warn("client freed a chunk twice at once", "peer", c.conn.RemoteAddr())
		return wire.StatusNotOwner, 0
	}
	n.chunks.unbind(n.ids)
	for _, i := range n.ids {
		n.chunks.reclaim(i)
	}
	n.counters.frees.Add(int64(len(n.ids)))
	return wire.StatusOK, len(n.ids)
}

// duplicates reports whether a number occurs twice in ids, at most
// wire.MaxBatch of them.
func duplicates(ids []uint32) bool {
	for k, i := range ids {
		for _, j := range ids[:k] {
			if i == j {
				return true
			}
		}
	}
	return false
}

// owned lists up to max of c's chunks after the first skip, bound to its
// access queue pair, in n.grants.
func (n *Node) owned(c *client, skip, max int) wire.Status {
	all := c.session.chunks
	if skip > len(all) {
		return wire.StatusBad
	}
	page := all[skip:min(len(all), skip+max)]
	n.ids = n.ids[:0]
	for _, i := range page {
		if !n.chunks.all[i].bound {
			n.ids = append(n.ids, i)
		}
	}
	if done, err := n.chunks.bind(c.access, n.ids); done < len(n.ids) {
		n.warn("cannot bind windows", "peer", c.conn.RemoteAddr(), "error", err)
		return wire.StatusFailed
	}
	for _, i := range page {
		n.grant(i)
	}
	return wire.StatusOK
}
