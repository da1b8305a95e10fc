// Package share is memory that processes of one host hold in common and that
// outlives them: large blobs, named by what they contain, that one process
// writes once and all others read in place.
//
// It is the library of the daemon "polder share", after Maru's memory model.
// The daemon owns pools of memory; a [Client] is handed regions of them and
// cuts them into pages:
//
//	c, err := share.Open(ctx, share.Config{Socket: "/run/polder/share.sock"})
//	p, err := c.Alloc(ctx)                  // a page of memory to fill
//	n := copy(p.Bytes(), blob)
//	stored, err := c.Put(ctx, key, p, n)    // visible from now on, to everybody
//	v, err := c.Get(ctx, key)               // the bytes where they are, read-only
//	defer v.Close()
//
// # What holds
//
// A key is visible when its bytes are complete, and never changes: the first
// writer of a key wins, and a later Put of it is a no-op, because keys name
// content. A Put that has returned survives the death of the writer and of the
// daemon, and, in pools that do, the loss of power.
//
// The bytes of a [View] are right until it is closed, whatever becomes of the
// key, of the process that wrote it, and of the daemon. A view is read-only:
// a reader that writes through it faults, and damages nobody.
//
// Clients of Maru's protocol (package maru) can write to their regions at any time. So a view of a key that such a
// client has put shows a copy: the bytes that were registered, unless one of these clients has broken Maru's own rule
// and written to them since.
//
// A client's regions are its own until it closes or dies. Keys in them stay,
// and the memory with them until the last key is deleted.
//
// # How it is fast
//
// Alloc takes a page of the active region, or of another one that has a free
// page, and asks the daemon for a region only when all are full. A Put is one
// message. The first Get of a key is one message, and the library remembers
// where the key lies; later ones are a few atomic operations in memory shared
// with the daemon, which also tell whether the place is still the key's: what
// is remembered is never used once it has been freed. Closing a view is one
// store.
//
// A message to a process that sleeps takes tens of microseconds, most of which
// go into waking it. So the daemon looks for the requests of a client that is
// busy in memory that the two share, and the client for the answers: then a
// request, its commit included, takes a few microseconds.
//
// # Concurrency
//
// A Client, its pages and its views may be used by any number of goroutines;
// one page is for one goroutine at a time until it is put. Lock order inside:
// Client.expanding, Client.mu; a lock is never held across a message, but for
// expanding. A Client has one goroutine of its own, until Close.
package share
