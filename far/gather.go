package far

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"polder/far/look"
	"polder/internal/offload"
)

// Gather copies element indices[k] of v to dst[k], for every k. dst and indices have the same length; the indices may
// be in any order, and an index may occur more than once. If Gather fails, some of dst may have been overwritten.
//
// Elements that are local are copied here. From objects that are far, the store takes the elements out where the
// objects lie, if it can compute, as in Aggregate: then only the elements travel, not the objects of up to 256 KiB
// that they are in. Gather reads an object instead if so much of it is wanted that reading moves fewer bytes; and it
// reads all far objects if the store cannot compute: many objects in a batch, and several batches at a time, as
// streaming does. Elements that the node sends are not checked again here, and neither are the sums of Aggregate.
//
// Gather is not a snapshot: every element is as it was at some time between the call and the return, so that writes
// before the call are seen. If it matters that others write elements meanwhile, they need a lock. Elements that a
// Vector loses meanwhile are zeros. Gather fails with a *LostError if an element is lost.
//
// It waits within ctx, takes up to 2 MiB of memory beside dst, and must not be called in a scope.
func Gather[T any](ctx context.Context, dst []T, v Elements[T], indices []int) error {
	if err := gather(ctx, dst, v, indices); err != nil {
		return fmt.Errorf("cannot gather %s: %w", v.scanned().named(), err)
	}
	return nil
}

func gather[T any](ctx context.Context, dst []T, v Elements[T], indices []int) error {
	tr, n := v.scanned(), v.Len()
	if tr.freed() {
		return ErrFreed
	}
	if len(dst) != len(indices) {
		return fmt.Errorf("%d elements are wanted, and there is room for %d", len(indices), len(dst))
	}
	if k := slices.IndexFunc(indices, func(i int) bool { return uint(i) >= uint(n) }); k >= 0 {
		return fmt.Errorf("index %d is %d, and there are %d elements", k, indices[k], n)
	}
	return tr.gather(ctx, elementBytes(dst), sizeOf[T](), indices)
}

// Copy copies those elements of src that meet all conditions to dst, in order, from the first element of dst on and
// until dst is full. It returns the number of elements copied, also if it fails. Like Go's copy it never makes a
// Vector longer.
//
// Without conditions, or with Within alone, Copy streams src. With other conditions it finds the elements as Filter
// does, and brings them as Gather does. It does not read a group of dst that it overwrites as a whole. The node
// writes nothing: dst is written here, and evacuated like everything that is written.
//
// Every element that is copied is as it was, and met the conditions, at some time between the call and the return.
// dst and src may be the same: then the elements that meet the conditions move to the front.
//
// It waits within ctx, takes up to 4 MiB of memory, and must not be called in a scope.
func Copy[T any](ctx context.Context, dst, src Elements[T], conditions ...Condition[T]) (n int, err error) {
	from, to := src.scanned(), dst.scanned()
	q, i, j, err := scanOf(src, conditions)
	if err == nil && (from.freed() || to.freed()) {
		err = ErrFreed
	}
	if err == nil {
		c := &copying[T]{ctx: ctx, from: from, to: to, q: q, room: dst.Len(), buf: make([]T, bufferLen(q.Stride, min(j-i, dst.Len())))}
		if len(q.Conditions) == 0 {
			err = c.stream(i, j)
		} else {
			err = c.filter(i, j)
		}
		n = c.n
	}
	if err != nil {
		return n, fmt.Errorf("cannot copy %s to %s: %w", from.named(), to.named(), err)
	}
	return n, nil
}

// Index is the types that an index of an element may have.
type Index interface {
	int | int32 | int64 | uint32 | uint64
}

// Shuffle copies element order[i] of src to element i of dst, for every element of order; dst has as many elements as
// order. It brings the elements as Gather does, some 65,536 at a time, and writes dst as Copy does. dst must be
// neither src nor order. If Shuffle fails, the first elements of dst may have been written.
//
// It waits within ctx, takes up to 4 MiB of memory, and must not be called in a scope.
func Shuffle[T any, I Index](ctx context.Context, dst, src Elements[T], order Elements[I]) error {
	from, to, by := src.scanned(), dst.scanned(), order.scanned()
	if err := shuffle(ctx, dst, src, order); err != nil {
		return fmt.Errorf("cannot shuffle %s to %s by %s: %w", from.named(), to.named(), by.named(), err)
	}
	return nil
}

