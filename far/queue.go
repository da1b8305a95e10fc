package far

import (
	"context"
	"iter"

	"polder/far/heap"
)

// Queue is a queue of elements of type T, which must not hold Go pointers: first in, first out. It is a List;
// elements are pushed at one end and popped at the other. Groups that are to be popped next are prefetched.
//
// All methods may be called by any number of goroutines, and each is atomic. They take constant time; a Pop takes one
// read of the store for a group of elements that is far and was not prefetched. A Queue does not block: Pop reports
// false if the queue is empty.
type Queue[T any] struct{ l *List[T] }

// NewQueue makes an empty queue.
func NewQueue[T any](h *Heap, cfg StructureConfig) (*Queue[T], error) {
	l, err := newList[T](h, "queue", cfg)
	if err != nil {
		return nil, err
	}
	return &Queue[T]{l}, nil
}

// Push puts v last. It needs no scope, and waits within ctx, as all methods with a
// context do.
func (q *Queue[T]) Push(ctx context.Context, v T) error { return q.l.PushBack(ctx, v) }

// Pop removes the first element and returns it, or false if there is none.
func (q *Queue[T]) Pop(ctx context.Context) (v T, ok bool, err error) { return q.l.PopFront(ctx) }

// Peek returns a copy of the first element, or false if there is none.
func (q *Queue[T]) Peek(ctx context.Context) (v T, ok bool, err error) { return q.l.First(ctx) }

// PushIn is Push in s, which must be open and from which it takes local memory.
func (q *Queue[T]) PushIn(s *heap.Scope, v T) error { return q.l.PushBackIn(s, v) }

// PopIn is Pop in s, which must be open.
func (q *Queue[T]) PopIn(s *heap.Scope) (v T, ok bool, err error) { return q.l.PopFrontIn(s) }

// All iterates over the elements in order, as List.All does.
func (q *Queue[T]) All(s *heap.Scope) iter.Seq[*T] { return q.l.All(s) }

// Len is the number of elements.
func (q *Queue[T]) Len() int { return q.l.Len() }

// Clear removes all elements.
func (q *Queue[T]) Clear() { q.l.Clear() }

// Free frees the queue, as List.Free does.
func (q *Queue[T]) Free() { q.l.Free() }

// Stats returns the statistics of the queue.
func (q *Queue[T]) Stats() StructureStats { return q.l.Stats() }

// Stack is a stack of elements of type T, which must not hold Go pointers: last in, first out. It is a List of which
// only one end is used. The elements that were pushed last stay local, and those beneath are prefetched before they
// are popped.
//
// All methods may be called by any number of goroutines, and each is atomic. They take constant time; a Pop takes one
// read of the store for a group of elements that is far and was not prefetched.
type Stack[T any] struct{ l *List[T] }

// NewStack makes an empty stack.
func NewStack[T any](h *Heap, cfg StructureConfig) (*Stack[T], error) {
	l, err := newList[T](h, "stack", cfg)
	if err != nil {
		return nil, err
	}
	return &Stack[T]{l}, nil
}

// Push puts v on top. It needs no scope, and waits within ctx, as all methods with
// a context do.
func (st *Stack[T]) Push(ctx context.Context, v T) error { return st.l.PushBack(ctx, v) }

// Pop removes the top element and returns it, or false if there is none.
func (st *Stack[T]) Pop(ctx context.Context) (v T, ok bool, err error) { return st.l.PopBack(ctx) }

// Peek returns a copy of the top element, or false if there is none.
func (st *Stack[T]) Peek(ctx context.Context) (v T, ok bool, err error) { return st.l.Last(ctx) }

// PushIn is Push in s, which must be open and from which it takes local memory.
func (st *Stack[T]) PushIn(s *heap.Scope, v T) error { return st.l.PushBackIn(s, v) }

// PopIn is Pop in s, which must be open.
func (st *Stack[T]) PopIn(s *heap.Scope) (v T, ok bool, err error) { return st.l.PopBackIn(s) }

// All iterates over the elements from the top down, as List.All does.
func (st *Stack[T]) All(s *heap.Scope) iter.Seq[*T] { return st.l.Backward(s) }

// Len is the number of elements.
func (st *Stack[T]) Len() int { return st.l.Len() }

// Clear removes all elements.
func (st *Stack[T]) Clear() { st.l.Clear() }

// Free frees the stack, as List.Free does.
func (st *Stack[T]) Free() { st.l.Free() }

// Stats returns the statistics of the stack.
func (st *Stack[T]) Stats() StructureStats { return st.l.Stats() }
