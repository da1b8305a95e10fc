package baseline

import (
	"context"

	"polder/memnode/wire"
	"polder/pool/manager"
	"polder/pool/rpcmw"
)

// The managers of this file use the messages of package rpcmw. They differ in
// what the node does when it is asked.

// RPCMW1 has the node bind windows of type 1. It needs one bind for a free and
// the allocation after it, but clients are not safe from each other: any of
// them can guess another's key.
type RPCMW1 struct{}

// Name implements manager.Manager.
func (RPCMW1) Name() string { return wire.RPCMW1 }

// Attach implements manager.Manager.
func (m RPCMW1) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	return rpcmw.Attach(ctx, l, m.Name())
}

// FineMR has the node register a chunk when it lends it, in a protection domain
// of the borrower's own, and deregister it when it comes back. That keeps
// clients apart as well as windows do, but on a real device a registration pins
// pages and fills a page table, which takes far longer than a bind.
type FineMR struct{}

// Name implements manager.Manager.
func (FineMR) Name() string { return wire.FineMR }

// Attach implements manager.Manager.
func (m FineMR) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	return rpcmw.Attach(ctx, l, m.Name())
}

// StaticMR is how most systems work on real hardware. The node registers chunks
// for a client when it connects, in a protection domain of the client's own, and
// keeps what the client frees registered for it, so that allocating seldom
// registers anything. It is meant for chunks of many megabytes, and wastes what
// a client does not use of them.
//
// What is kept for one client goes to another when the node has nothing else;
// it is deregistered and zeroed first. Until then the client that freed a chunk
// can still reach it, and nobody else can.
type StaticMR struct{}

// Name implements manager.Manager.
func (StaticMR) Name() string { return wire.StaticMR }

// Attach implements manager.Manager.
func (m StaticMR) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	return rpcmw.Attach(ctx, l, m.Name())
}
