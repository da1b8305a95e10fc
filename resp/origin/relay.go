package origin

import "polder/resp/proto"

// replies passes on what the origin answers to the client, until there is no more.
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

// relay knows which command the bytes at hand answer.
type relay struct {
	c     *client
	skim  proto.Skimmer
	reply *passed // what the reply at hand answers; nil if it answers nothing, such as a push
	wrong bool    // the reply at hand is an error
	plain bool    // replies are not matched any more
}

// pass passes on b. Before the first reply in it that could let the client know more than
// the cache does, it waits for the cache; all replies in b are of commands that have been
// executed by then, so that once is enough.
func (r *relay) pass(b []byte) error {
	c, settled, start, ended := r.c, false, 0, 0
	send := func(to int) error {
		// The commands are taken off the list first: when the client has the replies,
		// its next command must find none outstanding.
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

// begin finds out what the reply answers that begins with kind. Ended are those of the
// commands that have been answered and are not yet taken off the list.
func (r *relay) begin(kind byte, ended int) error {
	r.reply, r.wrong = nil, kind == '-' || kind == '!'
	if kind == '>' {
		return nil
	}
	c := r.c
	if kind == '|' { // what is behind the attributes may be an error
		c.state.lost = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sent) <= ended {
		return proto.ErrReply // to nothing
	}
	p := c.sent[ended]
	if r.plain = p.op == opListen || p.op == opRaw; !r.plain {
		r.reply = &p
	}
	return nil
}

// uncertain reports whether the client may not be told the reply to p before the cache
// has been told what the origin knew then.
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

// finish takes n commands off the list: their replies are about to be passed on, and
// nothing else can be sent before.
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
