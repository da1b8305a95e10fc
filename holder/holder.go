// Package holder defines the register that keeps the manifest of a named heap: a small value that changes by
// compare-and-swap, linearizably, and outlives those who use it.
//
// Package witness keeps registers at a majority of three or more witnesses, or at a pair of nodes. Package etcd keeps
// them in etcd.
package holder

import (
	"context"
	"errors"
)

// MaxValue is how many bytes the value of a register may have.
const MaxValue = 128 << 10

// What callers test for.
var (
	// ErrChanged says that the register has another version than the one that was to be replaced. Nothing has been
	// replaced.
	ErrChanged = errors.New("the register has changed")
	// ErrUnknown says that nobody can tell yet whether a change has happened.
	ErrUnknown = errors.New("it is not known whether the register has changed")
	// ErrTooLarge says that a value has more than MaxValue bytes. Nothing has been replaced.
	ErrTooLarge = errors.New("the value is too large for a register")
	// ErrClosed says that the register was closed. Nothing has been replaced.
	ErrClosed = errors.New("the register is closed")
)

// A Register is one value that changes by compare-and-swap, linearizably. Its version grows with every change and at
// no other time.
//
// Any number of goroutines may use a Register. Each operation ends when its context does; with a context that does
// not end, it waits for as long as no majority answers.
type Register interface {
	// Read returns the value and its version; version 0 and nil if it was never set. A Read
	// that begins after a change has been acknowledged sees it.
	//
	// A Read that succeeds, and that began after a Swap of this Register had returned ErrUnknown, settles that Swap:
	// its change is in what Read returns, or in an earlier version, or it will never happen.
	//
	// The value belongs to the caller.
	Read(ctx context.Context) (value []byte, version uint64, err error)

	// Swap replaces the value if the register has the given version, and returns the new version. It returns
	// ErrChanged if the register now has another version, which Read then returns. It returns ErrUnknown (wrapped) if
	// nobody can tell whether the change has happened: call Read until it succeeds. After any other error nothing has
	// changed, and this Swap will change nothing later.
	//
	// The caller may reuse value when Swap has returned.
	Swap(ctx context.Context, version uint64, value []byte) (newVersion uint64, err error)

	// Close ends the register's use by this process. It is idempotent; operations under way
	// end with ErrClosed, or ErrUnknown.
	Close() error
}

// A Lonely register is kept at two nodes. Its owner may go on when one of them does not answer.
type Lonely interface {
	Register
	// Own says that this process owns what the register describes, until another process changes the register.
	Own()
	// Confirm returns nil if, at some moment after Confirm was called, nobody but this Register had changed the value
	// that it last read or wrote. It needs less than Read: an answer of one of the two nodes.
	Confirm(ctx context.Context) error
}
