// Package finemem manages remote memory by one-sided compare-and-swap (FineMem): a
// client allocates and frees by changing the words of a bitmap of two layers in the
// memory node's memory, and needs neither the node's CPU nor a NIC that can be
// programmed. The words, and what may be decided from them, are package
// memnode/twolayer's; this package moves them.
//
// An [Allocator] allocates memory of any class and gives address and keys. A pool
// uses one through [Manager], for chunks of the node's chunk size; a service that
// allocates for the applications of a compute node uses one itself, over the
// connection of a [Session].
//
// # Protocol
//
// Headers are cached and taken for true until a CAS of one fails. So an allocation
// from a span that nobody else has touched takes one round trip: READ of the log
// entry, CAS of the header, which is the commit point, and READ of the keys, with one
// doorbell; the CAS of the log entry follows, and nobody waits for it. If the
// header's log is another client's, it is flushed first, which takes one more. To
// free is CAS of the capabilities, which replaces the keys by their backups, and then
// CAS of the header.
//
// # What orders operations
//
// A queue pair that is reliably connected begins operations in order and carries
// atomics out in order, once each. A READ may be carried out late, or again if its
// answer was lost, after operations that follow it. So:
//
//   - A flush reads the entry, then the header with a fence: an entry that is younger
//     than the header which it is compared with would be replaced by an older one.
//   - An allocation reads the entry without a fence before the CAS that commits it,
//     and may thus see what the entry is after it. That can only be what its own log
//     says, flushed by somebody who needed the header; to flush it once more changes
//     nothing. The CAS of the entry brings what is there, and the allocator stops
//     if that is neither.
//   - Keys are read after the commit, and may be younger.
//
// # What a free guarantees
//
// The swap makes the old key invalid for everybody who looks at the table. The old
// owner, who may be malicious, keeps the key, and the window behind it stays bound
// until the node's background worker has seen the swap. The worker is woken by a
// doorbell if it sleeps, and otherwise looks every 50 µs or sooner; if the doorbell is
// lost, with the client that should have sent it, it looks within a second (package
// memnode/rebind). Metrics tell. What is guaranteed is that nobody is handed memory
// that an old key still opens: an allocation looks at all capabilities that overlap
// it, and goes elsewhere if one of them is swapped. When nothing else is left it asks
// the node, which then deals with all that was freed at once.
//
// # Failures
//
// A client may stop between any two operations, for good or for a while. If it is
// for good the node closes its queue pair, which fences it, flushes its logs, and
// frees what the full log says is its own, beside other clients. What it left
// between the two layers, others repair when they need the memory. Steps names every
// such moment.
//
// # Concurrency
//
// An Allocator is for one goroutine at a time; a Session hands it from call to call.
// There are no goroutines, and no lock is held while an operation is under way. An
// allocator works in a process of verbs/sim, too.
package finemem
