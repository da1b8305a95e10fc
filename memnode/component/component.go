package component

import (
	"errors"
	"time"
)

// Errors that a component's method may return. Any other error is a refusal, whose text the client gets.
var (
	// ErrNotFound: there is nothing under that key.
	ErrNotFound = errors.New("not found")
	// ErrNoMemory: the client may have no more memory.
	ErrNoMemory = errors.New("the client's memory for components is used up")
	// ErrTooLarge: what is asked for does not fit into the reply.
	ErrTooLarge = errors.New("the reply is too large")
	// ErrExpired: the request's time was over.
	ErrExpired = errors.New("the request's time is over")
)

// A Set is the components of a program, by the names that clients construct
// them by.
type Set map[string]Component

// A Component is a kind of objects.
type Component struct {
	// New constructs an object.
	New Constructor
	// Bounded promises that every call ends by itself within a short time, whatever it is given, uses no memory but
	// the Env's, does nothing unsafe and starts no goroutine. The component's objects live in the node's process, and
	// are called by the goroutine that has received the request: that is as fast as a one-sided READ. A panic still
	// harms only the object that panics.
	Bounded bool
}

// A Constructor makes an object with parameters that only it understands.
type Constructor func(env *Env, c *Call, params []byte) (Object, error)

// An Object is what a client has constructed. Its methods are called one at a
// time. They must check what they are given, since it comes from the network,
// and must not keep it: key, data and in are the message's, and out the
// reply's.
type Object interface {
	// Read appends what is under key to out. The result must fit into out's capacity.
	Read(c *Call, key, out []byte) ([]byte, error)
	// Write puts data under key.
	Write(c *Call, key, data []byte) error
	// Delete removes what is under key.
	Delete(c *Call, key []byte) error
	// Compute executes op on in, and appends the result to out, within out's capacity.
	Compute(c *Call, op uint16, in, out []byte) ([]byte, error)
}

// A Call is a request that is being carried out.
type Call struct {
	// Chunks is the memory that the node has lent to the client. It is set for objects of Bounded components in the
	// node's process, and nil if the node's manager cannot tell which chunks a client has.
	Chunks Chunks

	deadline time.Time
}

// Chunks is what a node has lent to one client, as it is now. It may be used by any number of
// goroutines.
type Chunks interface {
	// Read copies to b the bytes at off of one of the client's chunks; they may continue in the chunks behind it. It
	// reports false if any of these chunks is not the client's before or after the copy. Then b is of no use, and
	// must not be given to anybody.
	Read(chunk uint32, off uint64, b []byte) bool
}

// Expired reports whether nobody waits for the result any more. A call that takes long should check it now and then,
// and return ErrExpired.
func (c *Call) Expired() bool { return time.Now().After(c.deadline) }
