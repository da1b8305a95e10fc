package commands

import (
	"time"

	"polder/far"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

// replyString appends the value of a string key as a bulk string; or null if there is no such key. The value is
// copied once, from the map to c.Out: in front of it, replyString leaves as much room for the header as the last
// value's header took. For a large value it first makes room of the value's size.
func (c *Client) replyString(key []byte) (e far.Entry, found bool, err error) {
	const blank = "$0123456789012\r\n"
	start, size := len(c.Out), 0
	c.Out = append(c.Out, blank[:c.hdr]...)
	e, size, found, err = c.GetInto(key, c.Out)
	if size > 0 && err == nil {
		c.hdr = proto.BulkHeaderLen(size)
		if c.Out = c.Out[:start]; start-c.Mark+c.hdr+size+2 > c.Limit {
			return e, false, reply.ErrOutput
		}
		start = c.Room(c.hdr + size + 2)
		c.Out = append(c.Out, blank[:c.hdr]...)
		e, _, found, err = c.GetInto(key, c.Out)
	}
	if err != nil || !found {
		if c.Out = c.Out[:start]; err == nil {
			c.Null()
		}
		return e, false, err
	}
	if !keyspace.IsString(e.Tag) {
		c.Out = c.Out[:start]
		return e, false, reply.ErrWrongType
	}
	out := e.Value
	n := len(out) - start - c.hdr
	if hdr := proto.BulkHeaderLen(n); hdr != c.hdr {
		if hdr > c.hdr {
			out = append(out, blank[:hdr-c.hdr]...)
		}
		copy(out[start+hdr:], out[start+c.hdr:start+c.hdr+n])
		out = out[:start+hdr+n]
		c.hdr = hdr
	}
	proto.PutBulkHeader(out[start:], n)
	e.Value = out[start+c.hdr:]
	c.Out = append(out, '\r', '\n')
	return e, true, c.Over()
}

func Get(c *Client, a [][]byte) error {
	_, _, err := c.replyString(a[1])
	return err
}

func GetDel(c *Client, a [][]byte) error {
	_, found, err := c.replyString(a[1])
	if err != nil || !found {
		return err
	}
	_, err = c.Del(a[1])
	return err
}

func GetSet(c *Client, a [][]byte) error {
	if _, _, err := c.replyString(a[1]); err != nil {
		return err
	}
	return c.Put(a[1], far.Entry{Value: a[2]})
}

func GetEx(c *Client, a [][]byte) error {
	o, err := parseSetOptions(a[2:], optEx|optPersist)
	if err != nil {
		return err
	}
	c.Reads = true
	e, found, err := c.GetString(a[1], c.Scratch[:0])
	if err != nil || !found {
		if err == nil {
			c.Null()
		}
		return err
	}
	keyspace.Reuse(&c.Scratch, e.Value)
	at, err := o.expireTime("getex")
	if err != nil {
		return err
	}
	c.Bulk(e.Value)
	switch {
	case o.flags&optAt != 0 && at <= nowMilli():
		_, err = c.Del(a[1])
	case o.flags&optEx != 0:
		e.Expire = expireAt(at)
		err = c.Put(a[1], e)
	case o.flags&optPersist != 0 && !e.Expire.IsZero():
		e.Expire = time.Time{}
		err = c.Put(a[1], e)
	}
	return err
}

func Set(c *Client, a [][]byte) error {
	if len(a) == 3 {
		// Fast path: nothing but key and value.
		if err := c.Put(a[1], far.Entry{Value: a[2]}); err != nil {
			return err
		}
		c.OK()
		return nil
	}
	o, err := parseSetOptions(a[3:], optNX|optXX|optGet|optKeepTTL|optEx)
	if err != nil {
		return err
	}
	at, err := o.expireTime("set")
	if err != nil {
		return err
	}
	return c.setWith(a[1], a[2], o, at, "+OK\r\n", false)
}

// setWith is SET with options, and serves the commands that are like it.
func (c *Client) setWith(key, value []byte, o setOptions, at int64, okReply string, intReply bool) error {
	var old far.Entry
	found := false
	var err error
	switch {
	case o.flags&optGet != 0:
		old, found, err = c.replyString(key)
	case o.flags&(optNX|optXX|optKeepTTL) != 0:
		old, _, found, err = c.Stat(key)
	}
	if err != nil {
		return err
	}
	if o.flags&optNX != 0 && found || o.flags&optXX != 0 && !found {
		switch {
		case o.flags&optGet != 0:
		case intReply:
			c.Int(0)
		default:
			c.Null()
		}
		return nil
	}
	e := far.Entry{Value: value}
	switch {
	case o.flags&optEx != 0:
		e.Expire = expireAt(at)
	case o.flags&optKeepTTL != 0:
		e.Expire = old.Expire
	}
	if o.flags&optEx != 0 && at <= nowMilli() {
		_, err = c.Del(key) // the same as to set the value and let it expire
	} else {
		err = c.Put(key, e)
	}
	if err == nil && o.flags&optGet == 0 {
		c.Out = append(c.Out, okReply...)
	}
	return err
}

func SetNX(c *Client, a [][]byte) error {
	return c.setWith(a[1], a[2], setOptions{flags: optNX}, 0, ":1\r\n", true)
}

func SetEX(c *Client, a [][]byte) error { return setExpiring(c, a, optEx, "setex") }

func PSetEX(c *Client, a [][]byte) error { return setExpiring(c, a, optEx|optMilli, "psetex") }

func setExpiring(c *Client, a [][]byte, f optFlags, name string) error {
	o := setOptions{flags: f, expire: a[2]}
	at, err := o.expireTime(name)
	if err != nil {
		return err
	}
	return c.setWith(a[1], a[3], o, at, "+OK\r\n", false)
}

func MGet(c *Client, a [][]byte) error {
	c.Array(len(a) - 1)
	for _, key := range a[1:] {
		if _, _, err := c.replyString(key); err == reply.ErrWrongType {
			c.Null()
		} else if err != nil {
			return err
		}
		if err := c.Over(); err != nil {
			return err
		}
	}
	return nil
}

func MSet(c *Client, a [][]byte) error {
	if err := c.setPairs(a, "mset"); err != nil {
		return err
	}
	c.OK()
	return nil
}

func MSetNX(c *Client, a [][]byte) error {
	if len(a)%2 == 0 {
		return reply.Error("ERR wrong number of arguments for 'msetnx' command")
	}
	for i := 1; i < len(a); i += 2 {
		_, _, found, err := c.Stat(a[i])
		if err != nil {
			return err
		}
		if found {
			c.Int(0)
			return nil
		}
	}
	if err := c.setPairs(a, "msetnx"); err != nil {
		return err
	}
	c.Int(1)
	return nil
}

func (c *Client) setPairs(a [][]byte, name string) error {
	if len(a)%2 == 0 {
		return reply.Error("ERR wrong number of arguments for '" + name + "' command")
	}
	for i := 1; i < len(a); i += 2 {
		if len(a[i]) > far.MaxKeySize {
			return reply.ErrKeyTooLong
		}
	}
	if len(a) > 3 {
		c.Begin()
	}
	for i := 1; i < len(a); i += 2 {
		if err := c.Put(a[i], far.Entry{Value: a[i+1]}); err != nil {
			return err
		}
	}
	return nil
}

func StrLen(c *Client, a [][]byte) error {
	e, size, found, err := c.Stat(a[1])
	switch {
	case err != nil:
		return err
	case found && !keyspace.IsString(e.Tag):
		return reply.ErrWrongType
	}
	c.Int(int64(size))
	return nil
}

func Append(c *Client, a [][]byte) error {
	e, found, err := c.GetString(a[1], c.Scratch[:0])
	if err != nil {
		return err
	}
	if !found {
		e = far.Entry{Value: a[2]}
	} else {
		if len(e.Value)+len(a[2]) > c.MaxBulk {
			return reply.ErrTooLong
		}
		e.Value = append(e.Value, a[2]...)
		e.Tag = keyspace.TagRaw
		keyspace.Reuse(&c.Scratch, e.Value)
	}
	if err := c.Put(a[1], e); err != nil {
		return err
	}
	c.Int(int64(len(e.Value)))
	return nil
}

func GetRange(c *Client, a [][]byte) error {
	start, ok1 := proto.ParseInt(a[2])
	end, ok2 := proto.ParseInt(a[3])
	if !ok1 || !ok2 {
		return reply.ErrNotInt
	}
	e, found, err := c.GetString(a[1], c.Scratch[:0])
	if err != nil {
		return err
	}
	n := int64(len(e.Value))
	if !found || start < 0 && end < 0 && start > end {
		c.Str("")
		return nil
	}
	keyspace.Reuse(&c.Scratch, e.Value)
	if start < 0 {
		start = max(0, start+n)
	}
	if end < 0 {
		end = max(0, end+n)
	}
	end = min(end, n-1)
	if start > end || n == 0 {
		c.Str("")
		return nil
	}
	c.Bulk(e.Value[start : end+1])
	return nil
}

func SetRange(c *Client, a [][]byte) error {
	off, ok := proto.ParseInt(a[2])
	if !ok {
		return reply.ErrNotInt
	}
	if off < 0 {
		return reply.ErrOffset
	}
	e, found, err := c.GetString(a[1], c.Scratch[:0])
	if err != nil {
		return err
	}
	if len(a[3]) == 0 {
		c.Int(int64(len(e.Value)))
		return nil
	}
	if off > int64(c.MaxBulk) || off+int64(len(a[3])) > int64(c.MaxBulk) {
		return reply.ErrTooLong
	}
	if !found {
		e.Value = c.Scratch[:0]
	}
	end := int(off) + len(a[3])
	for len(e.Value) < end {
		e.Value = append(e.Value, make([]byte, end-len(e.Value))...)
	}
	copy(e.Value[off:], a[3])
	e.Tag = keyspace.TagRaw
	keyspace.Reuse(&c.Scratch, e.Value)
	if err := c.Put(a[1], e); err != nil {
		return err
	}
	c.Int(int64(len(e.Value)))
	return nil
}
