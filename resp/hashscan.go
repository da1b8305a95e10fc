package resp

import (
	"math"

	"polder/resp/proto"
)

// cmdHScan walks a large hash in the order of its fields' bit-reversed hashes
// (see largeHash.interval) and returns a small one whole.
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
	add := func(fl fieldList) {
		for f, v := range fl.all() {
			if o.match == nil || match(o.match, f) {
				l.add(f)
				l.add(v)
			}
		}
	}
	next := uint64(0)
	if h.large == nil {
		add(h.list)
	} else if cursor <= math.MaxUint32 {
		next, err = s.scanLarge(h.large, cursor, o.count, add)
		if err != nil {
			return err
		}
	}
	s.array(2)
	s.str(itoa(int64(next)))
	return s.replyKeys(&l)
}

// scanLarge yields the blocks from cursor on until they held count fields.
func (s *session) scanLarge(h *largeHash, cursor uint64, count int, yield func(fieldList)) (uint64, error) {
	for seen := 0; seen < count; {
		b, end := h.interval(uint32(cursor))
		l, err := s.block(h, b, s.scratch2[:0])
		if err != nil {
			return 0, err
		}
		reuse(&s.scratch2, l)
		yield(l)
		seen += l.len() + 1
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
	var l keyList
	if err := s.fields(&h, func(f, v []byte) { l.add(f); l.add(v) }); err != nil {
		return err
	}
	n := len(l.ends) / 2
	return s.replyPicks(&l, pick(n, count), withValues)
}

// pick chooses from 0 to n-1: count different ones in random order, or -count
// that may repeat.
func pick(n int, count int64) func(yield func(int) bool) (total int64) {
	if count < 0 {
		return func(yield func(int) bool) int64 {
			if yield != nil {
				for i := int64(0); i < -count && yield(randN(n)); i++ {
				}
			}
			return -count
		}
	}
	k := int(min(int64(n), count))
	return func(yield func(int) bool) int64 {
		if yield != nil {
			order := make([]int, n)
			for i := range order {
				order[i] = i
			}
			for i := range k {
				j := i + randN(n-i)
				order[i], order[j] = order[j], order[i]
				if !yield(order[i]) {
					break
				}
			}
		}
		return int64(k)
	}
}

func (s *session) replyPicks(l *keyList, pick func(func(int) bool) int64, withValues bool) error {
	total := pick(nil)
	if total > int64(s.srv.cfg.OutputLimit) {
		return errOutput
	}
	switch {
	case withValues && s.ver < 3:
		s.array(int(total) * 2)
	default:
		s.array(int(total))
	}
	var err error
	pick(func(i int) bool {
		if withValues && s.ver >= 3 {
			s.array(2)
		}
		s.bulk(l.at(2 * i))
		if withValues {
			s.bulk(l.at(2*i + 1))
		}
		err = s.over()
		return err == nil
	})
	return err
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
		b := uint32(randN(int(h.large.buckets)))
		for range h.large.buckets {
			if l, err = s.block(h.large, b, s.scratch2[:0]); err != nil {
				return err
			}
			reuse(&s.scratch2, l)
			if l.len() > 0 {
				break
			}
			b = (b + 1) % h.large.buckets
		}
	}
	i := randN(l.len())
	for f := range l.all() {
		if i == 0 {
			s.bulk(f)
			break
		}
		i--
	}
	return nil
}
