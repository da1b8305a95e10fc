package memnode

import (
	"fmt"

	"polder/memnode/wire"
	"polder/verbs"
)

// An opener is how rpc opens what it lends to the borrower, and closes it again:
// what the managers that work by messages differ in. It belongs to the control
// goroutine.
type opener interface {
	// connect answers a request for c's next access queue pair, and has c have it.
	connect(c *client, req verbs.ConnRequest) error
	// take returns a chunk for c, or false if all are lent.
	take(c *client) (uint32, bool)
	// open opens chunks that take gave, or that c's session had before its
	// connection was lost, to c, in order, and returns how many it did.
	// Chunks that take gave read as zero then.
	open(c *client, ids []uint32) (int, error)
	// grant says how c, which chunk i is open to, reaches it.
	grant(i uint32) wire.Grant
	// shut closes chunks that have been freed, and are reclaimed next.
	shut(ids []uint32)
	// leave closes everything that is open to c: its connection is gone.
	leave(c *client)
	// work does a little of what freed chunks need, and reports whether
	// there is more to do.
	work() bool
	// close ends what is still open. There are no clients any more.
	close()
}

// windows2 opens a chunk by a window of type 2B: only the access queue pair of the
// borrower's that the chunk's number says (wire.GroupOf) may use it.
type windows2 struct {
	node *Node
	*chunks
}

func (w windows2) connect(c *client, req verbs.ConnRequest) error {
	return w.node.connectAccess(c, req, w.node.event)
}

func (w windows2) take(*client) (uint32, bool) { return w.chunks.take() }

func (w windows2) open(c *client, ids []uint32) (int, error) {
	return w.bind(verbs.MWType2B, c.access, ids)
}

func (w windows2) grant(i uint32) wire.Grant {
	return wire.Grant{Chunk: i, Key: w.all[i].mw.RKey(), Addr: w.address(i)}
}

func (w windows2) shut(ids []uint32) { w.unbind(ids) }

func (w windows2) leave(c *client) {
	for _, i := range c.session.chunks {
		w.dropWindow(i)
	}
}

func (w windows2) work() bool {
	if len(w.dirty) > 0 {
		w.scrub()
	}
	return len(w.dirty) > 0
}

func (w windows2) close() { w.chunks.close() }

// maxStale is how many freed chunks keep their window of type 1, for the next
// allocation to rebind.
const maxStale = 16

// windows1 opens a chunk by a window of type 1, which may be bound again while it
// is bound. So a free does nothing, and the allocation that comes next does the
// work of both: one bind takes the chunk from the one and gives it to the other
// (section 2.2.2 of the OneSidedMW paper).
//
// It is not safe. Any queue pair of the node's may use a window of type 1, and a
// bind changes 8 bits of its key: whoever has had the chunk finds the next
// borrower's key in at most 256 guesses.
type windows1 struct {
	windows2
	stale map[uint32]bool // taken with its window still bound
}

func newWindows1(w windows2) *windows1 {
	return &windows1{windows2: w, stale: make(map[uint32]bool)}
}

func (w *windows1) take(c *client) (uint32, bool) {
	if last := len(w.dirty) - 1; last >= 0 {
		i := w.dirty[last]
		w.dirty = w.dirty[:last]
		w.stale[i] = true
		return i, true
	}
	return w.windows2.take(c)
}

func (w *windows1) open(c *client, ids []uint32) (int, error) {
	done, err := w.bind(verbs.MWType1, c.access, ids)
	for _, i := range ids {
		// Not before: until it is bound again, the last borrower reaches it.
		if w.stale[i] {
			w.zero(i)
			delete(w.stale, i)
		}
	}
	return done, err
}

// shut leaves the windows as they are.
func (w *windows1) shut(ids []uint32) {
	for _, i := range ids {
		w.all[i].bound = false
	}
}

// work cleans up beyond what the next allocations may rebind.
func (w *windows1) work() bool {
	if len(w.dirty) <= maxStale {
		return false
	}
	// The oldest has waited longest for an allocation.
	i := w.dirty[0]
	w.dirty = append(w.dirty[:0], w.dirty[1:]...)
	w.dropWindow(i)
	w.zero(i)
	w.free = append(w.free, i)
	return len(w.dirty) > maxStale
}

// registrations opens a chunk by registering it in a protection domain of the
// borrower's own.
type registrations struct {
	node *Node
	*chunks
	// keep leaves a chunk that has been freed registered, for the same client
	// to borrow again without a registration, and registers some in advance.
	keep bool
	of   []registration // by chunk
}

// registration is of a chunk, for a client: lent to it, or kept for it.
type registration struct {
	mr     verbs.MR // nil: not registered
	holder *client
}

// ahead is how many chunks are registered for a client when it connects.
const ahead = 4

