package pool

import (
	"fmt"
	"strings"

	"polder/memnode/wire"
	"polder/pool/finemem"
	"polder/pool/onesided"
	"polder/pool/rpcmw"
	"polder/verbs"
)

// managers are those that an operator may choose, by the name in wire.Managers.
var managers = map[string]Manager{
	wire.Native:   onesided.Manager{Native: true},
	wire.OneSided: onesided.Manager{},
	wire.RPCMW:    rpcmw.Manager{},
	wire.FineMem:  finemem.Manager{},
}

// managerFor is the way of managing memory over a device of that kind, unless
// another is asked for. A memory node chooses likewise. Why not finemem where there is
// no allocation verb, docs/rdma.md says.
func managerFor(a verbs.DeviceAttr) Manager {
	if a.Alloc {
		return onesided.Manager{Native: true}
	}
	return rpcmw.Manager{}
}

// Managers lists the names that ManagerNamed knows: those that an operator may
// choose.
func Managers() []string { return wire.ManagerNames(wire.ByOperator) }

// ManagerNamed returns the manager that nodes know by a name, one of Managers.
func ManagerNamed(name string) (Manager, error) {
	if m := managers[name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("no manager %q, want one of %s", name, strings.Join(Managers(), ", "))
}
