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
	// ErrTooLarge: a key, value, string or object is larger than the heap takes, such as MaxKeySize or
	// Config.MaxValue.
	ErrTooLarge = heap.ErrTooLarge
	// ErrModified: others changed a List, so that a Cursor or an iteration does not know any more where it is.
	ErrModified = errors.New("list was modified")
	// ErrEnd: a Cursor is at the end of its List, where there is no element.
	ErrEnd = errors.New("the cursor is at the end of the list")
	// ErrFreed: the structure or the map was freed.
	ErrFreed = heap.ErrFreed
	// ErrConflict: another transaction that has not ended has changed the key, or another key with the same hash.
	ErrConflict = bytemap.ErrConflict
)

// Errors of the heap's memory.
var (
	// ErrClosed: the heap has been closed.
	ErrClosed = heap.ErrClosed
	// ErrFull: there is no memory for what was asked, and nothing can be evacuated or freed to make room. Every error
	// that Is ErrFull also Is one of the three errors that follow, which say what is full.
	ErrFull = heap.ErrFull
	// ErrStoreFull: the store has no segment to lend. More far memory helps.
	ErrStoreFull = heap.ErrStoreFull
	// ErrMetadataFull: indexes and the words of pointers, which the heap keeps in local memory for data that is local
	// or far, would leave too little of Config.Local for the data itself.
	ErrMetadataFull = heap.ErrMetadataFull
	// ErrLocalFull: all of Config.Local is in use by data that cannot be evacuated just now.
	ErrLocalFull = heap.ErrLocalFull
	// ErrScopeFull: a scope has taken all the local memory that it can get while it is open. Leave it and try again.
	ErrScopeFull = heap.ErrScopeFull
	// ErrScopeOpen: the calling goroutine holds a scope open, and would wait for local memory for which the evacuator
	// cannot make room before that scope is left.
	ErrScopeOpen = heap.ErrScopeOpen
	// ErrSuperseded: another process owns the heap now. Only a heap whose Store several processes may open fails with
	// it.
	ErrSuperseded = store.ErrSuperseded
)

// LostError says that an entry or an object was lost with the segment that held it.
type LostError = heap.LostError

// CorruptError says that far memory, asked twice, answered both times with bytes other than those that were written
// there.
type CorruptError = heap.CorruptError
