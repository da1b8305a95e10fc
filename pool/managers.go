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

// managerFor is the default way of managing memory over a device of that kind. A memory node chooses by the same
// rule. docs/rdma.md says why it is not finemem where there is no allocation verb.
func managerFor(a verbs.DeviceAttr) Manager {
	if a.Alloc {
		return onesided.Manager{Native: true}
	}
	return rpcmw.Manager{}
}

// Managers lists the names that ManagerNamed knows, from which operators can choose.
func Managers() []string { return wire.ManagerNames(wire.ByOperator) }

// ManagerNamed returns the manager with one of the names in Managers, by which nodes know it.
func ManagerNamed(name string) (Manager, error) {
	if m := managers[name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("no manager %q, want one of %s", name, strings.Join(Managers(), ", "))
}
