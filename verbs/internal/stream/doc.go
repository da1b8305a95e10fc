// Package stream joins software RNICs by a stream socket: what the drivers tcp and
// shm share.
//
// A driver makes a [Device], listens and dials, and makes a [Conn] of each socket,
// which its own connection embeds.
//
// # Wire
//
// Each end sends a hello (magic, version, features, limits; see hello.go) and
// then frames (type, length, CRC32C; see frame.go): packets of package
// softnic, connection management (see cm.go), pings and, over Unix sockets,
// files (see files.go). The checksum takes in the frame's place in the stream, so
// that a frame that is damaged, lost, repeated or moved ends the connection.
//
// # Goroutines and buffers
//
// A connection has a goroutine that reads and one that writes; requests have
// none, and allocate nothing in the steady state. The reader reads all that
// has come, hands all whole packets in it to the engine at once, and lets
// what they gave rise to be flushed at once; it never waits for the writer,
// so two ends that flood each other cannot lock up.
//
// What is to be sent is copied out of registered memory into the connection's
// outbox. Over a plain socket it is written, without blocking, by the goroutine
// that rang the doorbell or received the request, once per batch; only files, and
// what the kernel does not take at once, are left to the writer. TLS may block, so
// the writer does all of it. The engine stops emitting while the outbox holds
// more than 256 KiB, and goes on when it is empty.
//
// A connection uses about 300 KiB when idle, and at most about 1 MiB.
//
// # Failure
//
// A connection is cut, and its queue pairs go to the error state, when the
// peer sends anything that is not according to protocol, when it does not take
// 64 KiB of what waits for it within Config.StallTimeout, when it asks for
// more than 1 MiB of answers that the engine does not hold back (pongs,
// rejections) without reading them, and, with Config.KeepAlive, when it has left
// three pings, one every such interval, unanswered.
//
// # Lock order
//
// The device's lock (package softdev), then a connection's outbox lock. Every
// other lock is held by itself. None is held during a system call on a socket.
package stream
