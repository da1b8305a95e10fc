package memnode

import (
	"fmt"

	"polder/memnode/wire"
	"polder/verbs"
)

// An opener is how rpc opens chunks to their borrower, and closes them again. It is what distinguishes the managers
// that work by messages. It belongs to the control goroutine.
type opener interface {
	// connect answers a request for c's next access queue pair, and adds the queue pair to c.access.
	connect(c *client, req verbs.ConnRequest) error
	// take returns a chunk for c, or false if all are lent.
	take(c *client) (uint32, bool)
	// open opens chunks to c, in order, and returns how many it opened. The chunks come from take, and then read as
	// zero, or c's session had them before its connection was lost.
	open(c *client, ids []uint32) (int, error)
	// grant says how the client that chunk i is open to reaches it.
	grant(i uint32) wire.Grant
	// shut closes chunks that have been freed and will be reclaimed next.
	shut(ids []uint32)
	// leave closes everything that is open to c, whose connection is gone.
	leave(c *client)
	// work does a little of what freed chunks need, and reports whether
	// there is more to do.
	work() bool
	// close ends what is still open. There are no clients any more.
	close()
}

// windows2 opens a chunk by a window of type 2B: only one access queue pair of the borrower may use it, the one that
// the chunk's number says (wire.GroupOf).
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

// windows1 opens a chunk by a window of type 1, which may be bound again while it is bound. So a free leaves the
// window as it is, and the next allocation does the work of both: one bind takes the chunk from the old borrower and
// gives it to the new one (section 2.2.2 of the OneSidedMW paper).
//
// It is not safe. Any queue pair of the node may use a window of type 1, and a bind changes only 8 bits of its key: a
// former borrower of the chunk finds the next borrower's key in at most 256 guesses.
type windows1 struct {
	windows2
	stale map[uint32]bool // chunks that take returned with their windows still bound
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
		// Not before the bind: until then, the last borrower can write to the chunk.
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

// work cleans one of the freed chunks if there are more than the next allocations may rebind (maxStale).
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
	// keep leaves a freed chunk registered, so that the same client can borrow it again without a registration, and
	// registers some chunks in advance.
	keep bool
	of   []registration // by chunk
}

// registration is the registration of a chunk for a client, which has borrowed the chunk or for which it is kept.
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

// registerAhead registers for c some chunks that nobody has and that are kept for nobody.
func (r *registrations) registerAhead(c *client) {
	for range min(ahead, r.node.cfg.budget()) {
		i, ok := r.unclaimed()
		if !ok || r.register(c, i) != nil {
			return
		}
	}
}

// unclaimed returns a free chunk that is not registered. The chunk stays free.
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

// take prefers a chunk that is registered for c, then one that is not registered, and only then one that is kept for
// another client.
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
			// It has been open to another client since it was zeroed.
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
