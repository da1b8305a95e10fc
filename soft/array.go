package soft

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"polder/codec"
	"polder/soft/internal/flight"
)

// Array is an array of values in soft memory. What has vanished is rebuilt
// from its index. Its methods may be called by any number of goroutines.
type Array[T any] struct {
	h       *Heap
	cells   *cells
	rebuild func(ctx context.Context, i int) (T, error)
	flights flight.Group[int, T]
}

// ErrNoRebuild is what is answered when something has vanished and there is
// no reconstructor.
var ErrNoRebuild = errors.New("the value has vanished and there is no reconstructor")

// NewArray makes an array of n values that have yet to be written or rebuilt.
// T must not hold pointers. Rebuild may be nil if only Load is used.
func NewArray[T any](h *Heap, n int, rebuild func(context.Context, int) (T, error)) (*Array[T], error) {
	if err := codec.Pointerless(reflect.TypeFor[T]()); err != nil {
		return nil, fmt.Errorf("cannot make a soft array: %w", err)
	}
	if n < 0 || sizeOf[T]() == 0 {
		return nil, fmt.Errorf("cannot make a soft array of %d values of %d bytes", n, sizeOf[T]())
	}
	c := &cells{h: h, list: make([]cell, n)}
	id, ok := h.owners.add(c, 0)
	if !ok {
		return nil, errOwners
	}
	c.id = id
	return &Array[T]{h: h, cells: c, rebuild: rebuild}, nil
}

// Len returns the number of values.
func (a *Array[T]) Len() int { return len(a.cells.list) }

// Load copies value i to dst and reports whether it is there. If it is not,
// dst holds garbage. It panics if i is out of range.
//
//polder:hot
func (a *Array[T]) Load(i int, dst *T) bool {
	var w word
	var ok bool
	if sizeOf[T]() > maxInline {
		w, ok = loadLarge(a.h, &a.cells.list[i], dst)
	} else {
		w, ok = loadCell(a.h, &a.cells.list[i], dst)
	}
	if ok {
		a.h.accessCell(a.cells.id, uint64(i), w)
	}
	return ok
}

// Read copies value i out, and rebuilds it if it has vanished: once, however
// many goroutines ask.
func (a *Array[T]) Read(ctx context.Context, i int) (T, error) {
	var v T
	if a.Load(i, &v) {
		return v, nil
	}
	return a.readSlow(ctx, i)
}

// readSlow is Read for a value that was not there a moment ago.
func (a *Array[T]) readSlow(ctx context.Context, i int) (v T, err error) {
	if a.rebuild == nil {
		return v, ErrNoRebuild
	}
	return a.flights.Do(ctx, i, func(ctx context.Context, f *flight.Call[T]) (T, error) {
		var v T
		before := word(a.cells.list[i].Load())
		if a.Load(i, &v) {
			return v, nil
		}
		start := time.Now()
		v, err := a.rebuild(ctx, i)
		took := time.Since(start)
		a.h.rebuilt(took, 1)
		if err != nil {
			return v, fmt.Errorf("cannot rebuild element %d: %w", i, err)
		}
		// A store that came meanwhile wins: it is newer than what we rebuilt.
		// If memory is short, the value is not kept.
		cost := costClass(took)
		_, _, _ = storeCell(a.h, a.cells.id, uint64(i), &a.cells.list[i], codec.Bytes(&v), cost, true, before)
		a.h.rebuiltCell(a.cells.id, uint64(i), sizeOf[T](), cost)
		return v, nil
	})
}

// Store replaces value i.
//
//polder:hot
func (a *Array[T]) Store(i int, v T) error {
	_, err := putCell(a.h, a.cells.id, uint64(i), &a.cells.list[i], &v)
	return err
}

// CompareAndSwap replaces value i by new if its bytes are those of old, and
// reports whether it did. A value that has vanished equals nothing.
func (a *Array[T]) CompareAndSwap(i int, old, new T) (bool, error) {
	_, ok, err := casCell(a.h, a.cells.id, uint64(i), &a.cells.list[i], &old, &new)
	return ok, err
}

// Drop forgets value i.
func (a *Array[T]) Drop(i int) { dropCell(a.h, &a.cells.list[i]) }

// Close forgets every value.
func (a *Array[T]) Close() { a.cells.close() }

// cells is a fixed row of cells.
type cells struct {
	h    *Heap
	id   uint16
	list []cell
}

func (c *cells) swing(ref uint64, from, to word) bool {
	return ref < uint64(len(c.list)) && c.list[ref].CompareAndSwap(uint64(from), uint64(to))
}

func (c *cells) holdsLarge(ref uint64, id largeID) bool {
	return ref < uint64(len(c.list)) && cellHoldsLarge(c.h, &c.list[ref], id)
}

func (c *cells) sweep() {
	for i := range c.list {
		sweepCell(c.h, &c.list[i])
	}
}

func (c *cells) close() {
	for i := range c.list {
		dropCell(c.h, &c.list[i])
	}
	c.h.owners.remove(c.id)
}
