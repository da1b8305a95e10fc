package far

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/record"
	"polder/internal/arena"
	"polder/internal/failpoint"
	"polder/internal/sizeclass"
)

// settler is the goroutine that moves words from the tables of maps to their leaves, range by range, and
// cleans the far segments of leaves. It holds no lock while the store works; what has changed meanwhile
// in a table stays there.
//
// It needs memory of its own, which it gets when it has to settle for the first time, and beside that only
// far memory. If it cannot have that, or settling makes too few places, the tables grow beyond their share, until
// the budget ends that: so nobody waits for it longer than one try.
type settler struct {
	h     *Heap
	kick  chan struct{}
	mu    sync.Mutex
	round chan struct{}          // closed, and replaced, when a table has been settled; under mu
	dead  []*corpse              // yet to be buried; under mu
	learn atomic.Pointer[[]byte] // what the evacuator reads leaves to; nil if there are no leaves yet

	// The rest is the goroutine's.
	mem    *arena.Mapping
	pages  *heap.Pages
	bodies []byte // of the leaves of a visit
	units  []unit
	reads  []heap.PageRead
	slots  []index.Slot
	hot    []hotSlot
	groups []group
	forced bool // leaves are written although they have not changed
}

const (
	// The settler has three buffers, each a 128th of the budget, within these bounds.
	leastSettler = 16 << 10
	mostSettler  = 64 << 10
	// A visit is of so many leaves at a time.
	visitLeaves = 128
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

// hotSlot is a word of a table and its tag.
type hotSlot struct {
	tag uint32
	w   word
}

// group is the words of a tag, as they were when its leaf was made; in hot from lo to hi.
type group struct{ lo, hi int }

func (s *settler) init(h *Heap) {
	s.h, s.kick, s.round = h, make(chan struct{}, 1), make(chan struct{})
}

func (s *settler) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// wait returns when some table has been settled, or there was a try.
func (s *settler) wait(ctx context.Context) error {
	s.mu.Lock()
	c := s.round
	s.mu.Unlock()
	s.wake()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for a place in the index: %w", context.Cause(ctx))
	case <-s.h.core.Ctx.Done():
		return heap.ErrClosed
	}
}

// ended wakes who waits.
func (s *settler) ended() {
	s.mu.Lock()
	close(s.round)
	s.round = make(chan struct{})
	s.mu.Unlock()
}

// bury has what the leaves of d refer to accounted for as dead.
func (s *settler) bury(d *corpse) {
	s.mu.Lock()
	s.dead = append(s.dead, d)
	s.mu.Unlock()
	s.wake()
}

func (s *settler) run() {
	for {
		select {
		case <-s.h.core.Ctx.Done():
			return
		case <-s.kick:
		}
		s.buryDead()
		for _, m := range *s.h.maps.Load() {
			shards := m.shards()
			for i := range shards {
				sh := &shards[i]
				sh.mu.Lock()
				due := sh.cold != nil && sh.cold.settling
				sh.mu.Unlock()
				if due && s.h.core.Ctx.Err() == nil {
					s.settle(m, sh)
				}
			}
		}
		s.ended()
	}
}

// ready sees to it that there is memory to settle with.
func (s *settler) ready() error {
	if s.mem != nil {
		return nil
	}
	l := &s.h.core.Logs
	n := min(max(heap.Floor2(s.h.Local()/128), leastSettler), mostSettler)
	if err := s.room(int64(3 * n)); err != nil {
		return err
	}
	mem, err := arena.Anonymous(3*n, false)
	if err != nil {
		l.ShrinkIndex(int64(3 * n))
		return err
	}
	s.mem = mem
	b := mem.Bytes()
	s.pages = s.h.core.NewPages(b[:n:n]) // for leaves that are to be written
	s.bodies = b[n : 2*n : 2*n]          // for leaves that were read
	s.learn.Store(new(b[2*n:]))
	return nil
}

// room takes n bytes of the budget, for which it waits a little.
func (s *settler) room(n int64) error {
	ctx, cancel := context.WithTimeout(s.h.core.Ctx, heap.HoldFor)
	defer cancel()
	for {
		err := s.h.core.Logs.GrowIndex(n, heap.ForMutator)
		if err != heap.ErrNoRoom {
			return err
		}
		if err := s.h.core.WaitRoom(ctx); err != nil {
			return err
		}
	}
}

