package memnode

import (
	"fmt"
	"sync/atomic"

	"polder/memnode/wire"
	"polder/verbs"
)

// A chunk is one piece of the lent memory. It is, in this order, never used,
// lent, dirty (taken back, not yet zeroed) and free, and then lent again.
type chunk struct {
	owner atomic.Pointer[session] // nil unless lent; other goroutines may read it
	pos   int                     // lent: index in owner.chunks
	mw    verbs.MW                // nil until the chunk is first bound, and after its window has been deallocated
	bound bool                    // mw is bound to an access queue pair of owner's connection
}

// chunks is the lent memory and who has it. It belongs to the control
// goroutine.
type chunks struct {
	*memory
	all   []chunk
	fresh int      // all[fresh:] have never been lent
	free  []uint32 // read as zero, unbound; a stack
	dirty []uint32 // unbound, to be zeroed
	kept  int      // how many chunks must stay unlent, since the host may need the memory
}

// lent counts the chunks that are lent.
func (t *chunks) lent() int { return t.fresh - len(t.free) - len(t.dirty) }

// available counts the chunks that can be lent now.
func (t *chunks) available() int { return max(0, len(t.all)-t.kept-t.lent()) }

// take returns a chunk that reads as zero, or false if no more chunks may be lent now.
func (t *chunks) take() (uint32, bool) {
	if t.available() == 0 {
		return 0, false
	}
	if len(t.free) == 0 && t.fresh == len(t.all) && len(t.dirty) > 0 {
		t.scrub()
	}
	switch {
	case len(t.free) > 0:
		i := t.free[len(t.free)-1]
		t.free = t.free[:len(t.free)-1]
		return i, true
	case t.fresh < len(t.all):
		i := uint32(t.fresh)
		t.fresh++
		return i, true
	}
	return 0, false
}

// untake takes back a chunk that take returned and that nobody was given access to.
func (t *chunks) untake(i uint32) { t.free = append(t.free, i) }

// scrub zeroes one dirty chunk and makes it free.
//
// Preconditions: there is a dirty chunk.
func (t *chunks) scrub() {
	last := len(t.dirty) - 1
	i := t.dirty[last]
	t.dirty = t.dirty[:last]
	t.zero(i)
	t.free = append(t.free, i)
}

// lend makes s the owner of i.
func (t *chunks) lend(i uint32, s *session) {
	c := &t.all[i]
	c.pos = len(s.chunks)
	c.owner.Store(s)
	t.own(i, s.owner)
	s.chunks = append(s.chunks, i)
}

// reclaim takes i, whose window must be unbound, away from its owner.
func (t *chunks) reclaim(i uint32) {
	c := &t.all[i]
	if c.bound {
		panic(fmt.Sprintf("BUG: chunk %d is reclaimed while its window is bound", i))
	}
	s := c.owner.Load()
	last := s.chunks[len(s.chunks)-1]
	s.chunks[c.pos] = last
	t.all[last].pos = c.pos
	s.chunks = s.chunks[:len(s.chunks)-1]
	c.owner.Store(nil)
	t.own(i, 0)
	t.dirty = append(t.dirty, i)
}

// ownedBy reports whether i is a chunk of s's.
func (t *chunks) ownedBy(i uint32, s *session) bool {
	return int(i) < len(t.all) && t.all[i].owner.Load() == s
}

// bind binds a window of type typ to each of the chunks ids, in order, and returns how many it bound; the remaining
// chunks have no window afterwards. A window of type 2B is bound to one queue pair of qps: the one of the group that
// the chunk's number says (wire.GroupOf).
func (t *chunks) bind(typ verbs.MWType, qps []verbs.QP, ids []uint32) (int, error) {
	b := t.binder
	b.WRs = b.WRs[:0]
	var failed error
	for _, i := range ids {
		c := &t.all[i]
		if c.mw == nil {
			if c.mw, failed = t.pd.AllocMW(typ); failed != nil {
				c.mw = nil
				failed = fmt.Errorf("cannot allocate a window: %w", failed)
				break
			}
		}
		old := c.mw.RKey()
		b.WRs = append(b.WRs, verbs.SendWR{
			Op:         verbs.OpBindMW,
			Flags:      verbs.SendSignaled,
			RKey:       verbs.MakeRKey(old.Index(), old.Key()+1),
			BindLKey:   t.mr.LKey(),
			RemoteAddr: t.address(i),
			BindLength: uint64(t.size),
			BindAccess: windowAccess,
			QPN:        qps[wire.GroupOf(i, len(qps))].Num(),
		})
	}
	done, err := b.Run()
	for n, i := range ids {
		t.all[i].bound = n < done
		if n >= done {
			t.dropWindow(i)
		}
	}
	if err == nil {
		err = failed
	}
	return done, err
}

// unbind makes the given chunks inaccessible.
func (t *chunks) unbind(ids []uint32) {
	b := t.binder
	b.WRs = b.WRs[:0]
	for _, i := range ids {
		if c := &t.all[i]; c.bound {
			b.WRs = append(b.WRs, verbs.SendWR{
				Op: verbs.OpLocalInv, Flags: verbs.SendSignaled | verbs.SendAnyQP, RKey: c.mw.RKey(),
			})
		}
	}
	done, _ := b.Run() // a window that could not be invalidated is deallocated below
	for _, i := range ids {
		c := &t.all[i]
		if !c.bound {
			continue
		}
		if done > 0 {
			c.bound = false
			done--
			continue
		}
		t.dropWindow(i)
	}
}

// dropWindow deallocates i's window, in whatever state it is.
func (t *chunks) dropWindow(i uint32) {
	c := &t.all[i]
	if c.mw == nil {
		return
	}
	if err := c.mw.Dealloc(); err != nil {
		panic(fmt.Sprintf("BUG: cannot deallocate the window of chunk %d: %v", i, err))
	}
	c.mw, c.bound = nil, false
}

// close deallocates every window.
func (t *chunks) close() {
	for i := range t.fresh {
		t.dropWindow(uint32(i))
	}
}
