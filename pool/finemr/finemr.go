// Package finemr manages remote memory by messages, with a registration for
// every chunk (section 2.2.1 of the OneSidedMW paper): the memory node registers
// a chunk when it lends it, in a protection domain of the borrower's own, and
// deregisters it when it comes back. It keeps clients apart as well as windows
// do, but on a real device a registration pins pages and fills a page table,
// which takes far longer than a bind.
//
// The messages are those of package rpcmw.
package finemr

import (
	"context"

	"polder/pool/mech"
	"polder/pool/rpcmw"
)

// Name is what memory nodes know this mechanism as.
const Name = "finemr"

// Mechanism is the mechanism. It has no state.
type Mechanism struct{}

var _ mech.Mechanism = Mechanism{}

// Name implements mech.Mechanism.
func (Mechanism) Name() string { return Name }

// Attach implements mech.Mechanism.
func (Mechanism) Attach(ctx context.Context, l mech.Link) (mech.Session, error) {
	return rpcmw.Attach(ctx, l, Name)
}
