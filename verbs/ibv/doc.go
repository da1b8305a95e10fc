// Package ibv is the driver of verbs for RDMA devices: it hands work to a NIC
// through libibverbs. It is built with the tag ibverbs, and is the only package
// that uses cgo; without the tag, Open says so.
//
// A device does what it can do and no more: [verbs.DeviceAttr] is what the device says. No device runs work-request
// chains through libibverbs alone, or has the allocation verb, so a node offers what works by messages. The driver
// makes up for what package verbs asks for and the standard does not give: NOP, and binding and invalidating a window
// on another queue pair than its own (see bind.go). [Quirks] are the departures of particular devices.
//
// # Connections
//
// Queue pairs are joined over a TCP or TLS connection, under the same rules as
// verbs/tcp has. No data travels on it, but it says which end has gone: when it
// is lost, or silent for too long, its queue pairs go to the error state; when
// one end closes a queue pair or a request of its fails, the other end is told,
// and need not wait for a timeout of the device. The wire is little-endian: a
// hello (hello.go) with the port's address, then frames (frame.go) of
//
//	CONNECT  u32 request, u32 queue pair, u32 first PSN     private data
//	ACCEPT   u32 request, u32 queue pair, u32 first PSN     private data
//	REJECT   u32 request                                    reason, UTF-8
//	READY    u32 queue pair of the receiver of the frame
//	DOWN     u32 queue pair of the receiver of the frame, u32 status
//	PING, PONG, BYE
//
// An acceptor's requests wait for READY: before it, its peer's device would drop
// them, and they would be sent again only after a timeout.
//
// # Completions
//
// A completion queue has a completion channel, which waits in Go's poller: at rest nothing runs. Under load, when the
// next completion is nearer than a sleep takes, the queue is polled for a moment before the device is asked for an
// event. Requests of a batch are posted with one doorbell, by one call of C. The device is asked for the completions
// of requests that are not signaled only once in every half a queue, and nobody sees that completion. Data of SENDs
// and WRITEs of up to 128 bytes travels in the work request if the device takes it.
//
// # Memory
//
// Registered memory is pinned by the kernel, all of it, and counts against the
// limit on locked memory (ulimit -l). Its pages must not be given back while it
// is registered.
//
// # Concurrency
//
// Everything may be used by any number of goroutines. Locks, from outer to
// inner: a queue pair's post; a completion queue's mu; a window's mu; a queue
// pair's ctl; the device's mu and the other leaves. A handler is called with
// none held.
package ibv
