package commands

import (
	"bytes"
	"strconv"

	"polder/far"
	"polder/resp/glob"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

// scanOptions are the options of SCAN and HSCAN.
type scanOptions struct {
	match glob.Pattern // nil: everything
	count int
	typ   []byte
}

func parseScan(a [][]byte, types bool) (o scanOptions, err error) {
	o.count = 10
	var pattern []byte
	for i := 0; i < len(a); i += 2 {
		if i+1 == len(a) {
			return o, reply.ErrSyntax
		}
		switch {
		case proto.Is(a[i], "count"):
			n, ok := proto.ParseInt(a[i+1])
			if !ok {
				return o, reply.ErrNotInt
			}
			if n < 1 {
				return o, reply.ErrSyntax
			}
			o.count = int(min(n, 1<<20))
		case proto.Is(a[i], "match"):
			pattern = a[i+1]
		case types && proto.Is(a[i], "type"):
			o.typ = a[i+1]
		default:
			return o, reply.ErrSyntax
		}
	}
	if pattern != nil {
		o.match, err = glob.Compile(pattern)
	}
	return o, err
}

// parseCursor reads a cursor as strtoul does: an empty one is 0, and a minus sign negates, modulo 1<<64.
func parseCursor(b []byte) (uint64, error) {
	if len(b) == 0 {
		return 0, nil
	}
	digits := bytes.TrimPrefix(b, []byte("-"))
	if len(digits) == len(b) {
		digits = bytes.TrimPrefix(b, []byte("+"))
	}
	cur, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return 0, reply.ErrCursor
	}
	if b[0] == '-' {
		cur = -cur
	}
	return cur, nil
}

// scanStep does one step of a scan, and adds the keys for which want reports true to l. If the step fails, scanStep
// takes its keys out of l again.
func (c *Client) scanStep(cursor uint64, l *keyspace.KeyList, want func(key []byte, e far.Entry) bool) (uint64, error) {
	n := l.Len()
	next, err := c.Scan(cursor, func(key []byte, e far.Entry) {
		if want(key, e) {
			l.Add(key)
		}
	})
	if err != nil {
		l.Cut(n)
	}
	return next, err
}

func Scan(c *Client, a [][]byte) error {
	cursor, err := parseCursor(a[1])
	if err != nil {
		return err
	}
	o, err := parseScan(a[2:], true)
	if err != nil {
		return err
	}
	var l keyspace.KeyList
	seen := 0
	at, first := c.cursorIn(cursor)
	cursor = 0
	err = c.Each(first, func(number int) (done bool, err error) {
		if number > first {
			at = 0
		}
		for seen < o.count {
			at, err = c.scanStep(at, &l, func(key []byte, e far.Entry) bool {
				seen++
				return (o.match == nil || o.match.Match(key)) && (o.typ == nil || proto.Is(o.typ, typeName(e.Tag)))
			})
			if err == nil {
				err = c.fits(&l)
			}
			if err != nil {
				return true, err
			}
			seen++ // empty steps count too
			if at == 0 {
				cursor = c.cursorOf(0, number+1)
				return false, nil
			}
		}
		cursor = c.cursorOf(at, number)
		return true, nil
	})
	if err != nil {
		return err
	}
	c.Array(2)
	c.Str(strconv.FormatUint(cursor, 10))
	return c.replyKeys(&l)
}

// On a server with partitions, the low cursorPartBits of a cursor are the number of a partition, and the bits above
// them are the cursor within the partition.
const cursorPartBits = 10

// cursorIn splits a cursor into the cursor within a partition and the number of the partition.
func (c *Client) cursorIn(cursor uint64) (at uint64, number int) {
	if c.Partitions == 0 {
		return cursor, 0
	}
	return cursor >> cursorPartBits, int(cursor & (1<<cursorPartBits - 1))
}

// cursorOf makes a cursor of a cursor within a partition and the number of the partition: 0 after the last partition.
func (c *Client) cursorOf(at uint64, number int) uint64 {
	switch {
	case c.Partitions == 0:
		return at
	case number >= c.Partitions:
		return 0
	}
	return at<<cursorPartBits | uint64(number)
}

func Keys(c *Client, a [][]byte) error {
	pattern, err := glob.Compile(a[1])
	if err != nil {
		return err
	}
	var l keyspace.KeyList
	err = c.Each(0, func(int) (bool, error) {
		for cursor := uint64(0); ; {
			if cursor, err = c.scanStep(cursor, &l, func(key []byte, e far.Entry) bool { return pattern.Match(key) }); err == nil {
				err = c.fits(&l)
			}
			if err != nil || cursor == 0 {
				return false, err
			}
		}
	})
	if err != nil {
		return err
	}
	return c.replyKeys(&l)
}

// fits returns an error if a command has collected more than a reply may have.
func (c *Client) fits(l *keyspace.KeyList) error {
	if l.Size() > c.Limit {
		return reply.ErrOutput
	}
	return nil
}

func (c *Client) replyKeys(l *keyspace.KeyList) error {
	c.Array(l.Len())
	for i := range l.Len() {
		c.Bulk(l.At(i))
	}
	return c.Over()
}
