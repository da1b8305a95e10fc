package resp

import (
	"math"
	"math/rand/v2"

	"polder/resp/hashes"
	"polder/resp/proto"
)

// cmdHScan walks a large hash in the order of its fields' bit-reversed hashes
// (see hashes.Large.Interval) and returns a small one whole.
func cmdHScan(s *session, a [][]byte) error {
	cursor, err := parseCursor(a[2])
	if err != nil {
		return err
	}
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	if !h.found {
		s.array(2)
		s.str("0")
		s.array(0)
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
	if h.large == nil {
		err = add(h.list)
	} else if cursor <= math.MaxUint32 {
		next, err = s.scanLarge(h.large, cursor, o.count, add)
	}
	if err != nil {
		return err
	}
	s.array(2)
	s.str(itoa(int64(next)))
	return s.replyKeys(&l)
}

// scanLarge yields the blocks from cursor on until they held count fields.
func (s *session) scanLarge(h *hashes.Large, cursor uint64, count int, yield func(hashes.List) error) (uint64, error) {
	for seen := 0; seen < count; {
		b, end := h.Interval(uint32(cursor))
		l, err := s.block(h, b, s.scratch2[:0])
		if err != nil {
			return 0, err
		}
		reuse(&s.scratch2, l)
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
		return errNotInt
	}
	withValues := false
	if len(a) > 3 {
		if len(a) > 4 || !is(a[3], "withvalues") {
			return errSyntax
		}
		withValues = true
	}
	if count == math.MinInt64 || withValues && (count < math.MinInt64/2 || count > math.MaxInt64/2) {
		return replyError("ERR value is out of range")
	}
	h, err := s.hash(a[1])
	if err != nil {
		return err
	}
	if h.len() == 0 || count == 0 {
		s.array(0)
		return nil
	}
	if h.large != nil && h.large.Bytes > s.srv.cfg.maxReply() {
		return errOutput // all fields are brought together to pick from
	}
	var l keyList
	if err := s.fields(&h, func(f, v []byte) { l.add(f); l.add(v) }); err != nil {
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
			return errOutput
		}
		total = int(-count)
	}
	if withValues && s.ver < 3 {
		s.array(total * 2)
	} else {
		s.array(total)
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
		if withValues && s.ver >= 3 {
			s.array(2)
		}
		s.bulk(l.at(2 * at))
		if withValues {
			s.bulk(l.at(2*at + 1))
		}
		if err := s.over(); err != nil {
			return err
		}
	}
	return nil
}

// randomField replies with one field. In a large hash it looks at one block.
func (s *session) randomField(key []byte) error {
	h, err := s.hash(key)
	if err != nil {
		return err
	}
	if h.len() == 0 {
		s.null()
		return nil
	}
	l := h.list
	if h.large != nil {
		b := uint32(rand.IntN(int(h.large.Buckets)))
		for range h.large.Buckets {
			if l, err = s.block(h.large, b, s.scratch2[:0]); err != nil {
				return err
			}
			reuse(&s.scratch2, l)
			if l.Len() > 0 {
				break
			}
			b = (b + 1) % h.large.Buckets
		}
	}
	if l.Len() == 0 {
		s.null()
		return nil
	}
	i := rand.IntN(l.Len())
	for f := range l.All() {
		if i == 0 {
			s.bulk(f)
			break
		}
		i--
	}
	return nil
}
