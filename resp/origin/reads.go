package origin

import "polder/resp/proto"

// read answers a command from the cache, and reports false if it cannot. Keys that GET and MGET miss are fetched, and
// for GET also those of the GETs that the client has pipelined behind the command, which is size bytes long. Keys
// that the other commands miss are not fetched: their replies are short, but the values may be long.
func (c *client) read(o op, args [][]byte, size int) bool {
	if len(args) < 2 || len(args)-1 > maxChecked {
		return false
	}
	keys := args[1:]
	if o == opGetRange {
		keys = keys[:1]
	}
	for _, key := range keys {
		if len(key) > maxKey {
			return false
		}
	}
	switch {
	case o == opMGet:
	case o == opExists:
		return c.exists(keys)
	case o == opGetRange:
		return c.getRange(args)
	case len(args) != 2:
		return false
	case o == opStrLen:
		return c.strLen(keys[0])
	default:
		return c.get(keys[0], size)
	}
	if c.mget(keys) {
		c.t.stats.hits.Add(1)
		return true
	}
	if !c.fetch(keys) || !c.mget(keys) {
		return false
	}
	c.t.stats.misses.Add(1)
	return true
}

// get answers GET.
func (c *client) get(key []byte, size int) bool {
	count := &c.t.stats.hits
	k, value := c.t.lookup(key, &c.value)
	if k == kindUnknown {
		f := c.t.fetch(key)
		if f == nil {
			return false
		}
		c.prefetch(size)
		if c.flushLocal() != nil {
			return false // passing the command on will find the same error
		}
		<-f.done
		count = &c.t.stats.misses
		k, value = f.kind, f.value
	}
	switch k {
	case kindValue:
		c.local = proto.AppendBulk(c.local, value)
	case kindNull:
		c.local = proto.AppendNull(c.local, c.state.proto)
	default:
		return false
	}
	count.Add(1)
	return true
}

// mget answers MGET if all keys are cached.
func (c *client) mget(keys [][]byte) bool {
	mark := len(c.local)
	c.local = proto.AppendArray(c.local, len(keys))
	ok := c.atOnce(keys, func(k kind, value []byte) bool {
		switch {
		case k == kindValue && len(c.local)+len(value) <= c.s.cfg.OutputLimit:
			c.local = proto.AppendBulk(c.local, value)
		case k == kindNull:
			c.local = proto.AppendNull(c.local, c.state.proto)
		default:
			return false
		}
		return true
	})
	if !ok {
		c.local = c.local[:mark]
	}
	return ok
}

// atOnce calls each with what is cached of the keys, one after the other, until each returns false. It reports
// whether each has got all keys, and all as they were at one moment: nothing was forgotten meanwhile.
func (c *client) atOnce(keys [][]byte, each func(kind, []byte) bool) bool {
	applied := c.t.applied.Load()
	if applied%2 != 0 {
		return false
	}
	for _, key := range keys {
		if !each(c.t.lookup(key, &c.value)) {
			return false
		}
	}
	return c.t.applied.Load() == applied
}

// exists answers EXISTS. A key counts as often as the command names it.
func (c *client) exists(keys [][]byte) bool {
	n := int64(0)
	if !c.atOnce(keys, func(k kind, _ []byte) bool {
		if k == kindValue || k == kindLarge {
			n++
		}
		return k != kindUnknown
	}) {
		return false
	}
	c.local = proto.AppendInt(c.local, n)
	c.t.stats.hits.Add(1)
	return true
}

// strLen answers STRLEN.
func (c *client) strLen(key []byte) bool {
	k, value := c.t.lookup(key, &c.value)
	if k != kindValue && k != kindNull {
		return false
	}
	c.local = proto.AppendInt(c.local, int64(len(value)))
	c.t.stats.hits.Add(1)
	return true
}

// getRange answers GETRANGE key start end, where negative positions count from the end. If end lies before the
// beginning of the value, the command is left to the origin, which has its own rules for that.
func (c *client) getRange(args [][]byte) bool {
	if len(args) != 4 {
		return false
	}
	start, ok := proto.ParseInt(args[2])
	end, ok2 := proto.ParseInt(args[3])
	k, value := c.t.lookup(args[1], &c.value)
	if !ok || !ok2 || k != kindValue && k != kindNull {
		return false
	}
	n := int64(len(value))
	at := func(i int64) int64 {
		if i < 0 {
			i += n
		}
		return i
	}
	if start, end = min(max(at(start), 0), n), at(end); end < 0 {
		return false
	}
	c.local = proto.AppendBulk(c.local, value[start:max(start, min(end, n-1)+1)])
	c.t.stats.hits.Add(1)
	return true
}

// fetch fetches the keys that are not cached, and reports whether all may be cached now.
func (c *client) fetch(keys [][]byte) bool {
	var flights []*flight
	for _, key := range keys {
		if k, _ := c.t.lookup(key, &c.value); k == kindUnknown {
			f := c.t.fetch(key)
			if f == nil {
				return false
			}
			flights = append(flights, f)
		}
	}
	for _, f := range flights {
		<-f.done
		if f.kind == kindUnknown || f.kind == kindLarge {
			return false
		}
	}
	return true
}

// prefetch begins the flights of the GETs that the client has pipelined behind the present command, up to the first
// command that is no GET.
func (c *client) prefetch(size int) {
	p := proto.Parser{Limits: c.parser.Limits}
	defer p.Release()
	rest := c.in[c.at+size:]
	for range ahead {
		args, n, err := p.Next(rest)
		if err != nil || n == 0 || len(args) != 2 || ruleOf(args).op != opGet || len(args[1]) > maxKey {
			return
		}
		rest = rest[n:]
		if _, _, cached := c.t.m.Stat(args[1]); !cached && c.t.fetch(args[1]) == nil {
			return
		}
	}
}
