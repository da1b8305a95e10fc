package far

import (
	"context"
	"errors"
)

// ErrRefused: a component at the memory node refused a request, or there is none
// of that name.
var ErrRefused = errors.New("component refused")

// A Device is a memory node that also computes (AIFM, section 4.2.4): objects of
// its active components are constructed there, and do things where the data is.
// Package far/remote makes one of a pool.
//
// All methods may be called by any number of goroutines.
type Device interface {
	// Construct makes an object of a component, with parameters that the
	// component understands. With beside, which may be nil, it is where
	// beside is, so that either can be named in computations of the other.
	Construct(ctx context.Context, component string, params []byte, beside Component) (Component, error)
}

// A Component is an object at a memory node. Its memory there is not a part of
// the heap's budget. Every request takes one round trip, or none if the object is in
// this process, as package far/remote says.
//
// Errors are ErrNotFound, ErrStoreFull when the node has no more memory for this
// client's objects, ErrTooLarge, ErrRefused, or a *LostError when the object is
// gone for good: with its node, or because a component has run for too long or
// failed. A request that may have been carried out when the connection broke says
// so.
//
// All methods may be called by any number of goroutines. An object carries out
// one request at a time.
type Component interface {
	// Destruct ends the object. It succeeds if the object is lost.
	Destruct(ctx context.Context) error
	// Read appends what is under key to buf.
	Read(ctx context.Context, key, buf []byte) ([]byte, error)
	// Write puts data under key.
	Write(ctx context.Context, key, data []byte) error
	// Delete removes what is under key.
	Delete(ctx context.Context, key []byte) error
	// Compute lets the object do c, and appends what comes out to buf.
	Compute(ctx context.Context, c Computation, buf []byte) ([]byte, error)
	// Name says what the object is and where, for messages.
	Name() string
}

// A Computation is what a Component is to compute.
type Computation struct {
	Op uint16 // the component's
	In []byte
	// Others are objects at the same node that it reads.
	Others [2]Component
	// Repeat says that it may be done twice, so that it can be repeated
	// when the connection breaks.
	Repeat bool
}
