package store

import (
	"errors"
	"fmt"
)

var (
	// ErrFull: there is no memory for what was asked, and nothing can make way. Every FullError Is ErrFull, too.
	ErrFull = errors.New("memory is full")
	// ErrStoreFull: the store has no segment to lend. More far memory helps.
	ErrStoreFull error = FullError("far memory is full")
	// ErrSealed: a segment of the store takes no more writes. Another will.
	ErrSealed = errors.New("the segment is sealed")
	// ErrSuperseded: another process owns the heap now.
	ErrSuperseded = errors.New("another process has taken the heap over")
)

// FullError is an ErrFull that says what is full.
type FullError string

func (e FullError) Error() string { return string(e) }

// Is reports whether target is ErrFull.
func (e FullError) Is(target error) bool { return target == ErrFull }

// LostError says that an entry was lost with the segment that held it.
type LostError struct{ Segment string }

func (e *LostError) Error() string {
	return fmt.Sprintf("entry was lost with its far memory (%s)", e.Segment)
}

// CorruptError says that far memory returned other bytes than were written there, and did so again when it was asked
// once more.
type CorruptError struct {
	Segment string
	Off     int
	Err     error // what is wrong with them
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("far memory returned corrupt bytes (%s, offset %d): %v", e.Segment, e.Off, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }
