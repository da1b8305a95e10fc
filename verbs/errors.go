package verbs

import "errors"

var (
	// ErrClosed: the object, its device or its connection has been closed.
	ErrClosed = errors.New("closed")
	// ErrQueueFull: the work requests do not all fit into the queue.
	ErrQueueFull = errors.New("work queue is full")
	// ErrBadState: the operation is not allowed in the QP's state.
	ErrBadState = errors.New("wrong queue pair state")
	// ErrInvalid: an argument is out of range or belongs to another device
	// or protection domain. The message says which.
	ErrInvalid = errors.New("invalid argument")
	// ErrBusy: the object is still in use.
	ErrBusy = errors.New("still in use")
	// ErrNoResources: a table of the device is full.
	ErrNoResources = errors.New("device resources exhausted")
)

// StatusError is a completion that was not a success.
type StatusError struct{ Status Status }

func (e *StatusError) Error() string { return e.Status.String() }

// RejectError is a peer's refusal to connect a queue pair.
type RejectError struct{ Reason string }

func (e *RejectError) Error() string { return "connection rejected: " + e.Reason }
