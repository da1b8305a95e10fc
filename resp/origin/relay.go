package origin

import "polder/resp/proto"

// replies passes on to the client what the origin answers, until there is no more.
func (c *client) replies() error {
	r := relay{c: c}
	buf := make([]byte, 16<<10)
	for {
		n, err := c.back.Read(buf)
		if n > 0 {
			if err := r.pass(buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// relay knows which command the bytes answer that it passes on.
type relay struct {
	c     *client
	skim  proto.Skimmer
	reply *passed // the command that the present reply answers; nil if none, as with a push
	wrong bool    // the present reply is an error
	plain bool    // replies are no longer matched with commands
}

// pass passes on b. Before the first reply in b that could let the client know more than the cache does, it waits for
// the cache. Once is enough: the commands of all replies in b have been executed by then.
func (r *relay) pass(b []byte) error {
	c, settled, start, ended := r.c, false, 0, 0
	send := func(to int) error {
		// The commands are taken off the list first: when the client has the replies, no command may be outstanding
		// any more for its next command.
		err := c.out.write(b[start:to], func() { c.finish(ended) })
		start, ended = to, 0
		return err
	}
	settle := func(at int) error {
		if settled {
			return nil
		}
		if err := send(at); err != nil {
			return err
		}
		c.t.stats.settled.Add(1)
		c.t.settle()
		settled = true
		return nil
	}
	for i := 0; i < len(b); {
		if !r.plain && r.skim.Idle() {
			if err := r.begin(b[i], ended); err != nil {
				return err
			}
			if r.reply != nil && r.reply.op == opSwap {
				c.t.hangUp()
			}
			if r.reply != nil && c.uncertain(r.reply) {
				if err := settle(i); err != nil {
					return err
				}
			}
		}
		if r.plain {
			if c.dirty.Load() {
				if err := settle(i); err != nil {
					return err
				}
			}
			break
		}
		n, done, err := r.skim.Skim(b[i:])
		if err != nil {
			return err
		}
		i += n
		if done && r.reply != nil {
			if !r.wrong {
				c.state.apply(r.reply)
			}
			ended++
		}
	}
	return send(len(b))
}

// begin finds out which command the reply answers that begins with the byte kind. ended is how many commands have
// been answered and are still on the list.
func (r *relay) begin(kind byte, ended int) error {
	r.reply, r.wrong = nil, kind == '-' || kind == '!'
	if kind == '>' {
		return nil
	}
	c := r.c
	if kind == '|' { // the reply behind the attributes may be an error
		c.state.lost = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sent) <= ended {
		return proto.ErrReply // a reply to nothing
	}
	p := c.sent[ended]
	if r.plain = p.op == opListen || p.op == opRaw; !r.plain {
		r.reply = &p
	}
	return nil
}

// uncertain reports whether the client must not get the reply to p before the cache has applied all invalidations
// that the origin sent before it.
func (c *client) uncertain(p *passed) bool {
	if p.wait || p.op == opSwap {
		return true
	}
	for _, key := range p.keys {
		if c.t.concerns(key) {
			return true
		}
	}
	return false
}

// finish takes n commands off the list. Their replies are about to be passed on, and nothing else can be sent before.
func (c *client) finish(n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	clear(c.sent[:n])
	if c.sent = c.sent[n:]; len(c.sent) == 0 {
		if cap(c.sent) > 1024 {
			c.sent = nil
		}
		c.answered.Broadcast()
	}
	c.mu.Unlock()
	c.outstanding.Add(-int64(n))
}
