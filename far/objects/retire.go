package objects

import (
	"context"
	"slices"
	"sync/atomic"

	"polder/far/heap"
)

// Each calls fn with the words of the objects of c. It leaves out pages of words that are in far memory and cannot be
// fetched.
func (sp *Space) Each(c *Class, fn func(p *uint64)) {
	s := sp.core.Acquire(context.Background())
	defer sp.core.Release(s)
	for page := range uint64(sp.words.pages.Load()) {
		sp.eachOf(s, page, c, fn)
	}
}

// eachOf is Each for a page of words.
func (sp *Space) eachOf(s *heap.Scope, page uint64, c *Class, fn func(p *uint64)) {
	// While the scope is open an object moves at most once, to where it then stays.
	sp.core.EnterAtOnce(s)
	defer s.Leave()
	ws := sp.words.page(page)
	for i := range ws {
		for Load(&ws[i]).Asleep() {
			s.Leave()
			err := sp.awaken(context.Background(), page)
			sp.core.EnterAtOnce(s)
			if err != nil {
				return
			}
		}
		if id, ok := sp.classOf(&ws[i]); ok && id == c.ID {
			fn(&ws[i])
		}
	}
}

// classOf returns the number of the class of the object of p, if there is one.
// The caller must be in a scope.
func (sp *Space) classOf(p *uint64) (uint16, bool) {
	for {
		w := Load(p)
		switch {
		case w.Far():
			return w.FarClass(), true
		case w.Zero():
			return uint16(w), true
		case !w.Local():
			return 0, false
		}
		id := classIn(atomic.LoadUint64(sp.core.Logs.Object(w.Addr()).Tail()))
		if Load(p) == w {
			return id, true
		}
	}
}

// mustExist panics if c has ended.
func (c *Class) mustExist() {
	if c.ended.Load() {
		panic("BUG: a far class or structure is used after it was freed")
	}
}

// retiredClass is a class that has ended. Goroutines that have loaded words or headers before that may still find its
// number in them.
type retiredClass struct {
	c      *Class
	epoch  int64  // scopes that were open before this epoch may be using such a word
	passes uint64 // Pass.Passes when the class ended: if odd, the pass under way may be using one, too
}

// Retire ends c, of which no pointer may be left, so that another class can have its number.
func (sp *Space) Retire(c *Class) {
	if c.ended.Swap(true) {
		return
	}
	r := retiredClass{c, sp.core.Scopes.Advance(), sp.core.Pass.Passes.Load()}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.retired = append(sp.retired, r)
	st := c.Stats()
	sp.past.Add(st.Name, &st, (*Stats).Add)
}

// usedID returns the number of the class that ended first, if nobody can come across it in the old meaning any more.
// Whoever fetches a far object can tell by the version of its record; everybody else who looks a class up by its
// number is in a scope, or is the evacuator in a pass. sp.mu must be held.
func (sp *Space) usedID() (uint16, bool) {
	if len(sp.retired) == 0 {
		return 0, false
	}
	r := &sp.retired[0]
	if r.passes%2 != 0 && sp.core.Pass.Passes.Load() == r.passes {
		return 0, false
	}
	if sp.core.Scopes.Fenced && heap.Fence() != nil || !sp.core.Scopes.Passed(r.epoch) {
		return 0, false
	}
	id := r.c.ID
	sp.retired = slices.Delete(sp.retired, 0, 1)
	return id, true
}

// ClassStats returns the statistics of all classes: those that exist, and then,
// by name, those that have ended.
func (sp *Space) ClassStats() []Stats {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	var all []Stats
	for _, c := range *sp.classes.Load() {
		if !c.ended.Load() {
			all = append(all, c.Stats())
		}
	}
	for name, st := range sp.past.All() {
		st.Name = name
		all = append(all, st)
	}
	return all
}
