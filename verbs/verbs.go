// Package verbs is the vocabulary of one-sided memory: the objects, work
// requests and completions of RDMA, under the names that libibverbs gives
// them, as interfaces that a software RNIC and a real one both satisfy.
//
// A program opens a [Device] through a driver (verbs/inproc, verbs/tcp, ...),
// allocates a protection domain ([PD]), registers memory ([MR]), creates
// completion queues ([CQ]) and queue pairs ([QP]), connects each queue pair to
// one at a peer ([Listener], [Conn]), and posts work requests. READ, WRITE,
// CMP_SWAP and FETCH_ADD touch the peer's registered memory without any code
// of the peer's running; a memory window ([MW]) narrows what may be touched
// and takes the right back later.
//
// # Keys
//
// An rkey is 24 bits of index and 8 bits of key. The index names the MR or MW
// and never changes; registering or binding sets the low 8 bits. A type 2B
// window belongs to one queue pair, and only that one can use it or invalidate
// it; a type 1 window serves every queue pair of its PD.
//
// # Addresses
//
// Remote and local addresses are those of the MR (its I/O virtual addresses,
// [MR.Addr]), not Go pointers. An SGE or a remote address outside the MR or
// the window is a protection error.
//
// # Errors
//
// A work request that fails completes with a [Status]; the queue pair then
// goes to [StateError], what was still queued completes with
// [StatusWRFlushErr], and an [AsyncEvent] is raised, as the InfiniBand
// specification (volume 1, sections 10.3 and 11.6) has it.
//
// # Concurrency
//
// Every method may be called by any number of goroutines. Memory that a work
// request names belongs to the device until its completion has been polled;
// polling it happens after every access the device made.
package verbs

import "context"

// A Device is an opened RDMA device.
type Device interface {
	// Attr returns what the device can do.
	Attr() DeviceAttr
	// AllocPD allocates a protection domain.
	AllocPD() (PD, error)
	// CreateCQ creates a completion queue.
	CreateCQ(CQInit) (CQ, error)
	// ConnectLoopback joins two queue pairs of this device to each other,
	// or one to itself if a and b are the same, and takes them to
	// StateRTS. Work-request chains reach their own device's memory so.
	ConnectLoopback(a, b QP) error
	// Close destroys everything the device holds and disconnects its
	// connections. It is idempotent.
	Close() error
}

// DeviceAttr tells a device's capabilities and limits.
type DeviceAttr struct {
	Name       string // such as "softnic", "mlx5_0"
	MaxQPDepth int    // most work-queue entries in a send or receive queue
	MaxSGE     int    // most SGEs in one work request
	MaxMsgSize uint32 // most bytes in one message
	MaxRdAtom  int    // most READs and atomics outstanding on one QP
	MaxQP      int    // most queue pairs; 0: the device does not say
	MaxCQ      int    // most completion queues; 0: the device does not say
	MaxMW      int    // most windows; 0: the device does not say
	WaitEnable bool   // WAIT and ENABLE, and what goes with them: the device can run work-request chains
	BoundsMW   bool   // window bounds are checked on every access
	// Prefetches says that an entry of a queue may be read as soon as it is
	// enabled, or posted to a queue that is not managed: what rewrites an entry
	// must have completed before it is enabled.
	Prefetches bool
	// Type1Keys: a window of type 1 gets the key that its bind asks for. Otherwise the device chooses the key, and
	// MW.RKey returns it.
	Type1Keys bool
	// HostAtomics: atomics are atomic against the host's own (sync/atomic).
	HostAtomics bool
	// Pinned: registered memory is pinned. The device goes on with the pages
	// that there were at the time, so they must not be given back to the
	// operating system while they are registered: zero them instead.
	Pinned bool
	Alloc  bool // ALLOC and FREE: the device is an AllocDevice
}

// A PD is a protection domain: keys of one are refused in another.
type PD interface {
	// RegMR registers buf. The device accesses buf until Deregister. Local
	// writes need [AccessLocalWrite]; remote write and atomic need it too.
	RegMR(buf []byte, access Access) (MR, error)
	// AllocMW allocates an unbound window.
	AllocMW(MWType) (MW, error)
	// CreateQP creates a queue pair in StateReset, to be connected.
	CreateQP(QPInit) (QP, error)
	// Close deallocates the domain; it fails while anything is left in it.
	Close() error
}

// An MR is a registered memory region.
type MR interface {
	// Addr is the region's first address, for SGEs and remote access.
	Addr() uint64
	// Bytes is the registered memory.
	Bytes() []byte
	LKey() LKey
	RKey() RKey
	// Deregister revokes the region's keys. It fails while windows are
	// bound to it.
	Deregister() error
}

// An MW is a memory window.
type MW interface {
	Type() MWType
	// RKey is the window's present key: index and the low 8 bits that the
	// last bind gave it. It changes when a bind executes.
	RKey() RKey
	// Dealloc frees the window, bound or not.
	Dealloc() error
}

