package resp

import (
	"math"
	"math/rand/v2"

	"polder/resp/hashes"
	"polder/resp/keyspace"
	"polder/resp/proto"
	"polder/resp/reply"
)

// cmdHScan walks a large hash in the order of its fields' bit-reversed hashes
// (see hashes.Large.Interval) and returns a small one whole.
func cmdHScan(s *session, a [][]byte) error {
	cursor, err := parseCursor(a[2])
	if err != nil {
		return err
	}
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	if !h.Found {
		s.Array(2)
		s.Str("0")
		s.Array(0)
		return nil
	}
	o, err := parseScan(a[3:], false)
	if err != nil {
		return err
	}
	var l keyList
	add := func(fl hashes.List) error {
		for f, v := range fl.All() {
			if o.match == nil || o.match.Match(f) {
				l.add(f)
				l.add(v)
			}
		}
		return s.fits(&l)
	}
	next := uint64(0)
	if h.Large == nil {
		err = add(h.List)
	} else if cursor <= math.MaxUint32 {
		next, err = s.scanLarge(h.Large, cursor, o.count, add)
	}
	if err != nil {
		return err
	}
	s.Array(2)
	s.Str(itoa(int64(next)))
	return s.replyKeys(&l)
}

// scanLarge yields the blocks from cursor on until they held count fields.
func (s *session) scanLarge(h *hashes.Large, cursor uint64, count int, yield func(hashes.List) error) (uint64, error) {
	for seen := 0; seen < count; {
		b, end := h.Interval(uint32(cursor))
		l, err := s.Block(h, b, s.Scratch2[:0])
		if err != nil {
			return 0, err
		}
		keyspace.Reuse(&s.Scratch2, l)
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

func cmdHRandField(s *session, a [][]byte) error {
	if len(a) == 2 {
		return s.randomField(a[1])
	}
	count, ok := proto.ParseInt(a[2])
	if !ok {
		return reply.ErrNotInt
	}
	withValues := false
	if len(a) > 3 {
		if len(a) > 4 || !proto.Is(a[3], "withvalues") {
			return reply.ErrSyntax
		}
		withValues = true
	}
	if count == math.MinInt64 || withValues && (count < math.MinInt64/2 || count > math.MaxInt64/2) {
		return reply.Error("ERR value is out of range")
	}
	h, err := s.Hash(a[1])
	if err != nil {
		return err
	}
	if h.Len() == 0 || count == 0 {
		s.Array(0)
		return nil
	}
	if h.Large != nil && h.Large.Bytes > s.Limit {
		return reply.ErrOutput // all fields are brought together to pick from
	}
	var l keyList
	if err := s.Fields(&h, func(f, v []byte) error { l.add(f); l.add(v); return nil }); err != nil {
		return err
	}
	return s.replyPicks(&l, count, withValues)
}

// replyPicks replies with fields of l, a list of fields and values: count
// different ones in random order, or -count that may repeat.
func (s *session) replyPicks(l *keyList, count int64, withValues bool) error {
	n := len(l.ends) / 2
	repeat := count < 0
	total := int(min(int64(n), count))
	if repeat {
		if -count > int64(s.srv.cfg.OutputLimit) {
			return reply.ErrOutput
		}
		total = int(-count)
	}
	if withValues && s.Ver < 3 {
		s.Array(total * 2)
	} else {
		s.Array(total)
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
		if withValues && s.Ver >= 3 {
			s.Array(2)
		}
		s.Bulk(l.at(2 * at))
		if withValues {
			s.Bulk(l.at(2*at + 1))
		}
		if err := s.Over(); err != nil {
			return err
		}
	}
	return nil
}

// randomField replies with one field. In a large hash it looks at one block.
func (s *session) randomField(key []byte) error {
	h, err := s.Hash(key)
	if err != nil {
		return err
	}
	if h.Len() == 0 {
		s.Null()
		return nil
	}
	l := h.List
	if h.Large != nil {
		b := uint32(rand.IntN(int(h.Large.Buckets)))
		for range h.Large.Buckets {
			if l, err = s.Block(h.Large, b, s.Scratch2[:0]); err != nil {
				return err
			}
			keyspace.Reuse(&s.Scratch2, l)
			if l.Len() > 0 {
				break
			}
			b = (b + 1) % h.Large.Buckets
		}
	}
	if l.Len() == 0 {
		s.Null()
		return nil
	}
	i := rand.IntN(l.Len())
	for f := range l.All() {
		if i == 0 {
			s.Bulk(f)
			break
		}
		i--
	}
	return nil
}
