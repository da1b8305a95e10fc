package pool

import (
	"context"
	"encoding/binary"

	"polder/internal/arena"
	"polder/memnode/inplace"
	"polder/memnode/wire"
	"polder/pool/manager"
)

// A view is the memory of a node on this machine. The pool reads it in place and writes it through queue pairs; the
// node can close it. It implements manager.Mapper.
type view struct {
	*inplace.View
	chunkSize int
}

// Memory implements manager.Mapper.
func (v *view) Memory(g manager.Grant) []byte {
	mem, first, n := v.Bytes(), int(g.Chunk)*v.chunkSize, g.Chunks*v.chunkSize
	if first > len(mem) || n > len(mem)-first {
		return nil
	}
	return mem[first : first+n : first+n]
}

// mapMemory sets l.mapper to what maps the node's memory into this process: the session if it does so or, if the node
// passes its memory for reading, a view. If there is neither, everything goes over the fabric.
//
// Preconditions: l has a session.
func (n *node) mapMemory(ctx context.Context, l *link) {
	if m, ok := l.session.(manager.Mapper); ok {
		l.mapper = m
		return
	}
	// Only nodes whose manager can keep memory pass it.
	if entry, _ := wire.ManagerNamed(n.manager.Name()); !entry.Keeps || n.pool.cfg.OverFabric {
		return
	}
	info := l.session.Info()
	v, err := inplace.Ask(ctx, l.conn.LocalAddr(), l.conn.RemoteAddr(), info.Session, info.Chunks*info.ChunkSize)
	if err != nil {
		n.log.Debug("the node's memory is not read in place", "error", err)
		return
	}
	l.view = &view{View: v, chunkSize: info.ChunkSize}
	l.mapper = l.view
}

// What is done in place over a link.
const (
	inPlaceNothing = "nothing"
	inPlaceReads   = "reads"
	inPlaceAll     = "all"
)

// inPlace says, for people, what is done in place over l.
func (l *link) inPlace() string {
	switch {
	case l.view != nil:
		return inPlaceReads
	case l.mapper != nil:
		return inPlaceAll
	}
	return inPlaceNothing
}

// bind makes the binding of a grant over l.
func (l *link) bind(g manager.Grant) *binding {
	b := &binding{group: l.groups[g.Group], addr: g.Addr, keys: g.Keys, writable: l.view == nil}
	if l.mapper != nil {
		b.memory = l.mapper.Memory(g)
	}
	return b
}

// allows reports whether an operation of kind k on b's extent can be done in place.
func (b *binding) allows(k OpKind) bool {
	return b != nil && b.memory != nil && (k == OpRead || b.writable)
}

// inPlace carries out op, which has been checked, if the memory that it touches is mapped into this process. It
// reports false otherwise, or if op must be repeated over the fabric: then nothing has happened, or op is a READ or a
// WRITE.
//
// Hot path: it neither blocks nor allocates.
func (c *Chunk) inPlace(ctx context.Context, op *Op) bool {
	i := c.at(op.Off)
	x := c.extents[i]
	if b := x.binding.Load(); !b.allows(op.Kind) || ctx.Err() != nil || c.acquire() != nil {
		return false // the slow path finds out why
	}
	defer c.release()
	if op.Off-x.off <= x.size-int64(op.size()) { // fast path
		return x.inPlace(op)
	}
	part := Op{Kind: op.Kind, Off: op.Off}
	for rest := op.Buf; len(rest) > 0; i++ {
		x := c.extents[i]
		part.Buf = rest[:min(int64(len(rest)), x.off+x.size-part.Off)]
		if !x.inPlace(&part) {
			return false
		}
		part.Off, rest = part.Off+int64(len(part.Buf)), rest[len(part.Buf):]
	}
	return true
}

