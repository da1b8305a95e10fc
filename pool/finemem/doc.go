// Package finemem manages remote memory by one-sided compare-and-swap (FineMem): a client allocates and frees by
// changing the words of a bitmap of two layers in the memory node's memory. It needs neither the node's CPU nor a
// programmable NIC. Package memnode/twolayer defines the words and what may be decided from them; this package moves
// them.
//
// An [Allocator] allocates memory of any class and returns its address and keys. A pool uses an allocator through
// [Manager], for chunks of the node's chunk size. A service that allocates for the applications of a compute node
// uses an allocator itself, over the connection of a [Session].
//
// # Protocol
//
// Headers are cached, and taken to be current until a CAS of one fails. So an allocation from a span that nobody else
// has touched takes one round trip: a READ of the log entry, a CAS of the header, which is the commit point, and a
// READ of the keys, with one doorbell. A CAS of the log entry follows, and nobody waits for it. If the log in the
// header is another client's, it is flushed first, which takes one more round trip. A free is a CAS of the
// capabilities, which replaces the keys by their backups, and then a CAS of the header.
//
// # What orders operations
//
// A reliably connected queue pair begins operations in order, and carries out each atomic once, in order. A READ may
// be carried out late, or again if its answer was lost, after operations that follow it. So:
//
//   - A flush reads the entry, and then the header with a fence. Without the fence, the entry could be younger than
//     the header that it is compared with, and would be replaced by an older one.
//   - An allocation reads the entry without a fence before the CAS that commits it, and may thus see the entry as it
//     is after the CAS. That can only be what the allocation's own log says, flushed by somebody who needed the
//     header; to flush it once more changes nothing. The CAS of the entry returns what is there, and the allocator
//     stops if that is neither.
//   - Keys are read after the commit, and may be younger.
//
// # What a free guarantees
//
// The swap makes the old key invalid for everybody who looks at the table. The old owner, who may be malicious, still
// has the key, and the window behind the key stays bound until the node's background worker has seen the swap. A
// doorbell wakes the worker if it sleeps; otherwise it looks every 50 µs or sooner. If the doorbell is lost together
// with the client that should have sent it, the worker looks within a second (package memnode/rebind). Metrics show
// all this. The guarantee is that nobody is handed memory that an old key still opens: an allocation looks at all
// capabilities that overlap its block, and goes elsewhere if one of them is swapped. When no other memory is left, it
// asks the node, which then deals with everything that was freed at once.
//
// # Failures
//
// A client may stop between any two operations, for good or for a while. If it stops for good, the node closes its
// queue pair, which fences it, flushes its logs, and frees what the full log says the client owns, while other
// clients go on. Other clients repair what it left half done between the two layers when they need the memory. Steps
// names every such moment.
//
// # Concurrency
//
// An Allocator is for one goroutine at a time; a Session hands it from call to call. There are no goroutines, and no
// lock is held while an operation is under way. An allocator works in a process of verbs/sim, too.
package finemem
