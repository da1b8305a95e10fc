package control

import (
	"context"
	"fmt"

	"polder/memnode/wire"
	"polder/pool/manager"
)

// yielder is the manager.Yielder of a node that lends what its host does not need.
type yielder struct{ c *Channel }

// Yielder permits the node to drop chunks. It is nil if the node never asks for memory back.
func (c *Channel) Yielder(w *wire.Welcome) manager.Yielder {
	if !w.Idle {
		return nil
	}
	return yielder{c}
}

// MayVanish implements manager.Yielder.
func (y yielder) MayVanish(ctx context.Context, chunks []uint32) error {
	_, err := y.about(ctx, wire.OpMayVanish, chunks)
	return err
}

// MustStay implements manager.Yielder.
func (y yielder) MustStay(ctx context.Context, chunks []uint32) (all bool, err error) {
	return y.about(ctx, wire.OpMustStay, chunks)
}

// about sends requests about chunks, and reports whether the node has said yes to all of them.
func (y yielder) about(ctx context.Context, op wire.Op, chunks []uint32) (all bool, err error) {
	all = true
	for len(chunks) > 0 {
		some := chunks[:min(len(chunks), wire.MaxBatch)]
		chunks = chunks[len(some):]
		var r wire.Reply
		release, err := y.c.Exchange(ctx, &r, func(b []byte, id uint32) []byte { return wire.AppendListed(b, op, id, some) })
		if err != nil {
			return false, err
		}
		status := r.Status
		release()
		switch {
		case status == wire.StatusVanished && op == wire.OpMustStay:
			all = false
		case status != wire.StatusOK:
			return false, fmt.Errorf("%w: %v", manager.ErrRefused, status)
		}
	}
	return all, nil
}

// Vanished implements manager.Yielder.
func (y yielder) Vanished(ctx context.Context, vanished func(chunk uint32)) error {
	for {
		var r wire.Reply
		release, err := y.c.Exchange(ctx, &r, func(b []byte, id uint32) []byte {
			return wire.AppendRequest(b, wire.OpVanished, id, wire.MaxBatch, 0)
		})
		if err != nil {
			return err
		}
		n, status := r.N, r.Status
		for i := range n {
			vanished(r.Chunk(i))
		}
		release()
		switch {
		case status != wire.StatusOK:
			return fmt.Errorf("%w: %v", manager.ErrRefused, status)
		case n == 0:
			return nil
		}
	}
}
