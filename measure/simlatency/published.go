package simlatency

import "polder/verbs"

// variant is a row of the figure.
type variant struct {
	name  string
	build manager
	// What the paper gives, in microseconds, for 1 and 24 threads; 0 where
	// its text gives nothing.
	access, allocate [2]float64
	// kind is what the row's figures of allocation are, if they are not predictions.
	kind kind
}

// kind says what a simulated value is worth beside a published one.
type kind string

const (
	predicted kind = "predicted"
	fitted    kind = "fitted" // a parameter was chosen so that it comes out
	given     kind = "given"  // a parameter of the model is nearly the answer
)

// threadCounts are the figure's columns.
var threadCounts = [2]int{1, 24}

// calibrated is the only published figure that a parameter was fitted to:
// OneSidedMW's allocation with one thread.
const calibrated = "OneSidedMW"

// The text of section 6.3 gives some of the figure's values outright, and others
// as ratios to them.
const (
	odrpAccess       = 11.9             // "increasing the access latency to 11.9 µs"
	staticAccess     = odrpAccess / 3.2 // "3.2x higher access latency with 24 threads than one-sided RDMA"
	sepGain          = 0.106            // "lowers memory access latency by 10.6 %, bringing it in line with" the same
	offloadCost      = 0.126            // section 3.2: "with 96 MN-side QPs containing offloaded logic"
	rpcAllocate      = 170              // "170 µs with 24 threads"
	oneSidedAllocate = 22.5             // with 24 threads
	plainAccess      = staticAccess     // one-sided RDMA without offloading
	mixedAccess      = plainAccess / (1 - sepGain)
	offloads         = 96
)

var variants = []variant{
	{name: "Static-MR", build: static, access: [2]float64{0, staticAccess}},
	{name: "RPC-MW type 1", build: rpc(verbs.MWType1), kind: given, allocate: [2]float64{0, rpcAllocate}},
	{name: "RPC-MW type 2", build: rpc(verbs.MWType2B), kind: given, allocate: [2]float64{0, rpcAllocate}},
	{name: "ODRP", build: odrp, access: [2]float64{0, odrpAccess}},
	{name: calibrated, build: oneSided, access: [2]float64{0, mixedAccess}, allocate: [2]float64{10.7, oneSidedAllocate}},
	{name: "OneSidedMW(+Sep)", build: separated(1), access: [2]float64{0, plainAccess}},
	{name: "OneSidedMW(+Sep), 8 Alloc QPs", build: separated(8)},
}
