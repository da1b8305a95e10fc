package race

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"polder/pool"
	"polder/pool/malloc"
)

// An op is an operation in progress, with what it has read. Ops are reused, with
// everything that they have allocated.
type op struct {
	t     *Table
	id    uint32
	epoch *counter
	hash  hash
	key   []byte
	block []byte // to be written, or the last block that was
	mine  word   // the tentative word that this operation has put into a slot, or 0

	s       *subtable // where the following was read
	pairs   [2]int64  // offsets of the pairs of buckets
	buckets [2 * pairSize]byte
	firm    cell   // the key's firm slot; off is -1 if there is none
	others  []cell // tentative slots of the key
	lost    []cell // slots of the key's fingerprint whose blocks are lost
	cells   []cell // slots whose blocks ops reads
	ops     []pool.Op
	buf     []byte // blocks that were read
}

// A cell is a slot with something in it.
type cell struct {
	off   int64 // in the subtable
	word  word
	value []byte // of the key, in op.buf
}

func wordAt(b []byte, i int) word { return word(binary.LittleEndian.Uint64(b[8*i:])) }

// begin begins an operation on a key.
func (t *Table) begin(key []byte) *op {
	o, ok := t.idle.Get().(*op)
	if !ok {
		o = &op{t: t, id: t.ids.Add(1)}
	}
	o.hash, o.key, o.mine = t.hash(key), key, 0
	o.epoch = t.epochs.enter(o.id)
	return o
}

// end ends the operation, and frees blocks that nobody can see any more.
func (o *op) end() {
	t := o.t
	o.epoch.leave()
	clear(o.ops[:cap(o.ops)])
	o.key, o.s = nil, nil
	const keep = 64 << 10 // bytes of buffers that are not given to the garbage collector
	if cap(o.buf) > keep {
		o.buf = nil
	}
	if cap(o.block) > keep {
		o.block = nil
	}
	t.idle.Put(o)
	for _, b := range t.epochs.collect() {
		// If a block cannot be freed, the operation has not failed. If the block's node is gone, the block counts as
		// freed all the same.
		_ = t.memory.Free(context.Background(), b)
	}
}

// slot is the slot of the i-th word of o.buckets.
func (o *op) slot(i int) cell {
	return cell{off: o.pairs[i/pairSlots] + int64(8*(i%pairSlots)), word: wordAt(o.buckets[:], i)}
}

// find looks for the key. It READs the key's buckets and, unless to is zero, WRITEs o.block there together with the
// READs. Then it READs the blocks that have the key's fingerprint. With reading, it leaves out tentative slots, which
// do not matter to a Get.
func (o *op) find(ctx context.Context, reading bool, to malloc.Block) error {
	o.s = o.t.lookup(o.hash.Lo)
	o.pairs = o.hash.pairs(o.t.groups)
	o.ops = o.ops[:0]
	if to.Chunk != nil {
		o.ops = append(o.ops, pool.Op{Kind: pool.OpWrite, Chunk: to.Chunk, Off: to.Off, Buf: o.block})
	}
	for i, off := range o.pairs {
		o.ops = append(o.ops, pool.Op{Kind: pool.OpRead, Chunk: o.s.block.Chunk, Off: o.s.block.Off + off, Buf: o.buckets[i*pairSize : (i+1)*pairSize]})
	}
	if err := o.t.fabric.Do(ctx, o.ops); err != nil {
		return err
	}
	o.firm.off, o.others, o.lost = -1, o.others[:0], o.lost[:0]
	o.cells, o.ops = o.cells[:0], o.ops[:0]
	n := 0
	for i := range 2 * pairSlots {
		c := o.slot(i)
		if c.word.vacant() || c.word.fingerprint() != o.hash.fingerprint() || reading && c.word.tentative() {
			continue
		}
		if o.mine != 0 && c.word.is(o.mine) {
			o.others = append(o.others, c) // there is no need to read that
			continue
		}
		b := o.t.blockOf(c.word)
		o.cells = append(o.cells, c)
		o.ops = append(o.ops, pool.Op{Kind: pool.OpRead, Chunk: b.Chunk, Off: b.Off})
		n += b.Size
	}
	if len(o.cells) == 0 {
		return nil
	}
	o.buf = slices.Grow(o.buf[:0], n)[:n]
	rest := o.buf
	for i, c := range o.cells {
		size := o.t.blockOf(c.word).Size
		o.ops[i].Buf, rest = rest[:size], rest[size:]
	}
	if err := o.t.fabric.Do(ctx, o.ops); err != nil && !errors.Is(err, pool.ErrLost) {
		return err
	}
	for i, c := range o.cells {
		switch err := o.ops[i].Err; {
		case errors.Is(err, pool.ErrLost):
			o.lost = append(o.lost, c)
			continue
		case err != nil:
			return err
		}
		key, value, ok := decode(o.ops[i].Buf)
		switch {
		case !ok:
			return errDamaged
		case !bytes.Equal(key, o.key):
		case c.word.tentative():
			o.others = append(o.others, c)
		default:
			o.firm = cell{c.off, c.word, value}
		}
	}
	return nil
}

