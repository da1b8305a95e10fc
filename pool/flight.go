package pool

import (
	"context"

	"polder/verbs"
)

// A Flight is a write that StartWrite has begun. It is for one goroutine at a time, which must call End.
type Flight struct {
	call   *call // nil if there is nothing to be waited for
	ops    [1]Op
	flying bool
}

// StartWrite begins a WriteBulk and does not wait for it, so that one goroutine can write to several nodes at once.
// The caller must call End, and must not change p until End returns. landed is called at most once: when everything
// that could be started at once has landed, or when nothing could be started. The goroutine that finds this out calls
// it, perhaps before StartWrite returns; landed must not hold it up.
func (c *Chunk) StartWrite(ctx context.Context, p []byte, off int64, landed func()) *Flight {
	f := &Flight{ops: [1]Op{{Kind: OpWrite, Chunk: c, Off: off, Buf: p, Bulk: true}}}
	var err error
	if f.call, err = c.pool.getCall(); err != nil {
		f.ops[0].refuse(err)
		landed()
		return f
	}
	f.call.plan(ctx, f.ops[:])
	if ctx.Err() == nil {
		if started, _, _ := f.call.begin(); started > 0 {
			f.flying, f.call.landed = true, landed
			f.call.submit(started)
			return f
		}
	}
	landed()
	return f
}

// Landed reports whether End returns nil at once.
func (f *Flight) Landed() bool {
	if f.call == nil || f.ops[0].Err != nil || f.flying && f.call.flying.Load() > 0 {
		return false
	}
	for i := range f.call.pieces {
		if p := &f.call.pieces[i]; p.state != pieceFlying || p.landed.Load() != uint32(verbs.StatusSuccess)+1 {
			return false
		}
	}
	return true
}

// End waits for the write to end, and returns what WriteBulk would. It is called once.
func (f *Flight) End(ctx context.Context) error {
	if c := f.call; c != nil {
		f.call = nil
		if !f.flying || !c.land(ctx) {
			c.rest(ctx)
		}
	}
	return f.ops[0].Err
}
