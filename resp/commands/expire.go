package commands

import (
	"math"
	"time"

	"polder/far"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

func Expire(c *Client, a [][]byte) error    { return c.expire(a, 1000, true, "expire") }
func PExpire(c *Client, a [][]byte) error   { return c.expire(a, 1, true, "pexpire") }
func ExpireAt(c *Client, a [][]byte) error  { return c.expire(a, 1000, false, "expireat") }
func PExpireAt(c *Client, a [][]byte) error { return c.expire(a, 1, false, "pexpireat") }

type expireCond uint8

const (
	condNX expireCond = 1 << iota
	condXX
	condGT
	condLT
)

func parseExpireCond(a [][]byte) (c expireCond, err error) {
	for _, w := range a {
		switch {
		case proto.Is(w, "nx"):
			c |= condNX
		case proto.Is(w, "xx"):
			c |= condXX
		case proto.Is(w, "gt"):
			c |= condGT
		case proto.Is(w, "lt"):
			c |= condLT
		default:
			return c, reply.Error("ERR Unsupported option " + proto.Clip(w, len(w)))
		}
	}
	if c&condNX != 0 && c != condNX {
		return c, reply.Error("ERR NX and XX, GT or LT options at the same time are not compatible")
	}
	if c&condGT != 0 && c&condLT != 0 {
		return c, reply.Error("ERR GT and LT options at the same time are not compatible")
	}
	return c, nil
}

// allows reports whether the condition allows to change a key's expiry from old (zero: it never expires) to at, in
// milliseconds since 1970.
func (c expireCond) allows(old time.Time, at int64) bool {
	switch {
	case c&condNX != 0 && !old.IsZero(),
		c&condXX != 0 && old.IsZero(),
		c&condGT != 0 && (old.IsZero() || at <= old.UnixMilli()),
		c&condLT != 0 && !old.IsZero() && at >= old.UnixMilli():
		return false
	}
	return true
}

func (c *Client) expire(a [][]byte, unit int64, relative bool, name string) error {
	cond, err := parseExpireCond(a[3:])
	if err != nil {
		return err
	}
	at, ok := proto.ParseInt(a[2])
	if !ok {
		return reply.ErrNotInt
	}
	if at > math.MaxInt64/unit || at < math.MinInt64/unit {
		return reply.Error("ERR invalid expire time in '" + name + "' command")
	}
	at *= unit
	if relative {
		now := nowMilli()
		if at > math.MaxInt64-now {
			return reply.Error("ERR invalid expire time in '" + name + "' command")
		}
		at += now
	}
	var e far.Entry
	var found bool
	past := at <= nowMilli()
	if past {
		e, _, found, err = c.Stat(a[1]) // its value need not be read
	} else {
		e, found, err = c.Get(a[1], c.Scratch[:0])
		keyspace.Reuse(&c.Scratch, e.Value)
	}
	if err != nil {
		return err
	}
	if !found || !cond.allows(e.Expire, at) {
		c.Int(0)
		return nil
	}
	if past {
		_, err = c.Del(a[1])
	} else {
		e.Expire = expireAt(at)
		err = c.Put(a[1], e)
	}
	if err == nil {
		c.Int(1)
	}
	return err
}

func Persist(c *Client, a [][]byte) error {
	e, found, err := c.Get(a[1], c.Scratch[:0])
	if err != nil {
		return err
	}
	keyspace.Reuse(&c.Scratch, e.Value)
	if !found || e.Expire.IsZero() {
		c.Int(0)
		return nil
	}
	e.Expire = time.Time{}
	if err := c.Put(a[1], e); err != nil {
		return err
	}
	c.Int(1)
	return nil
}

func TTL(c *Client, a [][]byte) error {
	return c.ttl(a[1], func(ms int64) int64 { return (max(0, ms-nowMilli()) + 500) / 1000 })
}

func PTTL(c *Client, a [][]byte) error {
	return c.ttl(a[1], func(ms int64) int64 { return max(0, ms-nowMilli()) })
}

func ExpireTime(c *Client, a [][]byte) error {
	return c.ttl(a[1], func(ms int64) int64 { return (ms + 500) / 1000 })
}

func PExpireTime(c *Client, a [][]byte) error {
	return c.ttl(a[1], func(ms int64) int64 { return ms })
}

func (c *Client) ttl(key []byte, show func(ms int64) int64) error {
	e, _, found, err := c.Stat(key)
	switch {
	case err != nil:
		return err
	case !found:
		c.Int(-2)
	case e.Expire.IsZero():
		c.Int(-1)
	default:
		c.Int(show(e.Expire.UnixMilli()))
	}
	return nil
}
