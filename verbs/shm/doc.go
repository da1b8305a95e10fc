// Package shm is the verbs driver for two processes on one machine: software RNICs
// joined by a Unix socket, and memory that both map.
//
// [NewDevice] opens a device; [Listen] and [Dial] make connections. What is on the
// wire, which goroutines there are, and when a connection is cut, package stream
// says. The socket is the right carrier for what little goes over it: requests to
// a node's control goroutine, and what tells of the peer's death. Data does not.
//
// # Memory that is passed
//
// A connection can carry two memfds from the listening end to
// the other, one after the other: its verbs.Conn has the methods
//
//	PassMemory(*arena.Memfd) error                            // at the listening end
//	ReceiveMemory(context.Context) (*arena.Memfd, error)      // at the other
//
// Who has received it maps it,
// registers it with its own device, and reaches it by work requests on a queue
// pair in loopback (verbs.Device.ConnectLoopback): READ and WRITE are then
// memory copies, and CMP_SWAP and FETCH_ADD atomic instructions, in its own
// address space. The peer has no part in them. Such an operation takes some 100 ns,
// and one that goes through the socket tens of microseconds (polder bench verbs).
//
// # Trust
//
// Neither end trusts the other. The size of memory that is passed is sealed, which
// its receiver verifies before it may be mapped, so that truncation cannot make an
// access fault. Files that come to the listening end are closed by the kernel.
// A peer must run under the same user id, or as root, unless Config.AnyUser is
// set; the kernel says who it is (SO_PEERCRED).
package shm
