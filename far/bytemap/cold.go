package bytemap

import (
	"errors"

	"polder/far/heap"
	"polder/far/index"
	"polder/internal/sizeclass"
)

// leafIndex is the part of a shard's index that can go far: see package index. There is none for as long
// as the tables of all maps are within their share of the budget: see Maps.share.
//
// A tag is known if the table has a word with it that is not a piece's. Then what the leaf has of the tag is void;
// otherwise the leaf has all of the tag's entries. So a call first makes the tag known, and then works on words in
// the table alone. The settler settles those words: it moves them back to the leaf. A word is Settled if the leaf has
// it as it is: it was settled, or it came from the leaf and has not changed since. The table may forget it.
//
// An entry that was removed leaves a Gone behind, until that is settled. Only words of far entries that have no
// pieces, and are in no transaction, are settled; other words stay in the table.
type leafIndex struct {
	index.Dir
	gen      int  // changes when Dir is replaced or doubled, and when the entries of a leaf are counted again
	settling bool // the settler is to make room in the table
	crowded  bool // the settler could not make room, so the table may grow beyond its share
	barren   bool // the last try to forget words freed too little, and nothing was settled since
	hand     int  // the bucket where forget goes on
	lost     int  // lost entries that have no word in the table, or none anywhere, since they were lost with leaves
	shelf    *corpse
}

// SettleEarly: words of all maps are settled as soon as a table of a page is full. It is set by the build tag settle.
var SettleEarly bool

// errSettling: there is no place in the table until the settler has made some.
var errSettling = errors.New("no place in a table")

// lacksRoom reports whether err means that the call has to wait, and then to try again.
func lacksRoom(err error) bool { return heap.LacksRoom(err) || err == errSettling }

// hasLeaves reports whether the shard may know entries by leaves alone.
func (sh *shard) hasLeaves() bool { return sh.cold != nil && sh.cold.Len() > 0 }

// known reports whether what the index has of tag is in the table. sh.mu must be held.
func (sh *shard) known(tag uint32) bool {
	return !sh.hasLeaves() || sh.t.Knows(tag)
}

// consult makes tag known, which it is not yet, by what its leaf says; hd holds the leaf if it has been read. consult
// returns present if it has made tag known, absent if tag has no leaf and has lost none, unread if the leaf has to be
// read first, or crowded if there is no place in the table. sh.mu must be held.
func (sh *shard) consult(h *Maps, tag uint32, hd *holding) status {
	c := sh.cold
	i := c.Of(tag)
	ref := c.At(i)
	var leaf index.Leaf
	if ref.Addr() != 0 {
		if h.core.Far.Seg(ref.Addr()).Gone() {
			sh.loseLeaf(h, i)
		} else if leaf = hd.leaf(ref.Addr()); leaf == nil {
			return unread
		}
	}
	return sh.learn(h, tag, i, leaf, index.HotOne)
}

// learn is consult with the leaf of range i, which tag is in; leaf is nil if the range has none. The words get warmth
// as their bits of HotMask.
func (sh *shard) learn(h *Maps, tag uint32, i int, leaf index.Leaf, warmth index.Word) status {
	c := sh.cold
	ref := c.At(i)
	if ref == 0 {
		return absent
	}
	first, n := leaf.Find(tag), 0
	for first+n < leaf.Len() && leaf.At(first+n).Tag == tag {
		n++
	}
	if !sh.roomy() {
		_ = sh.more(h, tag)
	}
	places := sh.t.Places()
	if warmth == index.HotMask {
		places -= places / 32 // the cleaner leaves the last places to calls that read
	}
	if sh.t.Used+max(n, 1) >= places {
		return crowded
	}
	switch {
	case n == 0 && ref.Lost():
		sh.t.Insert(tag, index.Far|index.Lost|index.Settled|warmth) // there may have been one
		sh.lost++
		return present
	case n == 0:
		sh.t.Insert(tag, index.Gone|index.Settled|warmth)
		return present
	}
	less := 0
	for k := first; k < first+n; k++ {
		w := leaf.At(k).Word | warmth
		if w.IsLost() {
			c.lost--
		} else {
			less++
			if h.core.Far.Seg(w.Addr()).Gone() {
				w |= index.Lost
				sh.entries--
				sh.lost++
				h.core.Count.Lost.Add(1)
			} else if n == 1 {
				w |= index.Settled
			}
		}
		sh.t.Insert(tag, w)
	}
	at, _ := c.Group(i)
	count := c.At(at).Count() - less
	if count < 0 || count > leaf.Len() {
		h.miscounts.Add(1)
		count = sh.t.Unknown(leaf)
		c.gen++ // otherwise the settler would take this correction for words forgotten meanwhile, and add it
	}
	c.Set(at, c.At(at).WithCount(count))
	return present
}

// more makes places in the table: it forgets settled words, except those of the tag keep; or has the settler settle
// words; or lets the table grow. It fails with errSettling if the caller has to wait for the settler, and as
// GrowIndex does. sh.mu must be held.
func (sh *shard) more(h *Maps, keep uint32) error {
	if sh.t.Bytes() == 0 || !h.tight() {
		return sh.grow(h)
	}
	if sh.cold == nil {
		sh.cold = new(leafIndex)
	}
	c := sh.cold
	if !c.barren || sh.full() {
		sh.forget(h, keep, sh.spared())
		if c.barren = !sh.roomy(); !c.barren {
			return nil
		}
	}
	if c.settling {
		return errSettling
	}
	if c.crowded || c.shelf != nil || !sh.ripe() {
		err := sh.grow(h)
		c.crowded = c.crowded && err != nil
		if err != nil && c.shelf == nil && sh.ripe() {
			c.settling = true // for later calls: it may be possible by then
			h.settler.wake()
		}
		return err
	}
	c.settling = true
	h.settler.wake()
	return errSettling
}