// A CQ is a completion queue.
type CQ interface {
	// Num is the queue's number, which WAIT refers to.
	Num() uint32
	// Poll moves up to len(wc) completions into wc, oldest first, and
	// returns how many. It never blocks.
	Poll(wc []WC) int
	// Wait returns when a completion can be polled, or with ctx's error,
	// or with ErrClosed.
	Wait(ctx context.Context) error
	// Close destroys the queue; it fails while QPs use it.
	Close() error
}

// CQInit configures a completion queue.
type CQInit struct {
	// Depth is the most completions it holds. One more is an overrun:
	// every QP that completes into it goes to StateError.
	Depth int
	// IgnoreOverrun lets the oldest completions be overwritten instead:
	// for queues that only WAIT looks at.
	IgnoreOverrun bool
	// Handler, if set, is called by the driver after completions were
	// added, from a goroutine of the driver's (or of whoever posted) with
	// no lock held. It must not block. Calls may be coalesced, and may
	// overlap: a Handler must do its own locking.
	Handler func(CQ)
}

// A QP is a reliable-connected queue pair.
type QP interface {
	// Num is the queue pair's number, 24 bits.
	Num() uint32
	State() State
	// PostSend appends work requests to the send queue, rings the doorbell
	// once, and flushes what they put on the wire. It fails with
	// ErrQueueFull, and posts none, if they do not all fit.
	PostSend(wrs ...SendWR) error
	// PostRecv appends buffers to the receive queue, or none of them. In
	// StateReset it takes the queue pair to StateInit.
	PostRecv(wrs ...RecvWR) error
	// EnableSend lets a managed send queue run up to index (exclusive,
	// counted from the queue's creation), as OpEnable does.
	EnableSend(index uint64) error
	// EnableRecv does what OpEnableRecv does.
	EnableRecv(index uint64) error
	// Fail takes the QP to StateError, as an error of its own would: nothing more
	// arrives, what has not been finished is flushed, and the peer is told. Windows
	// that are bound to the QP stay so.
	Fail() error
	// Close destroys the QP. Its unfinished requests give no completion.
	Close() error
}

// QPInit configures a queue pair.
type QPInit struct {
	SendCQ, RecvCQ CQ // both required; may be the same
	SendDepth      int
	RecvDepth      int
	// Managed makes the send queue execute only what an ENABLE (or the
	// driver's enable call) allows, and wrap around when it is told to:
	// such queues carry work-request chains.
	Managed bool
	// SendRing, if set, is where the send queue lies: SendDepth entries of
	// [WQESize] bytes at the start of this MR, so that work requests can
	// rewrite work requests. The device allocates its own otherwise.
	SendRing MR
	// ManagedRecv and RecvRing are the same for the receive queue, which
	// OpEnableRecv opens. A managed receive queue that has been filled
	// once can be enabled again and again without being posted to.
	ManagedRecv bool
	RecvRing    MR
	// LazyAcks tells the device that every message that arrives is answered. So it may acknowledge SENDs together
	// with what is posted next, or else once eight packets are unacknowledged, which saves a packet in either
	// direction. The peer must then not wait for its completions before it posts what makes this end post. A device
	// that acknowledges as it sees fit ignores LazyAcks.
	LazyAcks bool
	// OnEvent, if set, receives the QP's asynchronous events, on the same
	// terms as CQInit.Handler.
	OnEvent func(AsyncEvent)
}

// A Listener accepts connections at an address of a driver's.
type Listener interface {
	// Accept returns the next connection request.
	Accept(ctx context.Context) (ConnRequest, error)
	// Addr is the address that peers dial.
	Addr() string
	Close() error
}

// A Conn joins this device to a peer's and carries any number of queue
// pairs. When it is lost, they all go to StateError.
type Conn interface {
	// Connect joins qp to a QP that the peer's listener provides, and
	// takes it to StateRTS. private, at most [MaxPrivateData] bytes,
	// travels with the request; the reply's private data is returned.
	// A rejection is a *RejectError.
	Connect(ctx context.Context, qp QP, private []byte) ([]byte, error)
	// Done is closed when the connection is lost or closed; Err then says
	// why, and is ErrClosed after Close.
	Done() <-chan struct{}
	Err() error
	// LocalAddr and RemoteAddr name the ends, for logs.
	LocalAddr() string
	RemoteAddr() string
	Close() error
}

// A ConnRequest is a peer's wish to connect a queue pair, to be answered once.
type ConnRequest interface {
	// Conn is the connection that it came over: equal for every request of
	// one peer connection.
	Conn() Conn
	Private() []byte
	// Accept joins qp to the requester's and takes it to StateRTS.
	Accept(qp QP, private []byte) error
	// Reject refuses with a reason that the requester's error shows.
	Reject(reason string) error
}

// MaxPrivateData is the most private data of a connection request or reply.
const MaxPrivateData = 256