// errDamaged is returned when a block's lengths are more than the block.
var errDamaged = errors.New("the lengths of a block are wrong: its memory has been damaged")

// place returns a vacant slot for the key that is not frozen, if there is one, in the pair that has more of them.
func (o *op) place() (c cell, ok bool) {
	most := 0
	for p := range 2 {
		n, first := 0, cell{}
		for i := range pairSlots {
			if s := o.slot(p*pairSlots + i); s.word.vacant() && !s.word.frozen() {
				if n == 0 {
					first = s
				}
				n++
			}
		}
		if n > most {
			most, c = n, first
		}
	}
	return c, most > 0
}

// swap replaces the word of a cell by next, if the slot still has that word, and retires the block that the word
// named. If the word is frozen, swap splits the subtable instead. known says whether it is certain that the word was
// swapped, or was not.
//
// Preconditions: no slot has had the word next before.
func (o *op) swap(ctx context.Context, c cell, next word) (swapped, known bool, err error) {
	if c.word.frozen() {
		return false, true, o.t.split(ctx, o.s)
	}
	swapped, known, err = o.compareAndSwap(ctx, c, next)
	if !c.word.vacant() && (next.vacant() || c.word.ref() != next.ref()) {
		switch {
		case swapped:
			o.t.epochs.retire(o.t.blockOf(c.word))
		case !known:
			o.t.inDoubt.Add(1)
		}
	}
	return swapped, known, err
}

func (o *op) compareAndSwap(ctx context.Context, c cell, next word) (swapped, known bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, true, context.Cause(ctx)
	}
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx) // what has been posted is waited for
	}
	b := o.s.block
	o.ops = append(o.ops[:0], pool.Op{Kind: pool.OpCompareAndSwap, Chunk: b.Chunk, Off: b.Off + c.off, Old: uint64(c.word), New: uint64(next)})
	if err = o.t.fabric.Do(ctx, o.ops); err == nil {
		return o.ops[0].Swapped(), true, nil
	}
	// The READ is not overtaken by a CMP_SWAP that is still on its way.
	var now [8]byte
	if o.t.fabric.Do(ctx, []pool.Op{{Kind: pool.OpRead, Chunk: b.Chunk, Off: b.Off + c.off, Buf: now[:]}}) != nil {
		return false, false, err
	}
	switch w := wordAt(now[:], 0); {
	case w.is(next):
		return true, true, nil
	case w.is(c.word):
		return false, true, err
	}
	return false, false, err
}

// vacate makes slots vacant that are still as they were.
func (o *op) vacate(ctx context.Context, cells []cell) error {
	for _, c := range cells {
		if _, _, err := o.swap(ctx, c, o.t.vacant()); err != nil {
			return err
		}
	}
	return nil
}
