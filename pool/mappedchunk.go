package pool

import (
	"context"
	"encoding/binary"

	"polder/internal/arena"
	"polder/pool/manager"
)

// bind makes the binding of a grant over l.
func (l *link) bind(g manager.Grant) *binding {
	b := &binding{group: l.groups[g.Group], addr: g.Addr, keys: g.Keys}
	if m, ok := l.session.(manager.Mapper); ok {
		b.memory = m.Memory(g)
	}
	return b
}

// inPlace carries op out, which has been checked, if all that it is about lies in this
// process's memory. Otherwise it reports false: then nothing has happened, or a READ or
// WRITE has to be repeated.
//
// Hot path: it neither blocks nor allocates.
func (c *Chunk) inPlace(ctx context.Context, op *Op) bool {
	i := c.at(op.Off)
	x := c.extents[i]
	if b := x.binding.Load(); b == nil || b.memory == nil || ctx.Err() != nil || c.acquire() != nil {
		return false // the slow path says why
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

// inPlace is Chunk.inPlace for an operation on x alone. The link is held while the memory
// is accessed, so that it is not unmapped.
func (x *extent) inPlace(op *Op) bool {
	b := x.binding.Load()
	if b == nil || b.memory == nil {
		return false
	}
	l := b.group.link
	l.mapped.RLock()
	defer l.mapped.RUnlock()
	if l.dead.Load() || x.hasStrays() {
		return false
	}
	select {
	case <-l.conn.Done():
		x.node.linkBroke(l) // or it would not show until the keeper sees it
		return false
	default:
	}
	op.access(b.memory[op.Off-x.off:])
	if !l.verifier.Valid() {
		// What was accessed may have been another's already.
		x.node.linkBroke(l)
		if !op.Kind.atomic() {
			return false
		}
		op.Prev = 0
		op.fail(x, ErrOutcomeUnknown)
		return true
	}
	x.node.counters.count(op.Kind, op.size(), 0)
	return true
}

// access carries o out on the memory from at on. Words are accessed at once.
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
