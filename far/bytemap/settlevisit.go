package bytemap

import (
	"context"
	"errors"
	"slices"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/pagelog"
	"polder/far/record"
	"polder/internal/failpoint"
	"polder/internal/sizeclass"
)

// unit is one leaf that is visited, and the one or two ranges that it is of.
type unit struct {
	first, n int
	ref      index.Ref
	body     index.Leaf
	news     [2]newLeaf
	groups   [2]int // those of the visit that are of it: from the one to the other
	count    int    // of ref, when the new leaves were made
	bad      bool   // it could not be read
}

// newLeaf is what a leaf is replaced by.
type newLeaf struct {
	staged bool
	seg    *heap.FarSegment
	addr   uint64
	size   int        // of its record
	body   index.Leaf // in the staging buffer, until more is staged
	same   bool       // as the leaf that it would replace
	cold   int        // words of tags that are not known
}

// visitAll visits the leaves of the ranges that are due.
func (s *settler) visitAll(m *Map, sh *shard, gen int, due []bool) error {
	var all []int
	for i, yes := range due {
		if yes {
			all = append(all, i)
		}
	}
	var errs []error
	for len(all) > 0 && s.h.core.Ctx.Err() == nil {
		n, err := s.visit(m, sh, gen, all)
		if err != nil {
			errs = append(errs, err)
			if n == 0 {
				break
			}
		}
		all = all[n:]
	}
	return errors.Join(errs...)
}

// visit visits the leaves of some of the ranges, which ascend, from the first on, and returns of how many.
func (s *settler) visit(m *Map, sh *shard, gen int, ranges []int) (n int, err error) {
	n = s.choose(sh, gen, ranges)
	if n == 0 {
		return 0, heap.ErrClosed // the leaves are others now
	}
	err = s.read()
	for at := 0; at < len(s.units); {
		k, werr := s.stage(m, sh, gen, at)
		if pagelog.IsStagingFull(werr) {
			// What is staged is of nobody: one of two leaves for which there was no room behind it.
			if werr = s.pages.Flush(); werr == nil {
				k, werr = s.stage(m, sh, gen, at)
			}
		}
		if werr == nil {
			failpoint.Hit("far.settling-leaves")
			werr = s.pages.Flush()
		}
		s.apply(sh, gen, at, at+k, werr == nil)
		if werr != nil {
			return 0, werr
		}
		if k == 0 {
			return 0, heap.ErrClosed
		}
		at += k
	}
	return n, err
}

// choose makes units of the first ranges, as many as there is room for.
func (s *settler) choose(sh *shard, gen int, ranges []int) (n int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.units, s.reads = s.units[:0], s.reads[:0]
	c := sh.cold
	if c.gen != gen || sh.closed {
		return 0
	}
	bytes := 0
	for n < len(ranges) && len(s.units) < visitLeaves {
		u := unit{}
		u.first, u.n = c.Group(ranges[n])
		u.ref = c.At(u.first)
		if u.ref.Addr() != 0 && s.h.core.Far.Seg(u.ref.Addr()).Gone() {
			sh.loseLeaf(s.h, u.first)
			u.ref = c.At(u.first)
		}
		size := sizeclass.Size(u.ref.Class())
		if bytes+size > len(s.bodies) {
			break
		}
		if u.ref.Addr() != 0 {
			s.reads = append(s.reads, pagelog.NewRead(s.h.core, u.ref.Addr(), s.bodies[bytes:bytes+size:bytes+size]))
			bytes += size
		}
		s.units = append(s.units, u)
		for n < len(ranges) && ranges[n] < u.first+u.n {
			n++
		}
	}
	return n
}

// read reads the leaves of the units.
func (s *settler) read() (err error) {
	leaves, errs := s.h.readLeaves(s.h.core.Ctx, s.reads)
	k := 0
	for i := range s.units {
		u := &s.units[i]
		if u.ref.Addr() == 0 {
			continue
		}
		if u.body = leaves[k]; errs[k] != nil {
			u.bad, err = true, errs[k]
		}
		k++
	}
	return err
}

// readLeaves reads leaves, as pagelog.ReadAll does.
func (h *Maps) readLeaves(ctx context.Context, reads []pagelog.Read) ([]index.Leaf, []error) {
	if len(reads) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, heap.StoreTimeout)
	defer cancel()
	leaves, errs := make([]index.Leaf, len(reads)), make([]error, len(reads))
	pagelog.ReadAll(ctx, h.core, reads)
	h.leafReads.Add(uint64(len(reads)))
	for i := range reads {
		r := &reads[i]
		if errs[i] = r.Err; r.Err == nil {
			leaves[i], errs[i] = h.leaves.Open(r.Buf, r.Seg.Position(), h.core.Far.Offset(r.Addr))
		}
	}
	return leaves, errs
}

// stage makes new leaves of units from at on, until the staging buffer is full, and returns of how many.
func (s *settler) stage(m *Map, sh *shard, gen, at int) (n int, err error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c := sh.cold
	s.hot, s.groups = s.hot[:0], s.groups[:0]
	if c.gen != gen || sh.closed {
		return 0, nil
	}
	for ; at+n < len(s.units); n++ {
		u := &s.units[at+n]
		u.groups = [2]int{len(s.groups), len(s.groups)}
		u.news = [2]newLeaf{}
		u.count = c.At(u.first).Count()
		if u.bad || c.At(u.first).Addr() != u.ref.Addr() {
			u.bad = true
			continue
		}
		before := *u
		for k := range u.n {
			if err = s.renew(m, sh, u, k); err != nil {
				break
			}
		}
		if err != nil {
			// Not in part: its ranges may share a leaf.
			for k := range u.news {
				if u.news[k].staged {
					u.news[k].seg.Live.Add(-int64(sizeclass.Round(u.news[k].size)))
				}
			}
			u.news, u.groups = before.news, before.groups
			s.groups = s.groups[:u.groups[0]]
			if pagelog.IsStagingFull(err) && n > 0 {
				return n, nil
			}
			u.bad = true
			return n, err
		}
		u.groups[1] = len(s.groups)
	}
	return n, nil
}