// bytes is the memory of the settler.
func (s *settler) bytes() int64 {
	n := int64(0)
	if s.mem != nil {
		n = int64(len(s.mem.Bytes()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.dead {
		n += d.dir.Bytes()
	}
	return n
}

// settle settles what there is to settle in sh.
func (s *settler) settle(m *ByteMap, sh *shard) {
	err := s.ready()
	if err == nil {
		s.keepSpare()
		err = s.sweep(m, sh)
	}
	sh.mu.Lock()
	sh.cold.settling = false
	sh.cold.barren = false
	sh.forget(s.h, 0)
	sh.cold.crowded = err != nil || !sh.roomy()
	sh.mu.Unlock()
	s.h.settled.Add(1)
	s.ended()
	s.clean(errors.Is(err, heap.ErrStoreFull))
}

// keepSpare has so many segments kept for leaves that, when the store is full, they can be cleaned, and what is
// in tables can be settled.
func (s *settler) keepSpare() {
	n := 0
	s.h.core.Far.All(func(f *heap.FarSegment) {
		if f.HasPages() {
			n++
		}
	})
	s.pages.Keep(2 + n/8 + int(s.h.tables.Load())/s.h.core.Far.SegSize)
}

// sweep visits the leaves of sh of which words are in the table.
func (s *settler) sweep(m *ByteMap, sh *shard) error {
	err := s.double(sh)
	sh.mu.Lock()
	if sh.closed || sh.cold.shelf != nil {
		sh.mu.Unlock()
		return heap.ErrClosed
	}
	c := sh.cold
	due := make([]bool, c.Len())
	for i := range due {
		due[i] = c.At(i).Shared()
	}
	for p := range sh.t.all() {
		if w := *sh.t.word(p); len(due) > 0 && w&wordSettled == 0 && (w.settles() || w.gone()) {
			due[c.Of(sh.t.tag(p))] = true
		}
	}
	gen := c.gen
	sh.mu.Unlock()
	if len(due) == 0 {
		return err
	}
	return s.visitAll(m, sh, gen, due)
}

// double gives the directory of sh more ranges if their leaves have grown too long.
func (s *settler) double(sh *shard) error {
	for {
		sh.mu.Lock()
		c := sh.cold
		n := c.count()
		for p := range sh.t.all() {
			if sh.t.word(p).settles() {
				n++
			}
		}
		least, size := 2*c.Len(), c.DoubledBytes() // the settler alone changes them, and who clears the map
		enough := n <= c.Len()*index.Most
		for i := range c.Len() {
			enough = enough || c.At(i).Shared() // the sweep first has to end that
		}
		sh.mu.Unlock()
		if enough {
			return nil
		}
		if err := s.room(size); err != nil {
			return err
		}
		sh.mu.Lock()
		old, err := c.Bytes(), error(nil)
		same := 2*c.Len() == least && c.shelf == nil && !sh.closed
		if same {
			err = c.Double()
			c.gen++
		}
		now := c.Bytes()
		sh.mu.Unlock()
		s.h.core.Logs.ShrinkIndex(size + old - now)
		if err != nil || !same {
			return err
		}
	}
}

// visitAll visits the leaves of the ranges that are due.
func (s *settler) visitAll(m *ByteMap, sh *shard, gen int, due []bool) error {
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
func (s *settler) visit(m *ByteMap, sh *shard, gen int, ranges []int) (n int, err error) {
	n = s.choose(sh, gen, ranges)
	if n == 0 {
		return 0, heap.ErrClosed // the leaves are others now
	}
	err = s.read()
	for at := 0; at < len(s.units); {
		k, werr := s.stage(m, sh, gen, at)
		if heap.IsStagingFull(werr) {
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
			s.reads = append(s.reads, s.h.core.PageRead(u.ref.Addr(), s.bodies[bytes:bytes+size:bytes+size]))
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

// readLeaves reads leaves, as heap.ReadPages does.
func (h *Heap) readLeaves(ctx context.Context, reads []heap.PageRead) ([]index.Leaf, []error) {
	if len(reads) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, heap.StoreTimeout)
	defer cancel()
	leaves, errs := make([]index.Leaf, len(reads)), make([]error, len(reads))
	h.core.ReadPages(ctx, reads)
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
func (s *settler) stage(m *ByteMap, sh *shard, gen, at int) (n int, err error) {
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
			if heap.IsStagingFull(err) && n > 0 {
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
func (s *settler) renew(m *ByteMap, sh *shard, u *unit, k int) error {
	c := sh.cold
	i := u.first + k
	lo, hi := c.Range(i)
	from := len(s.hot)
	for p := range sh.t.within(lo, hi) {
		if w := *sh.t.word(p); w.tells() {
			s.hot = append(s.hot, hotSlot{sh.t.tag(p), w})
		}
	}
	hot := s.hot[from:]
	slices.SortFunc(hot, func(a, b hotSlot) int {
		return cmp.Or(cmp.Compare(a.tag, b.tag), cmp.Compare(a.w.settled(), b.w.settled()))
	})
	out := s.slots[:0]
	at, end, cold := u.body.Find(uint32(lo)), u.body.Len(), 0
	if hi <= 1<<32-1 {
		end = u.body.Find(uint32(hi))
	}
	changed := u.n > 1 || s.forced
	keep := func(before uint64, known bool) { // what the leaf has of tags before that one
		for ; at < end && uint64(u.body.At(at).Tag) < before; at++ {
			sl := u.body.At(at)
			out = append(out, sl)
			if !known && !word(sl.Word).isLost() {
				cold++
			}
		}
	}
	for g := 0; g < len(hot); {
		tag, e := hot[g].tag, g
		for e < len(hot) && hot[e].tag == tag {
			e++
		}
		words := hot[g:e]
		keep(uint64(tag), false)
		due, clean := true, true
		for _, x := range words {
			// What was removed from a range that was lost stays: otherwise it would be lost again.
			due = due && (x.w.settles() || x.w.gone() && !u.ref.Lost())
			clean = clean && x.w&wordSettled != 0
		}
		if !due || clean && len(words) == 1 {
			keep(uint64(tag)+1, true)
		} else {
			first := at
			for at < end && u.body.At(at).Tag == tag {
				at++
			}
			n := 0
			for _, x := range words {
				if x.w.gone() {
					continue
				}
				sl := index.Slot{Word: uint64(x.w.settled()), Tag: tag}
				out = append(out, sl)
				changed = changed || first+n >= at || u.body.At(first+n) != sl
				n++
			}
			changed = changed || n != at-first
			s.groups = append(s.groups, group{from + g, from + e})
		}
		g = e
	}
	keep(hi, false)
	s.slots = out
	nl := &u.news[k]
	nl.cold, nl.same = cold, !changed
	switch {
	case len(out) == 0 || !changed:
		return nil
	case index.Size(len(out)) > len(s.bodies)/2:
		return errLeafFull
	}
	body := index.Size(len(out))
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
			s.settleGroup(sh, s.hot[g.lo:g.hi])
		}
	}
}

// unknownOf is how many entries only leaf knows. sh.mu must be held.
func (sh *shard) unknownOf(leaf index.Leaf) (n int) {
	for i := range leaf.Len() {
		if s := leaf.At(i); !word(s.Word).isLost() && !sh.known(s.Tag) {
			n++
		}
	}
	return n
}

// settleGroup makes the words of a tag, which its leaf has now, settled. If they are others by now,
// they stay as they are. sh.mu must be held.
func (s *settler) settleGroup(sh *shard, was []hotSlot) {
	tag := was[0].tag
	var now [8]word
	n := 0
	for p := range sh.t.matches(tag) {
		w := *sh.t.word(p)
		if !w.tells() {
			continue
		}
		if n == len(now) || !w.settles() && !w.gone() || s.h.cleans(w) {
			sh.soil(tag)
			return
		}
		now[n] = w.settled()
		n++
	}
	slices.Sort(now[:n])
	same, live := n == len(was), 0
	for i := range was {
		same = same && now[i] == was[i].w.settled()
		if !was[i].w.gone() {
			live++
		}
	}
	if !same {
		sh.soil(tag)
		return
	}
	for p := range sh.t.matches(tag) {
		switch w := sh.t.word(p); {
		case !w.tells():
		case live == 1 && !w.gone():
			*w |= wordSettled
		default:
			sh.leave(p)
		}
	}
}

const (
	// cleanPagesAbove is the part of the far memory of leaves that may be dead, provided there
	// are at least cleanPagesFrom segments of it; and cleanPagesFull when the store is full.
	cleanPagesAbove = 1.0 / 3
	cleanPagesFull  = 0.1
	cleanPagesFrom  = 3
)

// clean writes the leaves anew that are in segments of which little lives, until far memory is clean
// enough.
func (s *settler) clean(full bool) {
	above, least := cleanPagesAbove, cleanPagesFrom
	if full {
		above, least = cleanPagesFull, 1
	}
	for s.h.core.Ctx.Err() == nil {
		var live, filled int64
		var worst *heap.FarSegment
		n := 0
		s.h.core.Far.All(func(f *heap.FarSegment) {
			if !f.HasPages() || !f.Sealed() || f.Gone() {
				return
			}
			n++
			live += f.Live.Load()
			filled += f.Filled()
			if f.Live.Load() > 0 && (worst == nil || f.Live.Load() < worst.Live.Load()) {
				worst = f
			}
		})
		if worst == nil || n < least || float64(filled-live) < above*float64(filled) || !s.empty(worst) {
			return
		}
	}
}

// empty writes the leaves in f anew, and reports whether nothing lives in it any more.
func (s *settler) empty(f *heap.FarSegment) bool {
	s.forced = true
	defer func() { s.forced = false }()
	s.h.cleanedPages.Add(1)
	for _, m := range *s.h.maps.Load() {
		shards := m.shards() // they may be others when the map is freed
		for i := range shards {
			sh := &shards[i]
			sh.mu.Lock()
			if !sh.hasLeaves() || sh.cold.shelf != nil {
				sh.mu.Unlock()
				continue
			}
			due, any := make([]bool, sh.cold.Len()), false
			for k := range due {
				a := sh.cold.At(k).Addr()
				due[k] = a != 0 && a/s.h.core.Far.Units == f.ID
				any = any || due[k]
			}
			gen := sh.cold.gen
			sh.mu.Unlock()
			if any && s.visitAll(m, sh, gen, due) != nil {
				return false
			}
		}
	}
	return f.Live.Load() == 0
}

// buryDead accounts for what was cleared. What cannot be read just now is tried again when the settler is
// woken.
func (s *settler) buryDead() {
	s.mu.Lock()
	dead := s.dead
	s.mu.Unlock()
	if len(dead) == 0 {
		return
	}
	var left []*corpse
	for _, d := range dead {
		n := d.dir.Bytes()
		if !s.buryLeaves(d) {
			left = append(left, d)
			continue
		}
		if err := d.dir.Close(); err != nil {
			panic("BUG: " + err.Error())
		}
		s.h.core.Logs.ShrinkIndex(n)
	}
	s.mu.Lock()
	s.dead = append(left, s.dead[len(dead):]...)
	s.mu.Unlock()
}

// burying reports whether there is something to be buried.
func (s *settler) burying() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dead) > 0
}

// buryLeaves buries what the leaves of d refer to, and reports whether it could.
func (s *settler) buryLeaves(d *corpse) bool {
	all := true
	for i := 0; i < d.dir.Len() && s.h.core.Ctx.Err() == nil; {
		var reads []heap.PageRead
		var at []int
		for bytes := 0; i < d.dir.Len() && len(at) < visitLeaves; {
			first, n := d.dir.Group(i)
			ref := d.dir.At(first)
			size := sizeclass.Size(ref.Class())
			if ref.Addr() != 0 && bytes+size > len(s.bodies) {
				break
			}
			i = first + n
			switch {
			case ref.Addr() == 0:
			case s.h.core.Far.Seg(ref.Addr()).Gone():
				s.buried(d, first)
			default:
				reads = append(reads, s.h.core.PageRead(ref.Addr(), s.bodies[bytes:bytes+size:bytes+size]))
				at = append(at, first)
				bytes += size
			}
		}
		if len(at) == 0 {
			continue
		}
		leaves, errs := s.h.readLeaves(s.h.core.Ctx, reads)
		for k, first := range at {
			var bad *heap.CorruptError
			if errors.As(errs[k], &bad) {
				s.h.leavesLost.Store(true)
				s.buried(d, first)
				continue
			}
			if errs[k] != nil {
				all = false
				continue
			}
			for j := range leaves[k].Len() {
				sl := leaves[k].At(j)
				if _, known := slices.BinarySearch(d.known, sl.Tag); !known {
					s.h.bury(word(sl.Word), nil)
				}
			}
			s.buried(d, first)
		}
	}
	return all && s.h.core.Ctx.Err() == nil
}

// buried accounts for the leaf of range i of d, of which the words are accounted for.
func (s *settler) buried(d *corpse, i int) {
	first, n := d.dir.Group(i)
	ref := d.dir.At(first)
	s.h.core.BuryFar(ref.Addr(), sizeclass.Size(ref.Class()))
	for k := first; k < first+n; k++ {
		d.dir.Set(k, 0)
	}
}

// close gives the settler's memory back, after it has ended.
func (s *settler) close() error {
	var errs []error
	for _, d := range s.dead {
		errs = append(errs, d.dir.Close())
	}
	if s.mem != nil {
		errs = append(errs, s.mem.Close())
	}
	return errors.Join(errs...)
}
