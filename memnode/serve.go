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
	var grants []wire.Grant
	var list []uint32
	if badErr != nil {
		n.counters.malformed.Add(1)
		n.log.Warn("malformed request", "peer", c.conn.RemoteAddr(), "error", badErr)
		reply.Status = wire.StatusBad
	} else if req.Op == wire.OpMayVanish || req.Op == wire.OpMustStay || req.Op == wire.OpVanished {
		list = n.concede(c, &req, &reply)
	} else {
		grants = n.manager.answer(c, &req, &reply)
	}
	// The request has been read: its buffer becomes the client's next credit.
	if err := c.postRecv(r.slot); err != nil {
		return err
	}
	return n.sendListed(c, &reply, grants, list)
}

// notify sends c a notice.
//
// Preconditions: a reply buffer is free.
func (n *Node) notify(c *client, status wire.Status, failed uint32) error {
	return n.send(c, &wire.Reply{Op: wire.OpNotice, ID: failed, Status: status}, nil)
}

// send sends c a reply.
//
// Preconditions: a reply buffer is free.
func (n *Node) send(c *client, reply *wire.Reply, grants []wire.Grant) error {
	return n.sendListed(c, reply, grants, nil)
}

// sendListed sends c a reply with a list of grants, or with a list of chunks.
func (n *Node) sendListed(c *client, reply *wire.Reply, grants []wire.Grant, list []uint32) error {
	reply.Space = n.manager.space(c.session)
	slot := c.replies[len(c.replies)-1]
	c.replies = c.replies[:len(c.replies)-1]
	msg := c.buffer(credits + int(slot))[:0]
	if len(list) > 0 {
		msg = wire.AppendVanished(msg, reply, list)
	} else {
		msg = wire.AppendReply(msg, reply, grants)
	}
	return c.postReply(slot, len(msg))
}
