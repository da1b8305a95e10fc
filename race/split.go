package race

import (
	"context"
	"encoding/binary"
	"errors"

	"polder/pool"
)

// batch is how many operations of a split go out at once.
const batch = 256

// split replaces s by two subtables, if nobody has. Others may be splitting s, too; the first that is ready enters
// its subtables in the directory.
func (t *Table) split(ctx context.Context, s *subtable) error {
	if t.alone {
		select {
		case s.turn <- struct{}{}:
			defer func() { <-s.turn }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if t.lookup(s.suffix) != s {
		return nil
	}
	if s.depth == maxDepth {
		return ErrFull
	}
	image := make([]byte, s.block.Size)
	read := []pool.Op{{Kind: pool.OpRead, Chunk: s.block.Chunk, Off: s.block.Off, Buf: image}}
	if err := t.fabric.Do(ctx, read); err != nil {
		return err
	}
	if err := t.freeze(ctx, s, image); err != nil {
		return err
	}
	images, gone, err := t.divide(ctx, s, image)
	if err != nil {
		return err
	}
	var halves [2]*subtable
	var writes []pool.Op
	for i := range halves {
		if halves[i], err = t.newSubtable(ctx, s.depth+1, s.suffix|uint64(i)<<s.depth); err != nil {
			break
		}
		b := halves[i].block
		writes = append(writes, pool.Op{Kind: pool.OpWrite, Chunk: b.Chunk, Off: b.Off, Buf: images[i]})
	}
	if err == nil {
		err = t.fabric.Do(ctx, writes)
	}
	if err == nil && t.replace(s, halves) {
		t.epochs.retire(s.block)
		for _, w := range gone {
			t.epochs.retire(t.blockOf(w))
		}
		return nil
	}
	for _, h := range halves {
		if h != nil { // nobody has seen it
			err = errors.Join(err, t.memory.Free(context.WithoutCancel(ctx), h.block))
		}
	}
	return err
}

// freeze freezes every slot of s, so that nothing in s changes any more. image was read from s before; afterwards it
// is what s holds.
func (t *Table) freeze(ctx context.Context, s *subtable, image []byte) error {
	ops := make([]pool.Op, 0, batch)
	for i := 0; i < len(image) || len(ops) > 0; {
		for ; i < len(image) && len(ops) < batch; i += 8 {
			if w := wordAt(image[i:], 0); !w.frozen() {
				ops = append(ops, pool.Op{Kind: pool.OpCompareAndSwap, Chunk: s.block.Chunk, Off: s.block.Off + int64(i), Old: uint64(w), New: uint64(w | frozen)})
			}
		}
		if len(ops) == 0 {
			break
		}
		if err := t.fabric.Do(ctx, ops); err != nil {
			return err
		}
		again := ops[:0]
		for _, op := range ops {
			now := word(op.New)
			if !op.Swapped() {
				now = word(op.Prev)
			}
			binary.LittleEndian.PutUint64(image[op.Off-s.block.Off:], uint64(now))
			if !now.frozen() { // somebody has changed the slot since it was read
				op.Old, op.New = op.Prev, uint64(now|frozen)
				again = append(again, op)
			}
		}
		ops = again
	}
	return nil
}

// divide makes the images of the two halves of a frozen subtable from its image. Each entry goes to one half, into
// the same slot, by the next bit of its hash. Words that are tentative, or whose blocks are lost, go to neither half,
// but to gone.
func (t *Table) divide(ctx context.Context, s *subtable, image []byte) (images [2][]byte, gone []word, err error) {
	for i := range images {
		images[i] = make([]byte, len(image))
		for j := 0; j < len(image); j += 8 {
			binary.LittleEndian.PutUint64(images[i][j:], uint64(t.vacant()))
		}
	}
	var hashes [batch][8]byte
	ops, at := make([]pool.Op, 0, batch), make([]int, 0, batch)
	flush := func() error {
		if err := t.fabric.Do(ctx, ops); err != nil && !errors.Is(err, pool.ErrLost) {
			return err
		}
		for i, op := range ops {
			w := wordAt(image[at[i]:], 0) &^ frozen
			switch {
			case errors.Is(op.Err, pool.ErrLost):
				gone = append(gone, w)
			case op.Err != nil:
				return op.Err
			default:
				half := binary.LittleEndian.Uint64(op.Buf) >> s.depth & 1
				binary.LittleEndian.PutUint64(images[half][at[i]:], uint64(w))
			}
		}
		ops, at = ops[:0], at[:0]
		return nil
	}
	for i := 0; i < len(image); i += 8 {
		w := wordAt(image[i:], 0)
		if w.vacant() {
			continue
		}
		if w.tentative() {
			gone = append(gone, w)
			continue
		}
		b := t.blockOf(w)
		ops, at = append(ops, pool.Op{Kind: pool.OpRead, Chunk: b.Chunk, Off: b.Off, Buf: hashes[len(ops)][:]}), append(at, i)
		if len(ops) == batch {
			if err := flush(); err != nil {
				return images, nil, err
			}
		}
	}
	err = flush()
	return images, gone, err
}
