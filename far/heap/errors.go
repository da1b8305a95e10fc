package heap

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed: the heap has been closed.
	ErrClosed = errors.New("heap is closed")
	// ErrFull: there is no memory for it, and nothing can make way. Whatever Is
	// ErrFull Is one of the three that follow, too, which say what is full.
	ErrFull = errors.New("memory is full")
	// ErrStoreFull: the store has no segment to lend. More far memory helps.
	ErrStoreFull error = fullError("far memory is full")
	// ErrMetadataFull: what the heap keeps in local memory of all that is local or far,
	// indexes and the words of pointers, would leave too little of Config.Local for data.
	ErrMetadataFull error = fullError("the local budget is full of indexes and pointers")
	// ErrLocalFull: all of Config.Local is in use by what cannot be evacuated just now.
	ErrLocalFull error = fullError("the local budget is full of what is in use")
	// ErrSealed: a segment of the store takes no more writes. Another will.
	ErrSealed = errors.New("the segment is sealed")
	// ErrScopeFull: a scope has taken all the local memory that is to be had
	// while it is open. Leave it and try again.
	ErrScopeFull = errors.New("no local memory while the scope is open")
	// ErrScopeOpen: the calling goroutine holds a scope open, and would wait for local
	// memory that the evacuator cannot make before that scope is left.
	ErrScopeOpen = errors.New("the goroutine holds a scope open, which the evacuator waits for")
)

// fullError is an ErrFull that says what is full.
type fullError string

func (e fullError) Error() string        { return string(e) }
func (e fullError) Is(target error) bool { return target == ErrFull }

// LostError says that an entry was lost with the segment that held it.
type LostError struct{ Segment string }

func (e *LostError) Error() string {
	return fmt.Sprintf("entry was lost with its far memory (%s)", e.Segment)
}

// CorruptError says that far memory answered with bytes that are not those
// that were written there.
type CorruptError struct {
	Segment string
	Off     int
	Err     error // what is wrong with them
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("far memory returned corrupt bytes (%s, offset %d): %v", e.Segment, e.Off, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }
