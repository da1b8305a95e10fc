package far

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"polder/far/heap"
)

// Free ends the class, which nothing must be made of any more. It fails, and does
// nothing, if there are objects that have not been freed. It looks at all
// pointers of the heap, some nanoseconds each, and must not be called in a scope.
func (c *Class[T]) Free() error {
	n := 0
	c.h.objectsOf(c.c, func(*uint64) { n++ })
	if n > 0 {
		return fmt.Errorf("cannot free class %q: %d of its objects have not been freed", c.c.cfg.Name, n)
	}
	c.h.retire(c.c)
	return nil
}

// Clear frees all objects of the class, what is far or lost without reading it. Their pointers
// must not be used any more, and no object may be made or freed meanwhile. Clear looks at all
// pointers of the heap, some nanoseconds each, and must not be called in a scope.
func (c *Class[T]) Clear() { c.h.objectsOf(c.c, c.h.free) }

// objectsOf calls fn with the words of the objects of c.
func (h *Heap) objectsOf(c *class, fn func(p *uint64)) {
	s := h.core.Acquire(context.Background())
	defer h.core.Release(s)
	for page := range uint64(h.words.pages.Load()) {
		// In a scope an object moves once at the most, to where it then stays.
		h.core.EnterAtOnce(s)
		for n := page * wordsPerPage; n < (page+1)*wordsPerPage; n++ {
			if id, ok := h.classOf(h.words.at(n)); ok && id == c.id {
				fn(h.words.at(n))
			}
		}
		s.Leave()
	}
}

// classOf returns the number of the class of the object of p, if there is one.
// The caller must be in a scope.
func (h *Heap) classOf(p *uint64) (uint16, bool) {
	for {
		w := loadWord(p)
		switch {
		case w.far():
			return w.farClass(), true
		case w.zero():
			return uint16(w), true
		case !w.local():
			return 0, false
		}
		id := classIn(atomic.LoadUint64(h.core.Logs.Object(w.addr()).Tail()))
		if loadWord(p) == w {
			return id, true
		}
	}
}

// mustExist panics if c has ended.
func (c *class) mustExist() {
	if c.ended.Load() {
		panic("BUG: a far class or structure is used after it was freed")
	}
}

// retiredClass is a class that has ended, and whose number may be read in words
// and headers that somebody loaded before that.
type retiredClass struct {
	c      *class
	epoch  int64  // scopes that were open before it may be using such a word
	passes uint64 // pass.passes then: if odd, that pass may be
}

// retire ends c, of which no pointer is left, so that another class may have its
// number.
func (h *Heap) retire(c *class) {
	if c.ended.Swap(true) {
		return
	}
	r := retiredClass{c, h.core.Scopes.Advance(), h.core.Pass.Passes.Load()}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retired = append(h.retired, r)
	st := c.stats()
	h.past = remember(h.past, st.Name, st, (*ClassStats).Add)
}

// usedID returns the number of a class that has ended, if nobody can meet it any
// more. Whoever fetches a far object goes by its version; everybody else who
// looks a class up by its number is in a scope, or is the evacuator in a pass.
// h.mu must be held.
func (h *Heap) usedID() (uint16, bool) {
	if len(h.retired) == 0 {
		return 0, false
	}
	r := &h.retired[0]
	if r.passes%2 != 0 && h.core.Pass.Passes.Load() == r.passes {
		return 0, false
	}
	if h.core.Scopes.Fenced && heap.Fence() != nil || !h.core.Scopes.Passed(r.epoch) {
		return 0, false
	}
	id := r.c.id
	h.retired = slices.Delete(h.retired, 0, 1)
	return id, true
}

// sumsOf returns past by name.
func sumsOf[T any](past map[string]*T, call func(st *T, name string)) (all []T) {
	for _, name := range slices.Sorted(maps.Keys(past)) {
		st := *past[name]
		call(&st, name)
		all = append(all, st)
	}
	return all
}

// maxPast is how many names of classes that have ended are remembered.
const maxPast = 1 << 10

// remember adds st, what a class or a map that has ended has been through, to
// what is known of others of its name, so that sums do not go down.
// h.mu must be held.
func remember[T ClassStats | MapStats](past map[string]*T, name string, st T, add func(sum, st *T)) map[string]*T {
	if past[name] == nil && len(past) >= maxPast {
		name = "others that were freed"
	}
	if past == nil {
		past = map[string]*T{}
	}
	if past[name] == nil {
		past[name] = new(T)
	}
	add(past[name], &st)
	return past
}

// classStats returns the statistics of all classes: those that exist, and then,
// by name, those that have ended.
func (h *Heap) classStats() []ClassStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []ClassStats
	for _, c := range *h.classes.Load() {
		if !c.ended.Load() {
			all = append(all, c.stats())
		}
	}
	return append(all, sumsOf(h.past, func(st *ClassStats, name string) { st.Name = name })...)
}
