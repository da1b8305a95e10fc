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

// unit is one leaf that is visited, with the one or two ranges whose leaf it is.
type unit struct {
	*job
	first, n int
	ref      index.Ref
	body     index.Leaf
	news     [2]newLeaf
	groups   [2]int // its part of the settler's groups: from the first index up to the second
	count    int    // of ref, when the new leaves were made
	bad      bool   // it cannot be read or made anew, or the directory has another leaf by now
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

// job is ranges of a shard, in ascending order, whose leaves are to be visited.
type job struct {
	m      *Map
	sh     *shard
	gen    int // of the shard's leaves
	ranges []int
}

// visit is some leaves that are visited together.
type visit struct {
	units  []unit
	reads  pagelog.Reads
	bodies []byte     // what is read
	done   chan error // gets the error of that read, or nil
}

// visitAll visits the leaves of jobs, some at a time: while it writes some, the next ones are read.
func (s *settler) visitAll(jobs []job) error {
	var errs []error
	var v *visit
	for i, failed := 0, false; ; i++ {
		next := &s.visits[i%2]
		if !failed && s.h.core.Ctx.Err() == nil && s.choose(next, &jobs) {
			go func() { next.done <- s.read(next) }()
		} else {
			next = nil
		}
		if v != nil {
			errs = append(errs, <-v.done)
			if !failed {
				err := s.write(v.units)
				errs, failed = append(errs, err), err != nil
			}
		}
		if v = next; v == nil {
			return errors.Join(errs...)
		}
	}
}

// write writes the leaves of units anew where they have changed.
func (s *settler) write(units []unit) error {
	for len(units) > 0 {
		k, err := s.stage(units)
		if pagelog.IsStagingFull(err) {
			// What is staged is the first of two new leaves of a unit, which nobody refers to: there was no room for
			// the second.
			if err = s.pages.Flush(); err == nil {
				k, err = s.stage(units)
			}
		}
		if err == nil {
			failpoint.Hit("far.settling-leaves")
			err = s.pages.Flush()
		}
		s.apply(units[:k], err == nil)
		if err != nil {
			return err
		}
		units = units[k:]
	}
	return nil
}

// choose makes v the leaves of the first ranges of jobs, as many as there is room for, and takes these ranges out of
// jobs. It reports whether v has any leaves.
func (s *settler) choose(v *visit, jobs *[]job) bool {
	v.units = v.units[:0]
	v.reads.Begin(v.bodies)
	for len(*jobs) > 0 && s.chooseOf(v, &(*jobs)[0]) {
		*jobs = (*jobs)[1:]
	}
	return len(v.units) > 0
}

// chooseOf is choose for one job. It reports whether there is room for more.
func (s *settler) chooseOf(v *visit, j *job) bool {
	sh := j.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for sh.cold.gen == j.gen && !sh.closed && len(j.ranges) > 0 { // otherwise the shard has other leaves now
		u := unit{job: j}
		u.first, u.n = sh.cold.Group(j.ranges[0])
		u.ref = sh.cold.At(u.first)
		if u.ref.Addr() != 0 && s.h.core.Far.Seg(u.ref.Addr()).Gone() {
			sh.loseLeaf(s.h, u.first)
			u.ref = sh.cold.At(u.first)
		}
		if len(v.units) == visitLeaves || u.ref.Addr() != 0 && !v.reads.Add(s.h.core, u.ref.Addr(), sizeclass.Size(u.ref.Class())) {
			return false
		}
		v.units = append(v.units, u)
		for len(j.ranges) > 0 && j.ranges[0] < u.first+u.n {
			j.ranges = j.ranges[1:]
		}
	}
	return true
}

// read reads the leaves of v.
func (s *settler) read(v *visit) (err error) {
	leaves, errs := s.h.readLeaves(s.h.core.Ctx, v.reads.Pages)
	k := 0
	for i := range v.units {
		u := &v.units[i]
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

// each calls fn for units, with the lock of the unit's shard held, until fn returns false.
func each(units []unit, fn func(u *unit) bool) {
	for i, more := 0, true; more && i < len(units); {
		sh := units[i].sh
		sh.mu.Lock()
		for ; more && i < len(units) && units[i].sh == sh; i++ {
			more = fn(&units[i])
		}
		sh.mu.Unlock()
	}
}

// stage makes the new leaves of units, until the staging buffer is full, and returns how many units it has dealt with.
func (s *settler) stage(units []unit) (n int, err error) {
	s.hot, s.groups = s.hot[:0], s.groups[:0]
	each(units, func(u *unit) bool {
		c := u.sh.cold
		u.groups = [2]int{len(s.groups), len(s.groups)}
		u.news = [2]newLeaf{}
		if u.bad = u.bad || c.gen != u.gen || u.sh.closed || c.At(u.first).Addr() != u.ref.Addr(); u.bad {
			n++
			return true
		}
		u.count = c.At(u.first).Count()
		before := *u
		for k := range u.n {
			if err = s.renew(u, k); err != nil {
				break
			}
		}
		if err != nil {
			// A unit is staged as a whole or not at all: its ranges may share a leaf.
			for k := range u.news {
				if u.news[k].staged {
					u.news[k].seg.Live.Add(-int64(sizeclass.Round(u.news[k].size)))
				}
			}
			u.news, u.groups = before.news, before.groups
			s.groups = s.groups[:u.groups[0]]
			if u.bad = !pagelog.IsStagingFull(err); !u.bad && n > 0 {
				err = nil // what is staged is written first
			}
			return false
		}
		u.groups[1] = len(s.groups)
		n++
		return true
	})
	return n, err
}

// renew makes the new leaf of the k-th range of u. The lock of its shard must be held.
func (s *settler) renew(u *unit, k int) error {
	m, sh, c := u.m, u.sh, u.sh.cold
	i := u.first + k
	lo, hi := c.Range(i)
	from := len(s.hot)
	for p := range sh.t.Within(lo, hi) {
		if w := *sh.t.Word(p); w.Tells() {
			s.hot = append(s.hot, index.Slot{Word: w, Tag: sh.t.Tag(p)})
		}
	}
	s.groups = s.merged.Merge(u.body, lo, hi, s.hot, from, u.ref.Lost(), s.groups)
	out, changed := s.merged.Slots, s.merged.Changed || u.n > 1 || s.use == heap.CleanPages
	nl := &u.news[k]
	nl.cold, nl.same = s.merged.Cold, !changed
	body := index.Size(out)
	switch {
	case len(out) == 0 || !changed:
		return nil
	case len(out) > index.MaxSlots || body > mostLeaf:
		return errLeafFull
	case slices.ContainsFunc(out, func(x index.Slot) bool { return x.Word&index.TTL != 0 }):
		m.h.sweeper.dated.Store(true)
	}
	nl.size = record.Size(body)
	if err := s.pages.Ready(nl.size, s.use); err != nil {
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

// apply ends the visit of units. If a unit's new leaves were written, and its old leaf is still the directory's,
// apply makes the directory refer to the new leaves and settles their words. Otherwise it accounts for the new leaves
// as dead.
func (s *settler) apply(units []unit, written bool) {
	each(units, func(u *unit) bool {
		sh, c := u.sh, u.sh.cold
		ok := written && !u.bad && c.gen == u.gen && c.At(u.first).Addr() == u.ref.Addr() && c.At(u.first).Lost() == u.ref.Lost()
		for _, nl := range u.news {
			ok = ok && !(nl.staged && nl.seg.Gone())
		}
		if !ok {
			for _, nl := range u.news {
				if nl.staged {
					nl.seg.Live.Add(-int64(sizeclass.Round(nl.size)))
				}
			}
			return true
		}
		if u.n > 1 || !u.news[0].same {
			// Add the words that the table has forgotten meanwhile, less those that it has learned. If the leaf is
			// split, nobody knows which half they are in.
			u.news[0].cold += c.At(u.first).Count() - u.count
			for k := range u.n {
				nl, ref := &u.news[k], index.Ref(0)
				if u.ref.Lost() {
					ref = ref.AsLost()
				}
				if u.n > 1 {
					nl.cold = sh.t.Unknown(nl.body)
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
		return true
	})
}

// settleGroup settles the words of a tag, which its leaf has now. The word of a single entry becomes Settled; other
// words leave the table. If words have changed since was, or refer to the segment that is being cleaned, they stay,
// and must not be forgotten. sh.mu must be held.
func (s *settler) settleGroup(sh *shard, was []index.Slot) {
	tag := was[0].Tag
	live, same := sh.t.Agrees(was, s.h.cleans)
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
