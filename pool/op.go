package pool

import "fmt"

// OpKind is what an Op does.
type OpKind uint8

const (
	// OpRead reads len(Buf) bytes at Off into Buf.
	OpRead OpKind = iota + 1
	// OpWrite writes Buf at Off.
	OpWrite
	// OpCompareAndSwap replaces the word at Off by New if it is Old, and
	// sets Prev to what it was.
	OpCompareAndSwap
	// OpFetchAdd adds New to the word at Off, and sets Prev to what it was.
	OpFetchAdd
)

func (k OpKind) String() string {
	switch k {
	case OpRead:
		return "read"
	case OpWrite:
		return "write"
	case OpCompareAndSwap:
		return "compare-and-swap"
	case OpFetchAdd:
		return "fetch-add"
	}
	return fmt.Sprintf("OpKind(%d)", uint8(k))
}

func (k OpKind) atomic() bool { return k == OpCompareAndSwap || k == OpFetchAdd }

// An Op is one operation of a batch. Words are 64 bits, at offsets that are multiples of 8, in the byte order that
// binary.LittleEndian.PutUint64 writes.
type Op struct {
	Kind  OpKind
	Chunk *Chunk
	Off   int64
	Buf   []byte // OpRead, OpWrite
	Old   uint64 // OpCompareAndSwap
	New   uint64 // OpCompareAndSwap; OpFetchAdd: the addend
	// Bulk says that nobody waits for just this operation: it is one of many that are about throughput, such as
	// evacuating, moving, repairing or reading ahead. It does not get in the way of operations that somebody waits
	// for, however long those are.
	Bulk bool

	Prev uint64 // set by atomic operations that succeed
	Err  error  // nil on success, otherwise an *OpError
}

// Swapped reports whether a CompareAndSwap that succeeded replaced the word.
func (o *Op) Swapped() bool { return o.Err == nil && o.Prev == o.Old }

// size is how many bytes o moves.
func (o *Op) size() int {
	if o.Kind.atomic() {
		return 8
	}
	return len(o.Buf)
}

// check returns an error if o is wrong.
func (o *Op) check(p *Pool) error {
	switch {
	case o.Kind < OpRead || o.Kind > OpFetchAdd:
		return fmt.Errorf("unknown operation %v", o.Kind)
	case o.Chunk == nil:
		return fmt.Errorf("no chunk")
	case o.Chunk.pool != p:
		return fmt.Errorf("chunk of another pool")
	case o.Off < 0 || o.Off > o.Chunk.size || int64(o.size()) > o.Chunk.size-o.Off:
		return fmt.Errorf("%d bytes in a chunk of %d: %w", o.size(), o.Chunk.size, ErrRange)
	case o.Kind.atomic() && o.Off%8 != 0:
		return ErrUnaligned
	}
	return nil
}

// refuse sets the error of o, which has not been carried out, unless o has one already.
func (o *Op) refuse(err error) {
	if o.Chunk == nil {
		o.fail(nil, err)
		return
	}
	o.fail(o.Chunk.extents[o.Chunk.at(max(0, o.Off))], err)
}

// fail sets o's error unless it has one already. If x is not nil, the error happened at x.
func (o *Op) fail(x *extent, err error) {
	if o.Err != nil {
		return
	}
	e := &OpError{Op: o.Kind.String(), Offset: o.Off, Err: err}
	if x != nil {
		e.Node, e.Region = x.node.name, x.region()
	}
	o.Err = e
}
