package share

import (
	"errors"
	"fmt"

	"polder/share/internal/wire"
)

// Errors that callers test for with errors.Is.
var (
	// ErrNotFound: no such key, or no longer.
	ErrNotFound = errors.New("the key is not there")
	// ErrPinned: the key is pinned, by this client or another, and stays.
	ErrPinned = errors.New("the key is pinned")
	// ErrFull: no pool has room, and nothing could be evicted.
	ErrFull = errors.New("the pool is full")
	// ErrQuota: the tenant's quota is used up.
	ErrQuota = errors.New("the quota is used up")
	// ErrDenied: the handle, the owner or the user does not allow it.
	ErrDenied = errors.New("denied")
	// ErrInvalid: the request makes no sense, as with an oversized key.
	ErrInvalid = errors.New("invalid request")
	// ErrNoLog: the daemon's disk is full, so that it cannot promise anything
	// new; what is there can still be read.
	ErrNoLog = errors.New("the daemon cannot log")
	// ErrBusy: the daemon has as many clients as it admits.
	ErrBusy = errors.New("the daemon is busy")
	// ErrClosed: the client is closed.
	ErrClosed = errors.New("the client is closed")
	// ErrUnavailable: the daemon cannot be reached.
	ErrUnavailable = errors.New("the daemon cannot be reached")
	// ErrUncertain: the connection broke after the request was sent; it may
	// have been carried out.
	ErrUncertain = errors.New("the request may have been carried out")
	// ErrPage: the page is not the caller's to use: it was put or freed.
	ErrPage = errors.New("the page is not in use")
)

// OpError is the error of an operation: what was tried, and why it failed.
type OpError struct {
	Op  string // such as "put"
	Key string // if it was about one
	Err error
}

// Error says what was tried and why it failed.
func (e *OpError) Error() string {
	if e.Key != "" {
		return fmt.Sprintf("cannot %s %q: %v", e.Op, e.Key, e.Err)
	}
	return fmt.Sprintf("cannot %s: %v", e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// errOf returns the error that a status stands for, or nil.
func errOf(s wire.Status) error {
	switch s {
	case wire.OK:
		return nil
	case wire.NotFound:
		return ErrNotFound
	case wire.Pinned:
		return ErrPinned
	case wire.Denied:
		return ErrDenied
	case wire.Full:
		return ErrFull
	case wire.Quota:
		return ErrQuota
	case wire.Invalid:
		return ErrInvalid
	case wire.NoLog:
		return ErrNoLog
	case wire.Busy:
		return ErrBusy
	}
	return fmt.Errorf("the daemon says: %v", s)
}

// replyError is an error that the daemon explains.
func replyError(s wire.Status, text []byte) error {
	err := errOf(s)
	if len(text) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s", err, text)
}
