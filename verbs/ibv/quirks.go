package ibv

// Quirks are the ways in which a device departs from the standard, or from what
// package verbs asks for, and that the driver makes up for or owns up to. They
// go with the device's identity and nothing else: a device that is not in the
// table is taken at its word.
type Quirks struct {
	// WindowBounds: an access through a window is checked against the
	// region that the window is bound to, not against the window's range.
	// Nothing makes up for that: DeviceAttr.BoundsMW is false, and a node
	// keeps clients apart by window only.
	WindowBounds bool
	// BindRange: a BIND_MW is taken although its length wraps around the
	// address space. The driver checks every bind before it posts it.
	BindRange bool
	// BindRights: a BIND_MW is checked against the rights that the window
	// had before, not against those it asks for. As BindRange.
	BindRights bool
	// InvalidateAnyQP: a LOCAL_INV of another queue pair's window is
	// executed. The driver knows whose a window is, and refuses.
	InvalidateAnyQP bool
	// DestroyBound: destroying a queue pair that a window of type 2B is
	// bound to blocks for some 51 seconds. The driver takes such windows
	// away first.
	DestroyBound bool
	// BindKey: the provider does not take note of a type 2B window's new
	// key. The driver sets it when it posts the bind.
	BindKey bool
	// InvalidateFlag: the completion of a SEND with invalidate has a wrong
	// flag. The driver sends none and does not look at the flag.
	InvalidateFlag bool
	// SilentResponder: no asynchronous event is raised at the end whose
	// protection an access violated. The end that made the access says so
	// over the connection, and raises the event there.
	SilentResponder bool
	// ReceiveStatus: a receive that is too small for the SEND, or into memory
	// that may not be written, completes as a QP operation error. The driver
	// knows which it was.
	ReceiveStatus bool
	// ProtectionStatus: a request with an SGE of a wrong lkey completes as a
	// QP operation error. The driver reports a protection error: whatever
	// else is wrong with a request it has found before.
	ProtectionStatus bool
	// MisalignedAtomic: the provider does not take an atomic whose address
	// is not a multiple of 8. The driver completes it as the peer would.
	MisalignedAtomic bool
	// Unbind: the provider crashes when a window of type 1 is bound to
	// nothing. The driver gives the window another place in the device.
	Unbind bool
	// LocalAtomics: atomics are not atomic against the host's own, although
	// the device may say otherwise. DeviceAttr.HostAtomics is false.
	LocalAtomics bool
}

// softRoCE is the kernel's rdma_rxe, as of Linux 6.1.
var softRoCE = Quirks{
	WindowBounds:     true,
	BindRange:        true,
	BindRights:       true,
	InvalidateAnyQP:  true,
	DestroyBound:     true,
	BindKey:          true,
	InvalidateFlag:   true,
	SilentResponder:  true,
	ReceiveStatus:    true,
	ProtectionStatus: true,
	MisalignedAtomic: true,
	Unbind:           true,
	LocalAtomics:     true,
}

// softRoCEVendor and softRoCEPart are what rdma_rxe answers to a query.
const (
	softRoCEVendor = 0xffffff
	softRoCEPart   = 0
)

// quirksOf returns the quirks of a device of that identity.
func quirksOf(vendor, part uint32) (Quirks, string) {
	if vendor == softRoCEVendor && part == softRoCEPart {
		return softRoCE, "Soft-RoCE (rdma_rxe)"
	}
	return Quirks{}, ""
}
