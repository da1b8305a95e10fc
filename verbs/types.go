package verbs

import (
	"fmt"
	"strings"
)

// LKey names an MR in a local SGE.
type LKey uint32

// RKey names an MR or MW to a peer: 24 bits of index, 8 bits of key.
type RKey uint32

// MakeRKey joins an index of 24 bits and a key of 8.
func MakeRKey(index uint32, key uint8) RKey { return RKey(index<<8 | uint32(key)) }

// Index is the 24 bits that name the object.
func (k RKey) Index() uint32 { return uint32(k) >> 8 }

// Key is the low 8 bits, which binding changes.
func (k RKey) Key() uint8 { return uint8(k) }

func (k RKey) String() string { return fmt.Sprintf("%06x:%02x", k.Index(), k.Key()) }

// Access says what may be done to a region or through a window.
type Access uint8

const (
	AccessLocalWrite Access = 1 << iota
	AccessRemoteRead
	AccessRemoteWrite
	AccessRemoteAtomic
	AccessMWBind // on an MR: windows may be bound to it

	accessAll = AccessMWBind<<1 - 1
)

// Has reports whether a allows all of b.
func (a Access) Has(b Access) bool { return a&b == b }

// Valid reports whether a has only defined bits, and allows local writes
// where it allows remote writes or atomics, as the specification demands.
func (a Access) Valid() bool {
	if a&^accessAll != 0 {
		return false
	}
	return a&(AccessRemoteWrite|AccessRemoteAtomic) == 0 || a.Has(AccessLocalWrite)
}

func (a Access) String() string {
	names := []string{"local-write", "remote-read", "remote-write", "remote-atomic", "mw-bind"}
	return bitNames(uint8(a), names)
}

func bitNames(v uint8, names []string) string {
	var s []string
	for i := range 8 {
		if v&(1<<i) == 0 {
			continue
		}
		if i < len(names) {
			s = append(s, names[i])
		} else {
			s = append(s, fmt.Sprintf("bit%d", i))
		}
	}
	if s == nil {
		return "none"
	}
	return strings.Join(s, "|")
}

// MWType is the kind of a memory window.
type MWType uint8

const (
	MWType1  MWType = 1 // bound to its PD; may be rebound while bound
	MWType2B MWType = 2 // bound to one QP; must be invalidated before it is bound again
)

func (t MWType) String() string {
	switch t {
	case MWType1:
		return "type 1"
	case MWType2B:
		return "type 2B"
	}
	return fmt.Sprintf("MWType(%d)", uint8(t))
}

// State is a queue pair's state.
type State uint8

const (
	StateReset State = iota // created; posting to the send queue is refused
	StateInit               // receives may be posted
	StateRTS                // connected: ready to receive and to send
	StateError              // every request is flushed
)

