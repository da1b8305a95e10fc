// Package arrayscan is a rival of one-sided allocators: an array of words at the
// memory node, one for each chunk, which is 0 while the chunk is free. A client that
// wants chunks reads the array piece by piece, from where it last found some, and
// claims words that read as 0 by CMP_SWAP. If a CMP_SWAP fails, the client reads the
// piece again.
//
// An Allocator is for one goroutine or process at a time. Clients read and write
// nothing at the node but the words.
package arrayscan

import (
	"context"
	"encoding/binary"
	"errors"
)

// Words is the array, as a client reaches it. Offsets are in bytes. An error is final: requests may still be under way,
// so no operation follows.
type Words interface {
	// Read reads n bytes, which are valid until the next operation.
	Read(ctx context.Context, off uint64, n int) ([]byte, error)
	// CompareAndSwap executes up to MaxSwaps operations side by side, and returns
	// the words' values before, in the order of ops, valid until the next operation.
	CompareAndSwap(ctx context.Context, ops []Swap) ([]uint64, error)
}

// Swap is a CMP_SWAP.
type Swap struct{ Off, Old, New uint64 }

const (
	// MaxSwaps is the most CMP_SWAPs of a batch.
	MaxSwaps = 64
	// MaxRead is the most bytes of a READ.
	MaxRead = 64 << 10
)

// ErrFull is returned when a whole round over the array has found no free block.
var ErrFull = errors.New("no memory left")

// Allocator allocates chunks for one owner.
type Allocator struct {
	// Retries counts claims that failed because another client was faster.
	Retries int

	w     Words
	owner uint64
	words int
	at    int    // the next word to look at
	view  []bool // if fresh: which chunks of the piece that contains at are free
	fresh bool
}

// New returns an allocator for owner, over an array of words words, which it reads in
// pieces of piece words.
//
// Preconditions: owner is not 0; piece divides words; no block has more than piece chunks.
func New(w Words, owner uint64, words, piece int) *Allocator {
	return &Allocator{w: w, owner: owner, words: words, view: make([]bool, piece)}
}

// Alloc allocates 1<<class chunks, and returns the first. After an error of Words, the chunks that were being claimed
// stay claimed, as do those of a client that dies: nobody can give them back.
func (a *Allocator) Alloc(ctx context.Context, class int) (first int, err error) {
	n := 1 << class
	for empty := 0; empty <= a.words/len(a.view); {
		if !a.fresh {
			if err := a.look(ctx); err != nil {
				return 0, err
			}
		}
		at := a.next(n)
		if at < 0 {
			empty++
			a.move(a.piece() + len(a.view))
			continue
		}
		empty = 0
		ok, err := a.claim(ctx, at, n)
		if err != nil {
			return 0, err
		}
		if ok {
			a.move(at + n)
			return at, nil
		}
		a.Retries++
		a.fresh = false
	}
	return 0, ErrFull
}

// Free frees 1<<class chunks.
func (a *Allocator) Free(ctx context.Context, first, class int) error {
	return a.release(ctx, first, 1<<class)
}

// look reads the piece of the array that contains the next word to look at.
func (a *Allocator) look(ctx context.Context) error {
	for done := 0; done < len(a.view); {
		n := min(len(a.view)-done, MaxRead/8)
		b, err := a.w.Read(ctx, uint64(8*(a.piece()+done)), 8*n)
		if err != nil {
			return err
		}
		for i := range n {
			a.view[done+i] = binary.LittleEndian.Uint64(b[8*i:]) == 0
		}
		done += n
	}
	a.fresh = true
	return nil
}

// piece returns the first word of the piece that contains the next word to look at.
func (a *Allocator) piece() int { return a.at / len(a.view) * len(a.view) }

// move makes to the next word to look at, modulo the array's length.
func (a *Allocator) move(to int) {
	was := a.piece()
	a.at = to % a.words
	a.fresh = a.fresh && a.piece() == was
}

// next finds n words in a row that read as free, in the view from a.at on. They begin at a
// multiple of n. It returns the first of them, or -1 if there are none.
func (a *Allocator) next(n int) int {
	for i := (a.at%len(a.view) + n - 1) / n * n; i+n <= len(a.view); i += n {
		free := true
		for _, f := range a.view[i : i+n] {
			free = free && f
		}
		if free {
			return a.piece() + i
		}
	}
	return -1
}

// claim claims all n words from at on, or none if one of them is not free.
func (a *Allocator) claim(ctx context.Context, at, n int) (bool, error) {
	for done := 0; done < n; done += MaxSwaps {
		ok, err := a.exchange(ctx, at+done, min(MaxSwaps, n-done), 0, a.owner)
		if err != nil {
			return false, err
		}
		if !ok {
			return false, a.release(ctx, at, done)
		}
	}
	return true, nil
}

// release frees n words.
func (a *Allocator) release(ctx context.Context, at, n int) error {
	for done := 0; done < n; done += MaxSwaps {
		if _, err := a.exchange(ctx, at+done, min(MaxSwaps, n-done), a.owner, 0); err != nil {
			return err
		}
	}
	return nil
}

// exchange replaces n words, from at on, that are old by new. If not all were old, it
// takes that back and returns false.
func (a *Allocator) exchange(ctx context.Context, at, n int, old, new uint64) (bool, error) {
	var ops [MaxSwaps]Swap
	for i := range n {
		ops[i] = Swap{uint64(8 * (at + i)), old, new}
	}
	was, err := a.w.CompareAndSwap(ctx, ops[:n])
	if err != nil {
		return false, err
	}
	var back [MaxSwaps]Swap
	done := 0
	for i, w := range was {
		if w == old {
			back[done] = Swap{ops[i].Off, new, old}
			done++
		}
		if at+i >= a.piece() && at+i < a.piece()+len(a.view) {
			a.view[at+i-a.piece()] = false
		}
	}
	if done == n || done == 0 {
		return done == n, nil
	}
	_, err = a.w.CompareAndSwap(ctx, back[:done])
	return false, err
}