// inPlace is Chunk.inPlace for an operation on x only. It holds l.mapped while it accesses the memory, so that the
// memory is not unmapped.
func (x *extent) inPlace(op *Op) bool {
	b := x.binding.Load()
	if !b.allows(op.Kind) {
		return false
	}
	l := b.group.link
	if !l.useMapped() {
		return false
	}
	defer l.mapped.RUnlock()
	if l.dead.Load() || x.hasStrays() {
		return false
	}
	op.access(b.memory[op.Off-x.off:])
	if !l.mapper.Valid() {
		// The memory may have belonged to somebody else already when it was accessed.
		x.node.linkBroke(l)
		if !op.Kind.atomic() {
			return false
		}
		op.Prev = 0
		op.fail(x, ErrOutcomeUnknown)
		return true
	}
	x.node.counters.count(op.Kind, op.size(), 0)
	if op.Kind == OpRead {
		x.node.counters.readsInPlace.Add(1)
	}
	return true
}

// useMapped locks l.mapped for reading, and reports whether the connection is there. If not, it has unlocked it again.
func (l *link) useMapped() bool {
	l.mapped.RLock()
	select {
	case <-l.conn.Done():
		l.mapped.RUnlock()
		l.node.linkBroke(l) // otherwise only the keeper would notice, later
		return false
	default:
		return true
	}
}

// A row is reads that are carried out in place, one after the other, in the memory of one link. What has to be asked
// and counted is asked and counted once for all of them: for processors that read at the same time, that takes longer
// than to read.
type row struct {
	link  *link // whose mapped is held; nil if the row is empty
	ops   []*Op
	bytes int64
}

// add carries op out, which has been checked, as one more of the row, or as the first of a new one if the row is
// empty. It reports false if it cannot; then nothing has happened.
//
// Hot path: it does not block.
func (r *row) add(ctx context.Context, op *Op) bool {
	x := op.Chunk.extents[op.Chunk.at(op.Off)]
	b := x.binding.Load()
	if op.Kind != OpRead || !b.allows(OpRead) || op.Off-x.off > x.size-int64(op.size()) {
		return false
	}
	l := b.group.link
	if r.link != l && (r.link != nil || ctx.Err() != nil || !l.useMapped()) {
		return false
	}
	r.link = l
	if l.dead.Load() || x.hasStrays() || !op.Chunk.tryAcquire() {
		return false
	}
	op.access(b.memory[op.Off-x.off:])
	op.Chunk.release()
	r.ops = append(r.ops, op)
	r.bytes += int64(op.size())
	return true
}

// end ends the row, and calls again for each of its ops if the memory may have belonged to somebody else already when
// it was read.
func (r *row) end(again func(*Op)) {
	l := r.link
	if l == nil {
		return
	}
	valid := l.mapper.Valid()
	l.mapped.RUnlock()
	if valid {
		k := &l.node.counters
		k.reads.Add(int64(len(r.ops)))
		k.readsInPlace.Add(int64(len(r.ops)))
		k.bytesRead.Add(r.bytes)
	} else {
		l.node.linkBroke(l)
		for _, op := range r.ops {
			again(op)
		}
	}
	clear(r.ops)
	*r = row{ops: r.ops[:0]}
}

// access carries out o on the memory that begins at at. Single words are accessed atomically.
func (o *Op) access(at []byte) {
	switch {
	case o.Kind == OpCompareAndSwap:
		word := arena.Word64(at)
		for {
			o.Prev = word.Load()
			if o.Prev != o.Old || word.CompareAndSwap(o.Old, o.New) {
				return
			}
		}
	case o.Kind == OpFetchAdd:
		o.Prev = arena.Word64(at).Add(o.New) - o.New
	case o.Kind == OpRead && len(o.Buf) == 8 && o.Off%8 == 0:
		binary.NativeEndian.PutUint64(o.Buf, arena.Word64(at).Load())
	case o.Kind == OpWrite && len(o.Buf) == 8 && o.Off%8 == 0:
		arena.Word64(at).Store(binary.NativeEndian.Uint64(o.Buf))
	case o.Kind == OpRead:
		copy(o.Buf, at)
	default:
		copy(at, o.Buf)
	}
}
