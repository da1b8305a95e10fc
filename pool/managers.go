package pool

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"polder/pool/finemem"
	"polder/pool/finemr"
	"polder/pool/odrp"
	"polder/pool/onesided"
	"polder/pool/rpcmw"
	"polder/pool/staticmr"
	"polder/verbs"
)

// managers are the ways of managing memory, by the name that nodes know them as.
var managers = map[string]Manager{}

func init() {
	for _, m := range []Manager{
		onesided.Manager{}, onesided.Manager{Native: true},
		rpcmw.Manager{}, rpcmw.Manager{Type1: true},
		staticmr.Manager{}, finemr.Manager{}, odrp.Manager{},
		finemem.Manager{},
	} {
		managers[m.Name()] = m
	}
}

// managerFor is the way of managing memory over a device of that kind, unless
// another is asked for. A memory node chooses likewise.
func managerFor(a verbs.DeviceAttr) Manager {
	if a.Alloc {
		return onesided.Manager{Native: true}
	}
	return rpcmw.Manager{}
}

// Managers lists the names that ManagerNamed knows.
func Managers() []string { return slices.Sorted(maps.Keys(managers)) }

// ManagerNamed returns the way of managing memory that nodes know by a name.
func ManagerNamed(name string) (Manager, error) {
	if m := managers[name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("no manager %q, want one of %s", name, strings.Join(Managers(), ", "))
}
