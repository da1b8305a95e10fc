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

	"polder/pool/mech"
	"polder/pool/rpcmw"
)

// Name is what memory nodes know this mechanism as.
const Name = "staticmr"

// Mechanism is the mechanism. It has no state.
type Mechanism struct{}

var _ mech.Mechanism = Mechanism{}

// Name implements mech.Mechanism.
func (Mechanism) Name() string { return Name }

// Attach implements mech.Mechanism.
func (Mechanism) Attach(ctx context.Context, l mech.Link) (mech.Session, error) {
	return rpcmw.Attach(ctx, l, Name)
}
