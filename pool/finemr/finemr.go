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

	"polder/pool/manager"
	"polder/pool/rpcmw"
)

// Name is what memory nodes know this manager as.
const Name = "finemr"

// Manager is this way of managing memory. It has no state.
type Manager struct{}

var _ manager.Manager = Manager{}

// Name implements manager.Manager.
func (Manager) Name() string { return Name }

// Attach implements manager.Manager.
func (Manager) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	return rpcmw.Attach(ctx, l, Name)
}
