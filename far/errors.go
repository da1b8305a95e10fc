package far

import (
	"errors"

	"polder/far/bytemap"
	"polder/far/heap"
	"polder/far/store"
)

var (
	// ErrNotFound: the map has no such key.
	ErrNotFound = bytemap.ErrNotFound
	// ErrWouldBlock: the call would have to wait, and was given NoWait.
	ErrWouldBlock = heap.ErrWouldBlock
	// ErrTooLarge: the key or value exceeds MaxKeySize or Config.MaxValue.
	ErrTooLarge = heap.ErrTooLarge
	// ErrModified: a List was changed by others, so that a Cursor or an
	// iteration does not know where it is.
	ErrModified = errors.New("list was modified")
	// ErrFreed: the structure or the map was freed.
	ErrFreed = heap.ErrFreed
	// ErrConflict: another transaction that has not ended has changed the key, or
	// one with the same hash.
	ErrConflict = bytemap.ErrConflict
)

// Errors of the heap's memory.
var (
	// ErrClosed: the heap has been closed.
	ErrClosed = heap.ErrClosed
	// ErrFull: there is no memory for it, and nothing can make way. Whatever Is
	// ErrFull Is one of the three that follow, too, which say what is full.
	ErrFull = heap.ErrFull
	// ErrStoreFull: the store has no segment to lend. More far memory helps.
	ErrStoreFull = heap.ErrStoreFull
	// ErrMetadataFull: what the heap keeps in local memory of all that is local or far,
	// indexes and the words of pointers, would leave too little of Config.Local for data.
	ErrMetadataFull = heap.ErrMetadataFull
	// ErrLocalFull: all of Config.Local is in use by what cannot be evacuated just now.
	ErrLocalFull = heap.ErrLocalFull
	// ErrScopeFull: a scope has taken all the local memory that is to be had
	// while it is open. Leave it and try again.
	ErrScopeFull = heap.ErrScopeFull
	// ErrScopeOpen: the calling goroutine holds a scope open, and would wait for local
	// memory that the evacuator cannot make before that scope is left.
	ErrScopeOpen = heap.ErrScopeOpen
	// ErrSuperseded: another process owns the heap now. Only the heap of a Store that several processes may open fails with it.
	ErrSuperseded = store.ErrSuperseded
)

// LostError says that an entry was lost with the segment that held it.
type LostError = heap.LostError

// CorruptError says that far memory answered, also when it was asked once more, with bytes that are not those
// that were written there.
type CorruptError = heap.CorruptError
