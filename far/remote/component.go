package remote

import (
	"context"
	"errors"
	"fmt"

	"polder/far"
	"polder/pool"
)

// NewDevice returns the active components of p's nodes, which stays the caller's.
// The nodes must have been given memory for them (polder node
// --component-memory).
//
// Objects of the components that come with Polder are in this process if the node
// is on this machine and has been dialled by its Unix socket, and has no others:
// requests are then function calls, and an object's memory is the node's.
func NewDevice(p *pool.Pool) far.Device { return device{p} }

type device struct{ pool *pool.Pool }

// Construct implements far.Device.
func (d device) Construct(ctx context.Context, name string, params []byte, beside far.Component) (far.Component, error) {
	var o *pool.Object
	var err error
	switch b := beside.(type) {
	case nil:
		o, err = d.pool.Construct(ctx, name, params)
	case object:
		o, err = d.pool.ConstructBeside(ctx, b.of, name, params)
	default:
		return nil, fmt.Errorf("cannot construct %s beside %s: that is another device's", name, beside.Name())
	}
	if err != nil {
		return nil, translate(name, err)
	}
	return object{o}, nil
}

// object is an object of a pool's as a far.Component.
type object struct{ of *pool.Object }

func (c object) Name() string { return c.of.Name() }

// Destruct implements far.Component.
func (c object) Destruct(ctx context.Context) error {
	return c.translate(c.of.Destruct(ctx))
}

// Read implements far.Component.
func (c object) Read(ctx context.Context, key, buf []byte) ([]byte, error) {
	out, err := c.of.Read(ctx, key, buf)
	return out, c.translate(err)
}

// Write implements far.Component.
func (c object) Write(ctx context.Context, key, data []byte) error {
	return c.translate(c.of.Write(ctx, key, data))
}

// Delete implements far.Component.
func (c object) Delete(ctx context.Context, key []byte) error {
	return c.translate(c.of.Delete(ctx, key))
}

// Compute implements far.Component.
func (c object) Compute(ctx context.Context, k far.Computation, buf []byte) ([]byte, error) {
	p := pool.Computation{Op: k.Op, In: k.In, Repeat: k.Repeat}
	for i, other := range k.Others {
		switch o := other.(type) {
		case nil:
		case object:
			p.Others[i] = o.of
		default:
			return nil, fmt.Errorf("cannot compute at %s with %s: that is another device's", c.Name(), other.Name())
		}
	}
	out, err := c.of.Compute(ctx, p, buf)
	return out, c.translate(err)
}

func (c object) translate(err error) error {
	if err == nil { // fast path
		return nil
	}
	return translate(c.Name(), err)
}

// translate makes an error of the pool's one of far's.
func translate(name string, err error) error {
	switch {
	case errors.Is(err, pool.ErrNotFound):
		return far.ErrNotFound
	case errors.Is(err, pool.ErrLost), errors.Is(err, pool.ErrFreed):
		return fmt.Errorf("%w: %w", &far.LostError{Segment: name}, err)
	case errors.Is(err, pool.ErrNoMemory):
		return fmt.Errorf("%w: %w", far.ErrStoreFull, err)
	case errors.Is(err, pool.ErrTooLarge):
		return fmt.Errorf("%w: %w", far.ErrTooLarge, err)
	case errors.Is(err, pool.ErrRefused), errors.Is(err, pool.ErrNoComponent):
		return fmt.Errorf("%w: %w", far.ErrRefused, err)
	}
	return err
}
