package heap

import (
	"context"
	"errors"
	"time"

	"polder/far/store"
)

var (
	// ErrClosed: the heap has been closed.
	ErrClosed = errors.New("heap is closed")
	// ErrTooLarge: an object, a key or a value is longer than what is possible.
	ErrTooLarge = errors.New("too large")
	// ErrFreed: the structure or the map was freed.
	ErrFreed = errors.New("it was freed")
	// ErrWouldBlock: the call would have to wait, and was given NoWait.
	ErrWouldBlock = errors.New("would block")
	// ErrFull: there is no memory, and nothing can be moved out of the way. An error that Is ErrFull also Is one of
	// the next three, which say what is full.
	ErrFull = store.ErrFull
	// ErrStoreFull: the store has no segment to lend. More far memory helps.
	ErrStoreFull = store.ErrStoreFull
	// ErrMetadataFull: the indexes and the words of pointers, which the heap keeps in local memory for all data,
	// local or far, would leave too little of Config.Local for data.
	ErrMetadataFull error = store.FullError("the local budget is full of indexes and pointers")
	// ErrLocalFull: all of Config.Local is in use by what cannot be evacuated just now.
	ErrLocalFull error = store.FullError("the local budget is full of what is in use")
	// ErrScopeFull: a scope has taken all the local memory that it can get while it is open. Leave it and try again.
	ErrScopeFull = errors.New("no local memory while the scope is open")
	// ErrScopeOpen: the calling goroutine holds a scope open, and would wait for local
	// memory that the evacuator cannot make before that scope is left.
	ErrScopeOpen = errors.New("the goroutine holds a scope open, which the evacuator waits for")
)

// Errors of far memory.
type (
	LostError    = store.LostError
	CorruptError = store.CorruptError
)

// NoWait is a context for calls that must not wait: where they would, they
// return ErrWouldBlock and have changed nothing.
var NoWait, _ = context.WithDeadlineCause(context.Background(), time.Time{}, ErrWouldBlock)
