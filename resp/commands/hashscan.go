package commands

import (
	"math"
	"math/rand/v2"
	"strconv"

	"polder/resp/hashes"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

// HScan walks a large hash in the order of its fields' bit-reversed hashes
// (see hashes.Large.Interval) and returns a small one whole.
func HScan(c *Client, a [][]byte) error {
	cursor, err := parseCursor(a[2])
	if err != nil {
		return err
	}
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	if !h.Found {
		c.Array(2)
		c.Str("0")
		c.Array(0)
		return nil
	}
	o, err := parseScan(a[3:], false)
	if err != nil {
		return err
	}
	var l keyspace.KeyList
	add := func(fl hashes.List) error {
		for f, v := range fl.All() {
			if o.match == nil || o.match.Match(f) {
				l.Add(f)
				l.Add(v)
			}
		}
		return c.fits(&l)
	}
	next := uint64(0)
	if h.Large == nil {
		err = add(h.List)
	} else if cursor <= math.MaxUint32 {
		next, err = c.scanLarge(h.Large, cursor, o.count, add)
	}
	if err != nil {
		return err
	}
	c.Array(2)
	c.Str(strconv.FormatUint(next, 10))
	return c.replyKeys(&l)
}

// scanLarge yields blocks from cursor on, until they have had about count fields. It returns the next cursor.
func (c *Client) scanLarge(h *hashes.Large, cursor uint64, count int, yield func(hashes.List) error) (uint64, error) {
	for seen := 0; seen < count; {
		b, end := h.Interval(uint32(cursor))
		l, err := c.Block(h, b, c.Scratch2[:0])
		if err != nil {
			return 0, err
		}
		keyspace.Reuse(&c.Scratch2, l)
		if err := yield(l); err != nil {
			return 0, err
		}
		seen += l.Len() + 1
		cursor = end
		if cursor > math.MaxUint32 {
			return 0, nil
		}
	}
	return cursor, nil
}

func HRandField(c *Client, a [][]byte) error {
	if len(a) == 2 {
		return c.randomField(a[1])
	}
	count, ok := proto.ParseInt(a[2])
	if !ok {
		return reply.ErrNotInt
	}
	if count == math.MinInt64 {
		return errPicks
	}
	withValues := false
	if len(a) > 3 {
		if len(a) > 4 || !proto.Is(a[3], "withvalues") {
			return reply.ErrSyntax
		}
		withValues = true
	}
	if withValues && (count < math.MinInt64/2 || count > math.MaxInt64/2) {
		return reply.Error("ERR value is out of range")
	}
	h, err := c.Hash(a[1])
	if err != nil {
		return err
	}
	if h.Len() == 0 || count == 0 {
		c.Array(0)
		return nil
	}
	if h.Large != nil && h.Large.Bytes > c.Limit {
		return reply.ErrOutput // replyPicks needs all fields in memory
	}
	var l keyspace.KeyList
	if err := c.Fields(&h, func(f, v []byte) error { l.Add(f); l.Add(v); return nil }); err != nil {
		return err
	}
	return c.replyPicks(&l, count, withValues)
}

const errPicks reply.Error = "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807"

// replyPicks replies with random fields of l, a list of alternating fields and values: with count different fields,
// or, if count is negative, with -count fields that may repeat.
func (c *Client) replyPicks(l *keyspace.KeyList, count int64, withValues bool) error {
	n := l.Len() / 2
	repeat := count < 0
	total := int(min(int64(n), count))
	if repeat {
		if -count > int64(c.OutputLimit) {
			return reply.ErrOutput
		}
		total = int(-count)
	}
	if withValues && c.Ver < 3 {
		c.Array(total * 2)
	} else {
		c.Array(total)
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	for i := range total {
		at := rand.IntN(n)
		if !repeat {
			j := i + rand.IntN(n-i)
			order[i], order[j] = order[j], order[i]
			at = order[i]
		}
		if withValues && c.Ver >= 3 {
			c.Array(2)
		}
		c.Bulk(l.At(2 * at))
		if withValues {
			c.Bulk(l.At(2*at + 1))
		}
		if err := c.Over(); err != nil {
			return err
		}
	}
	return nil
}

// randomField replies with a random field. In a large hash, it takes the first block that has fields, from a random
// block on.
func (c *Client) randomField(key []byte) error {
	h, err := c.Hash(key)
	if err != nil {
		return err
	}
	if h.Len() == 0 {
		c.Null()
		return nil
	}
	l := h.List
	if h.Large != nil {
		b := uint32(rand.IntN(int(h.Large.Buckets)))
		for range h.Large.Buckets {
			if l, err = c.Block(h.Large, b, c.Scratch2[:0]); err != nil {
				return err
			}
			keyspace.Reuse(&c.Scratch2, l)
			if l.Len() > 0 {
				break
			}
			b = (b + 1) % h.Large.Buckets
		}
	}
	if l.Len() == 0 {
		c.Null()
		return nil
	}
	i := rand.IntN(l.Len())
	for f := range l.All() {
		if i == 0 {
			c.Bulk(f)
			break
		}
		i--
	}
	return nil
}
