// Package shm is the verbs driver for two processes on one machine: software
// RNICs joined by rings in shared memory.
//
// [NewDevice] opens a device; [Listen] and [Dial] make connections over a Unix
// socket. The socket says who the peer is, carries descriptors, and tells of
// the peer's death; everything else goes through the rings.
//
// # Memory that is passed
//
// Beside its rings a connection can carry two memfds from the listening end to
// the other, one after the other: its verbs.Conn has the methods
//
//	PassMemory(*arena.Memfd) error                            // at the listening end
//	ReceiveMemory(context.Context) (*arena.Memfd, error)      // at the other
//
// Who has received it maps it,
// registers it with its own device, and reaches it by work requests on a queue
// pair in loopback (verbs.Device.ConnectLoopback): READ and WRITE are then
// memory copies, and CMP_SWAP and FETCH_ADD atomic instructions, in its own
// address space. The peer has no part in them.
//
// # Wire
//
// Over the socket, which keeps message boundaries, the ends exchange a hello
// (hello.go); the listener's brings the rings' memfd. After that only the
// listening end may send: a message with each memory that it passes.
//
// The rings' memfd has a page of words and then two rings, one for each
// direction (layout in region.go). A ring holds whole records of a type, a
// length and a body, padded to 8 bytes (record.go): packets of package softnic,
// and connection management (cm.go). A producer fills records in and then
// publishes its tail; a consumer takes note of the tail, copies what lies
// before it into memory of its own, and publishes its head. Each end has a bell
// to sleep by: a futex, which a peer that has news rings with a system call
// only if it finds the end asleep.
//
// # Trust
//
// Neither end trusts the other. Of what is shared each word is read once per
// decision and checked before it is used, and records are interpreted only
// after they were copied. What does not make sense ends the connection. The
// size of the memfd is sealed, which the client verifies before it maps it, so
// that truncation cannot make an access fault. A futex is waited for with a
// timeout, so that no word that a peer writes keeps a goroutine for good.
// A peer must run under the same user id, or as root, unless Config.AnyUser is
// set; the kernel says who it is (SO_PEERCRED).
//
// # Goroutines
//
// A connection has a goroutine that reads, and sleeps in the kernel on a thread
// of its own, and one that watches the socket. Requests have none. Packets are
// put into the ring by the goroutine that rang the doorbell or received the
// request; when the ring is full the engine stops emitting, and goes on when
// the peer has made room. A connection uses 512 KiB of shared memory and
// 256 KiB of its own at each end, as far as they have been touched.
//
// # Lock order
//
// The device's lock (package softdev), then a connection's outbox lock. Every
// other lock is held by itself.
package shm