func shuffle[T any, I Index](ctx context.Context, dst, src Elements[T], order Elements[I]) error {
	from, to, by := src.scanned(), dst.scanned(), order.scanned()
	n, size := order.Len(), sizeOf[T]()
	switch {
	case from.freed() || to.freed() || by.freed():
		return ErrFreed
	case to == from || to == by:
		return errors.New("an element that is written may be wanted afterwards: they must not be the same")
	case dst.Len() != n:
		return fmt.Errorf("the order is of %d elements, want %d", n, dst.Len())
	}
	buf := make([]T, bufferLen(size, n))
	ids, indices := make([]I, len(buf)), make([]int, len(buf))
	for at := 0; at < n; at += len(buf) {
		k := min(len(buf), n-at)
		got, err := read(ctx, by, ids[:k], at)
		if err != nil || got == 0 {
			return err // nothing is left: a Vector has become shorter
		}
		of := src.Len()
		for x, id := range ids[:got] {
			if id < 0 || uint64(id) >= uint64(of) {
				return fmt.Errorf("element %d of the order is %d, and there are %d elements", at+x, id, of)
			}
			indices[x] = int(id)
		}
		if err := from.gather(ctx, elementBytes(buf[:got]), size, indices[:got]); err != nil {
			return err
		}
		if _, err := write(ctx, to, buf[:got], at); err != nil {
			return err
		}
	}
	return nil
}

// bufferBytes is about how many bytes of elements are held in a buffer before they are written.
const bufferBytes = 1 << 20

// bufferLen is how many of n elements of size bytes are brought at a time.
func bufferLen(size, n int) int { return max(min(bufferBytes/max(size, 1), look.GatherMost, n), 1) }

// copying is one call of Copy.
type copying[T any] struct {
	ctx      context.Context
	from, to *tracker
	q        *offload.Scan
	buf      []T
	room     int // how many elements to has
	n        int // how many elements have been written
}

// write writes es to c.to, after the elements that have been written already.
func (c *copying[T]) write(es []T) error {
	n, err := write(c.ctx, c.to, es[:min(len(es), c.room-c.n)], c.n)
	if c.n += n; n < len(es) {
		c.room = c.n // c.to is full, or has become shorter
	}
	return err
}

// stream copies the elements from i to j.
func (c *copying[T]) stream(i, j int) error {
	for i < j && c.n < c.room {
		n, err := read(c.ctx, c.from, c.buf[:min(len(c.buf), j-i, c.room-c.n)], i)
		if err == nil {
			err = c.write(c.buf[:n])
		}
		if err != nil || n == 0 {
			return err
		}
		i += n
	}
	return nil
}

// filter copies those elements from i to j that meet the conditions.
func (c *copying[T]) filter(i, j int) (err error) {
	indices := make([]int, 0, len(c.buf))
	bits := make([]byte, offload.BitsSize(len(c.buf)))
	bring := func() error {
		es := c.buf[:len(indices)]
		if err := c.from.gather(c.ctx, elementBytes(es), c.q.Stride, indices); err != nil {
			return err
		}
		indices = indices[:0]
		// Somebody may have written to them since the first look: check the conditions again.
		c.q.Filter(bits, elementBytes(es))
		n := 0
		for k := range es {
			if bits[k/8]>>(k%8)&1 != 0 {
				es[n] = es[k]
				n++
			}
		}
		return c.write(es[:n])
	}
	_, failed := c.from.filter(c.ctx, c.q, i, j, func(i int) bool {
		if indices = append(indices, i); len(indices) == min(len(c.buf), c.room-c.n) {
			err = bring()
		}
		return err == nil && c.n < c.room
	})
	if err = errors.Join(err, failed); err == nil && len(indices) > 0 {
		err = bring()
	}
	return err
}

// gather copies the elements at indices, of stride bytes each, to dst.
func (tr *tracker) gather(ctx context.Context, dst []byte, stride int, indices []int) error {
	return look.Gather(ctx, &tr.h.ahead, &tr.Structure, dst, stride, indices)
}