// renew makes the new leaf of the k-th range of u. sh.mu must be held.
func (s *settler) renew(m *Map, sh *shard, u *unit, k int) error {
	c := sh.cold
	i := u.first + k
	lo, hi := c.Range(i)
	from := len(s.hot)
	for p := range sh.t.Within(lo, hi) {
		if w := *sh.t.Word(p); w.Tells() {
			s.hot = append(s.hot, index.Slot{Word: w, Tag: sh.t.Tag(p)})
		}
	}
	s.groups = s.merged.Merge(u.body, lo, hi, s.hot, from, u.ref.Lost(), s.groups)
	out, changed := s.merged.Slots, s.merged.Changed || u.n > 1 || s.forced
	nl := &u.news[k]
	nl.cold, nl.same = s.merged.Cold, !changed
	body := index.Size(out)
	switch {
	case len(out) == 0 || !changed:
		return nil
	case len(out) > index.MaxSlots || body > len(s.bodies)/2:
		return errLeafFull
	case slices.ContainsFunc(out, func(x index.Slot) bool { return x.Word&index.TTL != 0 }):
		m.h.sweeper.dated.Store(true)
	}
	nl.size = record.Size(body)
	if err := s.pages.Ready(nl.size, s.forced); err != nil {
		return err
	}
	b, addr, position, off := s.pages.Reserve(nl.size)
	r := record.Put(b, record.Header{Kind: record.Page, Owner: m.id, Number: uint64(sh.id)<<28 | lo>>4}, b[record.HeaderSize:record.HeaderSize+body])
	m.h.leaves.Seal(b[record.HeaderSize:record.HeaderSize+body], out, position, off)
	s.pages.Seal(r, off)
	nl.staged, nl.addr, nl.seg, nl.body = true, addr, s.pages.Open(), index.Leaf(r.Body())
	return nil
}

var errLeafFull = errors.New("cannot settle: a leaf would be too long")

// apply makes the directory refer to the new leaves of units [from, to), if they were written, and
// the words that are in them settled ones, unless they have changed meanwhile.
func (s *settler) apply(sh *shard, gen, from, to int, written bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c := sh.cold
	for i := from; i < to; i++ {
		u := &s.units[i]
		ok := written && !u.bad && c.gen == gen && c.At(u.first).Addr() == u.ref.Addr() && c.At(u.first).Lost() == u.ref.Lost()
		for _, nl := range u.news {
			ok = ok && !(nl.staged && nl.seg.Gone())
		}
		if !ok {
			for _, nl := range u.news {
				if nl.staged {
					nl.seg.Live.Add(-int64(sizeclass.Round(nl.size)))
				}
			}
			continue
		}
		if u.n > 1 || !u.news[0].same {
			// What has been forgotten meanwhile, less what was learned. Of a leaf that is split nobody knows
			// of which half that was.
			u.news[0].cold += c.At(u.first).Count() - u.count
			for k := range u.n {
				nl, ref := &u.news[k], index.Ref(0)
				if u.ref.Lost() {
					ref = ref.AsLost()
				}
				if u.n > 1 {
					nl.cold = sh.unknownOf(nl.body)
				}
				if nl.staged {
					ref = (ref | index.NewRef(nl.addr, sizeclass.Of(nl.size))).WithCount(nl.cold)
				}
				c.Set(u.first+k, ref)
			}
			if a := u.ref.Addr(); a != 0 {
				s.h.core.BuryFar(a, sizeclass.Size(u.ref.Class()))
			}
		}
		for _, g := range s.groups[u.groups[0]:u.groups[1]] {
			s.settleGroup(sh, s.hot[g[0]:g[1]])
		}
	}
}

// unknownOf is how many entries only leaf knows. sh.mu must be held.
func (sh *shard) unknownOf(leaf index.Leaf) (n int) {
	for i := range leaf.Len() {
		if s := leaf.At(i); !s.Word.IsLost() && !sh.known(s.Tag) {
			n++
		}
	}
	return n
}

// settleGroup makes the words of a tag, which its leaf has now, settled. If they are others by now,
// they stay as they are. sh.mu must be held.
func (s *settler) settleGroup(sh *shard, was []index.Slot) {
	tag := was[0].Tag
	var now [8]index.Word
	n := 0
	for p := range sh.t.Matches(tag) {
		w := *sh.t.Word(p)
		if !w.Tells() {
			continue
		}
		if n == len(now) || !w.Settles() && !w.IsGone() || s.h.cleans(w) {
			sh.t.Soil(tag)
			return
		}
		now[n] = w.AsSettled()
		n++
	}
	slices.Sort(now[:n])
	same, live := n == len(was), 0
	for i := range was {
		same = same && now[i] == was[i].Word.AsSettled()
		if !was[i].Word.IsGone() {
			live++
		}
	}
	if !same {
		sh.t.Soil(tag)
		return
	}
	for p := range sh.t.Matches(tag) {
		switch w := sh.t.Word(p); {
		case !w.Tells():
		case live == 1 && !w.IsGone():
			*w |= index.Settled
		default:
			sh.leave(p)
		}
	}
}
