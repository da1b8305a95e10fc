package commands

import (
	"slices"
	"strconv"

	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

// replyFields replies with an array or a map: head appends its head, and one appends what belongs to a field. The
// length in the head is the number of fields that were read, even if h counts another: a wrong length would shift all
// replies that follow.
func (c *Client) replyFields(h *keyspace.Hash, head func(n int), one func(field, value []byte)) error {
	start := len(c.Out)
	head(h.Len())
	body := len(c.Out)
	n := 0
	if err := c.Fields(h, func(f, v []byte) error { n++; one(f, v); return c.Over() }); err != nil {
		return err
	}
	if n != h.Len() {
		rest := slices.Clone(c.Out[body:])
		c.Out = c.Out[:start]
		head(n)
		c.Out = append(c.Out, rest...)
	}
	return nil
}

func HSet(c *Client, a [][]byte) error {
	n, err := c.hset(a, "hset")
	if err == nil {
		c.Int(n)
	}
	return err
}

func HMSet(c *Client, a [][]byte) error {
	_, err := c.hset(a, "hmset")
	if err == nil {
		c.OK()
	}
	return err
}

func (c *Client) hset(a [][]byte, name string) (int64, error) {
	if len(a)%2 == 1 {
		return 0, reply.Error("ERR wrong number of arguments for '" + name + "' command")
	}
	h, err := c.Hash(a[1])
	if err != nil {
		return 0, err
	}
	n, err := c.SetFields(&h, a[2:])
	return int64(n), err
}

func HSetNX(c *Client, a [][]byte) error {
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	_, ok, err := c.Field(&h, a[2])
	if err != nil {
		return err
	}
	if ok {
		c.Int(0)
		return nil
	}
	if _, err := c.SetFields(&h, a[2:]); err != nil {
		return err
	}
	c.Int(1)
	return nil
}

func HGet(c *Client, a [][]byte) error {
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	return c.replyField(&h, a[2])
}

func (c *Client) replyField(h *keyspace.Hash, field []byte) error {
	v, ok, err := c.Field(h, field)
	if err != nil {
		return err
	}
	if ok {
		c.Bulk(v)
	} else {
		c.Null()
	}
	return c.Over()
}

func HMGet(c *Client, a [][]byte) error {
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	c.Array(len(a) - 2)
	for _, f := range a[2:] {
		if err := c.replyField(&h, f); err != nil {
			return err
		}
	}
	return nil
}

func HGetAll(c *Client, a [][]byte) error {
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	return c.replyFields(&h, c.Map, func(f, v []byte) { c.Bulk(f); c.Bulk(v) })
}

func HKeys(c *Client, a [][]byte) error {
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	return c.replyFields(&h, c.Array, func(f, _ []byte) { c.Bulk(f) })
}

func HVals(c *Client, a [][]byte) error {
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	return c.replyFields(&h, c.Array, func(_, v []byte) { c.Bulk(v) })
}

func HDel(c *Client, a [][]byte) error {
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	n, err := c.RemoveFields(&h, a[2:])
	if err == nil {
		c.Int(int64(n))
	}
	return err
}

func HExists(c *Client, a [][]byte) error {
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	_, ok, err := c.Field(&h, a[2])
	if err == nil {
		c.Bool(ok)
	}
	return err
}

func HLen(c *Client, a [][]byte) error {
	h, err := c.Hash(a[1])
	if err == nil {
		c.Int(int64(h.Len()))
	}
	return err
}

func HStrLen(c *Client, a [][]byte) error {
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	v, _, err := c.Field(&h, a[2])
	if err == nil {
		c.Int(int64(len(v)))
	}
	return err
}

func HIncrBy(c *Client, a [][]byte) error {
	by, ok := proto.ParseInt(a[3])
	if !ok {
		return reply.ErrNotInt
	}
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	old, ok, err := c.Field(&h, a[2])
	if err != nil {
		return err
	}
	var v int64
	if ok {
		if v, ok = proto.ParseInt(old); !ok {
			return reply.ErrHashNotInt
		}
	}
	sum, ok := addInt(v, by)
	if !ok {
		return reply.ErrOverflow
	}
	if _, err := c.SetFields(&h, keyspace.Pairs{a[2], strconv.AppendInt(nil, sum, 10)}); err != nil {
		return err
	}
	c.Int(sum)
	return nil
}

func HIncrByFloat(c *Client, a [][]byte) error {
	by, ok := proto.ParseLongDouble(a[3])
	if !ok {
		return reply.ErrNotFloat
	}
	if by.IsInf() {
		return reply.Error("ERR value is NaN or Infinity")
	}
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	old, ok, err := c.Field(&h, a[2])
	if err != nil {
		return err
	}
	v := new(proto.LongDouble)
	if ok {
		if v, ok = proto.ParseLongDouble(old); !ok {
			return reply.ErrHashNotFloat
		}
	}
	sum, ok := proto.AddLongDouble(v, by)
	if !ok {
		return reply.ErrNaN
	}
	text := proto.AppendLongDouble(nil, sum)
	if _, err := c.SetFields(&h, keyspace.Pairs{a[2], text}); err != nil {
		return err
	}
	c.Bulk(text)
	return nil
}