// roomy and full are Roomy and Full of the table, with lower limits if there are leaves: a search for a tag that the
// table does not know goes along the whole of a chain. sh.mu must be held.
func (sh *shard) roomy() bool {
	if sh.hasLeaves() {
		return sh.t.Used < sh.t.Places()*3/4
	}
	return sh.t.Roomy()
}

func (sh *shard) full() bool {
	if sh.hasLeaves() && !sh.cold.crowded {
		return sh.t.Used >= sh.t.Places()*7/8
	}
	return sh.t.Full()
}

// ripe reports whether it is worthwhile to settle the words of sh. sh.mu must be held.
func (sh *shard) ripe() bool {
	return 8*sh.t.Count(func(w index.Word) bool { return w.Settles() || w.IsGone() }) >= sh.t.Used
}

// spared is how many words the table may have to be roomy, and to have a sixteenth of its places to spare besides.
func (sh *shard) spared() int { return sh.t.Places()*11/16 - 1 }

// forget removes settled words that have not been used for a while, except those of the tag keep, until the table has
// no more than enough words. sh.mu must be held.
func (sh *shard) forget(h *Maps, keep uint32, enough int) {
	c, t := sh.cold, &sh.t
	if !sh.hasLeaves() || c.shelf != nil {
		return
	}
	for range 4 * len(t.Buckets) { // after which HotMask is 0
		if t.Used <= enough {
			return
		}
		if c.hand++; c.hand >= len(t.Buckets) {
			c.hand = 0
		}
		for i := range index.BucketEntries {
			p := index.Place(c.hand*index.BucketEntries + i)
			w, tag := t.Word(p), t.Tag(p)
			switch {
			case !w.Forgets() || tag == keep || h.cleans(*w):
			case *w&index.HotMask != 0:
				*w -= index.HotOne
			case sh.t.Alone(p):
				sh.leave(p)
				t.Tighten(p)
			}
		}
	}
}

// leave removes the word at p from the table. The leaf must have all that is known of its tag. sh.mu must be held.
func (sh *shard) leave(p index.Place) {
	c, w := sh.cold, *sh.t.Word(p)
	switch {
	case w.Unsure():
		sh.lost--
	case w.IsGone():
	case w.IsLost():
		c.lost++
	default:
		at, _ := c.Group(c.Of(sh.t.Tag(p)))
		c.Set(at, c.At(at).WithCount(c.At(at).Count()+1))
	}
	sh.t.Remove(p)
}

// cleans reports whether w refers to the far segment that is being cleaned.
func (h *Maps) cleans(w index.Word) bool {
	id := h.cleaning.Load()
	return id != 0 && w.Addr()/h.core.Far.Units == id
}

// takeOut removes the word at p from the table. If its leaf may have the word, a Gone takes its place; or, if other
// words keep its tag known, the table must not forget these from now on. sh.mu must be held.
func (sh *shard) takeOut(p index.Place) {
	if !sh.hasLeaves() || !sh.t.Word(p).Tells() {
		sh.t.Remove(p)
		return
	}
	if sh.t.Alone(p) {
		*sh.t.Word(p) = index.Gone
		return
	}
	tag := sh.t.Tag(p)
	sh.t.Remove(p)
	sh.t.Soil(tag)
}

// loseLeaf takes note that the leaf of range i is gone with its far memory. Nobody knows any more which keys the
// range had beside those that the table knows. sh.mu must be held.
func (sh *shard) loseLeaf(h *Maps, i int) {
	c := sh.cold
	first, n := c.Group(i)
	ref := c.At(first)
	h.leavesLost.Store(true)
	name := h.core.Far.Seg(ref.Addr()).Seg.Name()
	h.core.LastLost.Store(&name)
	h.core.BuryFar(ref.Addr(), sizeclass.Size(ref.Class()))
	sh.entries -= ref.Count()
	sh.lost += ref.Count()
	c.lost += ref.Count()
	h.core.Count.Lost.Add(uint64(ref.Count()))
	for k := first; k < first+n; k++ {
		c.Set(k, c.At(k).AsLost())
		lo, hi := c.Range(k)
		for p := range sh.t.Within(lo, hi) {
			*sh.t.Word(p) &^= index.Settled // nobody else has it any more
		}
	}
}

// loseLeaves is loseLeaf for all leaves that were in s. sh.mu must be held.
func (sh *shard) loseLeaves(h *Maps, s *heap.FarSegment) {
	if !s.HasPages() || !sh.hasLeaves() {
		return
	}
	for i := range sh.cold.Len() {
		if a := sh.cold.At(i).Addr(); a != 0 && a/h.core.Far.Units == s.ID {
			sh.loseLeaf(h, i)
		}
	}
}

// close gives back the memory of the directory. c may be nil.
func (c *leafIndex) close() error {
	if c == nil {
		return nil
	}
	var err error
	if c.shelf != nil {
		err = c.shelf.dir.Close()
	}
	return errors.Join(err, c.Dir.Close())
}
