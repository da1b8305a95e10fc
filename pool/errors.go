package pool

import (
	"context"
	"errors"
	"fmt"

	"polder/pool/manager"
)

// Errors that the error of an operation Is.
var (
	// ErrNoMemory: no node has memory left for this client.
	ErrNoMemory = manager.ErrNoMemory
	// ErrRevoked: the node's device refused the access, because the chunk's window is not bound to this client, or no
	// longer.
	ErrRevoked = errors.New("window revoked")
	// ErrNodeGone: the node cannot be reached. Its chunks may come back.
	ErrNodeGone = errors.New("memory node gone")
	// ErrLost: the chunk's contents are gone for good.
	ErrLost = errors.New("chunk is lost")
	// ErrSuperseded: a pool with a higher epoch has taken over what this kept pool had. Nothing that this pool does
	// has any effect any more, and it does not connect again.
	ErrSuperseded = errors.New("superseded by another owner")
	// ErrFreed: the chunk has been freed.
	ErrFreed = errors.New("chunk has been freed")
	// ErrClosed: the pool has been closed.
	ErrClosed = errors.New("pool is closed")
	// ErrTimeout: Config.Timeout passed. The error's Timeout method also
	// reports a context's deadline.
	ErrTimeout = errors.New("operation timed out")
	// ErrOutcomeUnknown: the connection broke while an atomic operation was
	// in flight, which may or may not have happened.
	ErrOutcomeUnknown = errors.New("connection lost: outcome unknown")
	// ErrRange: the operation is not within the chunk.
	ErrRange = errors.New("out of range")
	// ErrUnaligned: an atomic operation's offset is not a multiple of 8.
	ErrUnaligned = errors.New("offset is not a multiple of 8")
	// ErrInUse: the node cannot be forgotten, or the chunk cannot be reopened.
	ErrInUse = errors.New("in use")
)

// OpError is a failed operation on remote memory.
type OpError struct {
	Op     string // "alloc", "reopen", "prune", "free", "read", "write", "compare-and-swap", "fetch-add"
	Node   string // "" if no node was involved
	Region string // such as "chunk 12"; "" if no chunk was involved
	Offset int64  // in bytes; 0 if there is none
	Err    error
}

func (e *OpError) Error() string {
	switch {
	case e.Node == "":
		return fmt.Sprintf("cannot %s: %v", e.Op, e.Err)
	case e.Region == "":
		return fmt.Sprintf("cannot %s at %s: %v", e.Op, e.Node, e.Err)
	}
	return fmt.Sprintf("cannot %s %s/%s at offset %d: %v", e.Op, e.Node, e.Region, e.Offset, e.Err)
}

func (e *OpError) Unwrap() error { return e.Err }

// Timeout reports whether the operation ran out of time.
func (e *OpError) Timeout() bool {
	return errors.Is(e.Err, ErrTimeout) || errors.Is(e.Err, context.DeadlineExceeded)
}

// goneError is ErrNodeGone with the reason.
type goneError struct{ cause error }

func (e *goneError) Error() string        { return fmt.Sprintf("%v: %v", ErrNodeGone, e.cause) }
func (e *goneError) Is(target error) bool { return target == ErrNodeGone }
func (e *goneError) Unwrap() error        { return e.cause }
