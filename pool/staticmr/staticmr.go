// Package staticmr manages remote memory as most systems do that work on real
// hardware: in coarse chunks that are registered in advance (Static-MR of
// section 2.2.1 of the OneSidedMW paper). The memory node registers chunks for a
// client when it connects, in a protection domain of the client's own, and keeps
// what the client frees registered for it, so that allocating seldom registers
// anything. It is meant for chunks of many megabytes, and wastes what a client
// does not use of them.
//
// What is kept for one client goes to another when the node has nothing else;
// it is deregistered and zeroed first. Until then the client that freed a chunk
// can still reach it, and nobody else can.
//
// The messages are those of package rpcmw.
package staticmr

import (
	"context"

	"polder/pool/manager"
	"polder/pool/rpcmw"
)

// Name is what memory nodes know this manager as.
const Name = "staticmr"

// Manager is this way of managing memory. It has no state.
type Manager struct{}

var _ manager.Manager = Manager{}

// Name implements manager.Manager.
func (Manager) Name() string { return Name }

// Attach implements manager.Manager.
func (Manager) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	return rpcmw.Attach(ctx, l, Name)
}