func (s State) String() string {
	switch s {
	case StateReset:
		return "RESET"
	case StateInit:
		return "INIT"
	case StateRTS:
		return "RTS"
	case StateError:
		return "ERR"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Opcode is what a work request does.
type Opcode uint8

const (
	OpNop Opcode = iota // does nothing, and completes if signaled
	OpSend
	OpRecv // appears in completions only
	OpRead
	OpWrite
	OpCmpSwap
	OpFetchAdd
	OpBindMW
	OpLocalInv
	OpWait       // suspend the queue until a CQ has produced a number of completions
	OpEnable     // let another (or this) managed send queue run up to an index
	OpEnableRecv // let a managed receive queue be consumed up to an index
	OpMaskedFetchAdd
	OpAlloc // take a chunk from the allocator at the peer's queue pair
	OpFree  // give one back

	NumOpcodes = int(iota)
)

var opcodeNames = [NumOpcodes]string{
	"NOP", "SEND", "RECV", "READ", "WRITE", "CMP_SWAP", "FETCH_ADD",
	"BIND_MW", "LOCAL_INV", "WAIT", "ENABLE", "ENABLE_RECV",
	"MASKED_FETCH_ADD", "ALLOC", "FREE",
}

func (o Opcode) String() string {
	if int(o) < len(opcodeNames) {
		return opcodeNames[o]
	}
	return fmt.Sprintf("Opcode(%d)", uint8(o))
}

// Status is how a work request ended: the standard's completion statuses.
type Status uint8

const (
	StatusSuccess Status = iota
	StatusLocLenErr
	StatusLocQPOpErr
	StatusLocProtErr
	StatusWRFlushErr
	StatusMWBindErr
	StatusLocAccessErr
	StatusRemInvReqErr
	StatusRemAccessErr
	StatusRemOpErr
	StatusRetryExcErr
	StatusRNRRetryExcErr
	StatusFatalErr

	numStatuses = int(iota)
)

var statusNames = [numStatuses]string{
	"success",
	"local length error",
	"local QP operation error",
	"local protection error",
	"work request flushed",
	"memory window bind error",
	"local access error",
	"remote invalid request error",
	"remote access error",
	"remote operation error",
	"transport retry counter exceeded",
	"RNR retry counter exceeded",
	"fatal error",
}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// EventType is the kind of an asynchronous event.
type EventType uint8

const (
	EventQPFatal       EventType = iota + 1 // the QP failed while executing a local request
	EventQPReqErr                           // a peer sent an invalid request
	EventQPAccessErr                        // a peer's request violated protection
	EventCQErr                              // a completion queue overran
	EventDisconnected                       // the QP's connection is gone
	EventCommEstablish                      // the QP is connected
)

func (t EventType) String() string {
	switch t {
	case EventQPFatal:
		return "QP fatal"
	case EventQPReqErr:
		return "invalid request"
	case EventQPAccessErr:
		return "access violation"
	case EventCQErr:
		return "CQ overrun"
	case EventDisconnected:
		return "disconnected"
	case EventCommEstablish:
		return "communication established"
	}
	return fmt.Sprintf("EventType(%d)", uint8(t))
}

// AsyncEvent is something that happened outside any work request.
type AsyncEvent struct {
	Type EventType
	QPN  uint32 // the QP concerned, 0 if none
	CQN  uint32 // the CQ concerned, 0 if none
}

func (e AsyncEvent) String() string {
	return fmt.Sprintf("%v (QP %d, CQ %d)", e.Type, e.QPN, e.CQN)
}

// SGE is a scatter/gather element: bytes in a local MR.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   LKey
}

// SendFlags modify a send work request.
type SendFlags uint8

const (
	// SendSignaled asks for a completion on success. Failures always
	// complete.
	SendSignaled SendFlags = 1 << iota
	// SendFence waits for the queue's earlier READs and atomics.
	SendFence
	// SendSGLIndirect says that the request's only SGE names a table of
	// 16-byte SGEs (address, length, lkey; little-endian) in an MR.
	SendSGLIndirect
	// SendAnyQP lets a LOCAL_INV that the memory node itself posts
	// invalidate a type 2B window of another QP in its PD (OneSidedMW,
	// section 4.3: "configured by the MN to skip qpn checks").
	SendAnyQP

	sendFlagsAll = SendAnyQP<<1 - 1
)

// Valid reports whether f has only defined bits.
func (f SendFlags) Valid() bool { return f&^sendFlagsAll == 0 }

func (f SendFlags) String() string {
	return bitNames(uint8(f), []string{"signaled", "fence", "sgl-indirect", "any-qp"})
}

// SendWR is a request for the send queue. Which fields count depends on Op:
//
//	SEND              SGL
//	READ, WRITE       SGL, RemoteAddr, RKey
//	CMP_SWAP          SGL[0] (8 bytes: the old value), RemoteAddr, RKey, Compare, Swap
//	FETCH_ADD         SGL[0] (8 bytes: the old value), RemoteAddr, RKey, Swap (the addend)
//	MASKED_FETCH_ADD  the same, and Compare: bits that no carry leaves
//	ALLOC             SGL (where the answer goes, see Allocator)
//	FREE              RemoteAddr (a handle, see Allocator)
//	BIND_MW           RKey (index of the window, new key in the low 8 bits),
//	                  BindLKey, RemoteAddr, BindLength, BindAccess, QPN
//	LOCAL_INV         RKey
//	WAIT              CQN, Count
//	ENABLE            QPN, Count
//	ENABLE_RECV       QPN, Count
//
// WAIT counts successes only: that a queue is flushed never sets off a chain. Its
// Count is signed, and may begin below 0: one that is not positive is no wait.
// ENABLE and ENABLE_RECV only ever raise the limit, of a queue in the same PD;
// QPN 0 is the queue pair that the request is posted to.
//
// MASKED_FETCH_ADD is a device's extended atomic operation: the word is cut into
// fields, each of which is added to without regard for the others. A set bit of
// Compare is the highest of a field. So counters wrap at any power of two, and
// the low 8 bits of an rkey can be counted up in place.
//
// The new key of a BIND_MW is to differ from the window's present one; some
// devices refuse it otherwise.
//
// A type 2B window is assigned to the queue pair QPN of the same PD, or to
// the one that the request is posted to if QPN is 0.
type SendWR struct {
	ID         uint64
	Op         Opcode
	Flags      SendFlags
	SGL        []SGE
	RemoteAddr uint64
	RKey       RKey
	Compare    uint64
	Swap       uint64
	BindLKey   LKey
	BindLength uint64
	BindAccess Access
	QPN        uint32
	CQN        uint32
	Count      uint64 // WAIT: successes since the CQ was created; ENABLE: queue index, exclusive
}

// RecvWR is a buffer for one incoming SEND.
type RecvWR struct {
	ID  uint64
	SGL []SGE
}

// WC is a work completion. On failure only ID, Status and QPN are valid.
type WC struct {
	ID      uint64
	Status  Status
	Op      Opcode
	QPN     uint32
	ByteLen uint32 // RECV: bytes received; READ: bytes read; atomics: 8
}

// Err returns nil for a success and a *StatusError otherwise.
func (wc WC) Err() error {
	if wc.Status == StatusSuccess {
		return nil
	}
	return &StatusError{Status: wc.Status}
}
