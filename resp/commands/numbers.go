package commands

import (
	"math"
	"strconv"

	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

func Incr(c *Client, a [][]byte) error { return c.incr(a[1], 1) }

func Decr(c *Client, a [][]byte) error { return c.incr(a[1], -1) }

func IncrBy(c *Client, a [][]byte) error {
	by, ok := proto.ParseInt(a[2])
	if !ok {
		return reply.ErrNotInt
	}
	return c.incr(a[1], by)
}

func DecrBy(c *Client, a [][]byte) error {
	by, ok := proto.ParseInt(a[2])
	if !ok {
		return reply.ErrNotInt
	}
	if by == math.MinInt64 {
		return reply.ErrDecrOverflow
	}
	return c.incr(a[1], -by)
}

func (c *Client) incr(key []byte, by int64) error {
	e, found, err := c.GetString(key, c.Scratch[:0])
	if err != nil {
		return err
	}
	var v int64
	if found {
		keyspace.Reuse(&c.Scratch, e.Value)
		var ok bool
		if v, ok = proto.ParseInt(e.Value); !ok {
			return reply.ErrNotInt
		}
	}
	sum, ok := addInt(v, by)
	if !ok {
		return reply.ErrOverflow
	}
	e.Value = strconv.AppendInt(c.Scratch[:0], sum, 10)
	c.Scratch = e.Value
	e.Tag = keyspace.TagString
	if err := c.Put(key, e); err != nil {
		return err
	}
	c.Int(sum)
	return nil
}

// addInt adds without overflow.
func addInt(a, b int64) (int64, bool) {
	sum := a + b
	return sum, (sum > a) == (b > 0)
}

func IncrByFloat(c *Client, a [][]byte) error {
	e, found, err := c.GetString(a[1], c.Scratch[:0])
	if err != nil {
		return err
	}
	v := new(proto.LongDouble)
	if found {
		keyspace.Reuse(&c.Scratch, e.Value)
		var ok bool
		if v, ok = proto.ParseLongDouble(e.Value); !ok {
			return reply.ErrNotFloat
		}
	}
	by, ok := proto.ParseLongDouble(a[2])
	if !ok {
		return reply.ErrNotFloat
	}
	sum, ok := proto.AddLongDouble(v, by)
	if !ok {
		return reply.ErrNaN
	}
	e.Value = proto.AppendLongDouble(nil, sum)
	e.Tag = keyspace.TagText
	if err := c.Put(a[1], e); err != nil {
		return err
	}
	c.Bulk(e.Value)
	return nil
}
