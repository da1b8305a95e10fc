// Package holder says what keeps the manifest of a named heap: a small register that changes
// by compare-and-swap, linearizably, and outlives those who use it.
//
// Package witness is one: a majority of three or more witnesses, or a pair of nodes. Package etcd is another.
package holder

import (
	"context"
	"errors"
)

// MaxValue is how many bytes the value of a register may have.
const MaxValue = 128 << 10

// What callers test for.
var (
	// ErrChanged says that the register has another version than the one that was to be
	// replaced, so that nothing has been replaced.
	ErrChanged = errors.New("the register has changed")
	// ErrUnknown says that nobody can tell yet whether a change has happened.
	ErrUnknown = errors.New("it is not known whether the register has changed")
	// ErrTooLarge says that a value has more than MaxValue bytes. Nothing has been replaced.
	ErrTooLarge = errors.New("the value is too large for a register")
	// ErrClosed says that the register was closed. Nothing has been replaced.
	ErrClosed = errors.New("the register is closed")
)

// A Register is one value that changes by compare-and-swap, linearizably. Its version
// becomes larger with every change and at no other time.
//
// Any number of goroutines may use a Register. Each operation ends when its context does;
// a context without an end waits for as long as no majority answers.
type Register interface {
	// Read returns the value and its version; version 0 and nil if it was never set. A Read
	// that begins after a change has been acknowledged sees it.
	//
	// A Read that succeeds, and began after a Swap of this Register had returned ErrUnknown,
	// settles it: the change is in what Read returns, or in what was there before it, or it
	// will never happen.
	//
	// The value belongs to the caller.
	Read(ctx context.Context) (value []byte, version uint64, err error)

	// Swap replaces the value if it has that version, and returns the new version. It returns
	// ErrChanged if the register has another version now (and then Read tells); ErrUnknown
	// (wrapped) if nobody can tell whether the change has happened: Read until that succeeds.
	// After any other error nothing has changed, and nothing will by this Swap.
	//
	// The caller may use value again when Swap has returned.
	Swap(ctx context.Context, version uint64, value []byte) (newVersion uint64, err error)

	// Close ends the register's use by this process. It is idempotent; operations under way
	// end with ErrClosed, or ErrUnknown.
	Close() error
}

// A Lonely register is one at two nodes, whose owner may go on when one of them does not answer.
type Lonely interface {
	Register
	// Own says that this process owns what the register has, until another one changes it.
	Own()
	// Confirm returns nil if at some moment after it was called nobody but this Register had changed the value that it
	// has read or written last. It takes less than Read: one of the two nodes.
	Confirm(ctx context.Context) error
}
