package wire

// Names of the ways of managing memory. A client names the one that it speaks
// when it connects, and is refused if the node runs another.
const (
	Native   = "native"
	OneSided = "onesided"
	RPCMW    = "rpcmw"
	FineMem  = "finemem"
	MemFD    = "memfd"

	RPCMW1   = "rpcmw1"
	FineMR   = "finemr"
	StaticMR = "staticmr"
	ODRP     = "odrp"
)

// ManagerUse says who chooses a manager.
type ManagerUse uint8

// Who chooses a manager.
const (
	ByOperator ManagerUse = iota // an operator may: flags offer it
	ByAddress                    // it follows from the address, so no flag offers it
	Baseline                     // benchmarks, simulations and attacks, to compare with
)

// A Manager is a way of managing memory as nodes and their clients name it.
type Manager struct {
	Name string
	Use  ManagerUse
	// Registers: clients are kept apart by registrations, which every device checks, and not by windows.
	Registers bool
	// Keeps: sessions can be kept (Keep). Everything that a client has is opened only to the client's own queue
	// pairs, so that it can do nothing any more when these have been closed.
	Keeps bool
	Brief string // what does it, in a few words
}

// Managers is every way of managing memory: the table from which nodes, pools,
// flags and tests take their names.
var Managers = []Manager{
	{Name: Native, Keeps: true, Brief: "the NIC's own allocation verb"},
	{Name: OneSided, Keeps: true, Brief: "chains of work requests that the NIC runs"},
	{Name: RPCMW, Keeps: true, Brief: "messages; windows of type 2B that the node's CPU binds"},
	{Name: FineMem, Brief: "one-sided compare-and-swap of a bitmap; windows of type 1 with spare keys"},
	{Name: MemFD, Use: ByAddress, Brief: "memory of the same machine, mapped"},
	{Name: RPCMW1, Use: Baseline, Brief: "messages; windows of type 1, which do not keep clients apart"},
	{Name: FineMR, Use: Baseline, Registers: true, Brief: "messages; a registration for every chunk that is lent"},
	{Name: StaticMR, Use: Baseline, Registers: true, Brief: "messages; registrations made in advance and kept"},
	{Name: ODRP, Use: Baseline, Brief: "addresses by messages, pages by chains that every access goes through"},
}

// ManagerNames lists the names of the managers of one use, in the table's order.
func ManagerNames(use ManagerUse) (names []string) {
	for _, m := range Managers {
		if m.Use == use {
			names = append(names, m.Name)
		}
	}
	return names
}

// ManagerNamed returns the entry of the table with that name.
func ManagerNamed(name string) (Manager, bool) {
	for _, m := range Managers {
		if m.Name == name {
			return m, true
		}
	}
	return Manager{}, false
}