func newRegistrations(n *Node, t *chunks, keep bool) *registrations {
	return &registrations{node: n, chunks: t, keep: keep, of: make([]registration, len(t.all))}
}

func (r *registrations) connect(c *client, req verbs.ConnRequest) error {
	pd, err := r.node.dev.AllocPD()
	if err != nil {
		return fmt.Errorf("cannot create a protection domain: %w", err)
	}
	access, err := pd.CreateQP(verbs.QPInit{
		SendCQ: c.cq, RecvCQ: c.cq, SendDepth: 1, RecvDepth: 1, OnEvent: r.node.event,
	})
	if err != nil {
		pd.Close()
		return fmt.Errorf("cannot create an access queue pair: %w", err)
	}
	if err := req.Accept(access, nil); err != nil {
		access.Close()
		pd.Close()
		return nil // the connection is gone, and its watcher will say so
	}
	c.access, c.part = append(c.access, access), pd
	if r.keep {
		r.registerAhead(c)
	}
	return nil
}

// registerAhead registers chunks that nobody has or is kept for, for c.
func (r *registrations) registerAhead(c *client) {
	for range min(ahead, r.node.cfg.budget()) {
		i, ok := r.unclaimed()
		if !ok || r.register(c, i) != nil {
			return
		}
	}
}

// unclaimed returns a free chunk, which stays free, that is not registered.
func (r *registrations) unclaimed() (uint32, bool) {
	for _, i := range r.free {
		if r.of[i].mr == nil {
			return i, true
		}
	}
	if r.fresh == len(r.all) {
		return 0, false
	}
	i := uint32(r.fresh)
	r.fresh++
	r.free = append(r.free, i)
	return i, true
}

// take prefers a chunk that is registered for c, then one that is not
// registered, and only then one that is kept for another.
func (r *registrations) take(c *client) (uint32, bool) {
	if !r.keep {
		return r.chunks.take()
	}
	for len(r.dirty) > 0 {
		r.scrub()
	}
	other := -1
	for k, i := range r.free {
		switch r.of[i].holder {
		case c:
			r.free = append(r.free[:k], r.free[k+1:]...)
			return i, true
		case nil:
			other = k
		}
	}
	if other < 0 && r.fresh == len(r.all) && len(r.free) > 0 {
		other = 0
	}
	if other >= 0 {
		i := r.free[other]
		r.free = append(r.free[:other], r.free[other+1:]...)
		return i, true
	}
	return r.chunks.take()
}

func (r *registrations) open(c *client, ids []uint32) (int, error) {
	for done, i := range ids {
		if reg := r.of[i]; reg.mr != nil && reg.holder != c {
			// It has been open to another since it was zeroed.
			r.deregister(i)
			r.zero(i)
		}
		if r.of[i].mr == nil {
			if err := r.register(c, i); err != nil {
				return done, err
			}
		}
		r.all[i].bound = true
	}
	return len(ids), nil
}

func (r *registrations) register(c *client, i uint32) error {
	off := int(i) * r.size
	mr, err := c.part.(verbs.PD).RegMR(r.mem.Bytes()[off:off+r.size], verbs.AccessLocalWrite|windowAccess)
	if err != nil {
		return err
	}
	r.of[i] = registration{mr: mr, holder: c}
	return nil
}

func (r *registrations) deregister(i uint32) {
	if mr := r.of[i].mr; mr != nil {
		if err := mr.Deregister(); err != nil {
			panic(fmt.Sprintf("BUG: cannot deregister chunk %d: %v", i, err))
		}
	}
	r.of[i] = registration{}
}

func (r *registrations) grant(i uint32) wire.Grant {
	mr := r.of[i].mr
	return wire.Grant{Chunk: i, Key: mr.RKey(), Addr: mr.Addr()}
}

func (r *registrations) shut(ids []uint32) {
	for _, i := range ids {
		if !r.keep {
			r.deregister(i)
		}
		r.all[i].bound = false
	}
}

func (r *registrations) leave(c *client) {
	for i, reg := range r.of[:r.fresh] {
		if reg.holder == c {
			r.deregister(uint32(i))
			r.all[i].bound = false
			if r.keep && r.all[i].owner.Load() == nil {
				r.zero(uint32(i)) // it may have been written to since it was freed
			}
		}
	}
	if len(c.access) == 0 {
		return
	}
	c.access[0].Close()
	c.access = nil
	if err := c.part.(verbs.PD).Close(); err != nil {
		panic(fmt.Sprintf("BUG: cannot close a client's protection domain: %v", err))
	}
}

func (r *registrations) work() bool {
	if len(r.dirty) > 0 {
		r.scrub()
	}
	return len(r.dirty) > 0
}

func (r *registrations) close() {}
