package ibv

// Info describes an RDMA device, for people.
type Info struct {
	Name     string
	Firmware string
	// Known is what the driver knows the device by, if it has quirks.
	Known  string
	Quirks Quirks

	Vendor, Part uint32
	PortActive   bool
	Ethernet     bool
	Addresses    []string // of its port: RoCE v2 GIDs, or the LID

	// Limits, as the device says.
	MaxQP, MaxQPDepth int
	MaxCQ, MaxCQDepth int
	MaxMR, MaxMW      int
	MaxMRSize         uint64
	MaxSGE, MaxRdAtom int

	Atomics           bool // CMP_SWAP and FETCH_ADD
	HostAtomics       bool // atomic against the host's own, too
	Window1, Window2B bool // memory windows of that type
	Err               string
}
