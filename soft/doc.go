// Package soft keeps what can be rebuilt in memory that nobody needs at the
// moment, and survives that memory being taken away at any instruction. It is
// Midas (Qiao et al., NSDI '24) for Go, without its kernel module.
//
// A [Heap] is the soft memory of a process. It serves containers: [Map] and
// [Pool] (a map with a reconstructor), [Pointers], [Array] and [Queue]; package
// soft/blocks caches files in it. Alone, a heap has a fixed budget; with a
// coordinator (the package soft/coordinator, the command polder coordinator)
// it fills whatever memory is idle on the host and gives it back at once.
//
// # How it is laid out
//
// Soft memory is an array of 2 MiB segments. Each segment has a generation
// word, in a table that a coordinator shares: even while the segment may be
// used, odd while it may not. A segment is filled from front to back by one
// appender, then sealed, then emptied by the evacuator (what is hot is copied
// into another log, the rest is dropped) and given a new life by raising its
// generation by two. A coordinator that needs memory raises the generation by
// one and then punches the pages away; it asks nobody.
//
// An object is named by exactly one slot, in ordinary memory that cannot
// vanish: a map's bucket, an array's cell, a pointer's cell. The slot holds a
// word: segment, generation, offset. Every object's header names its owner and
// the reference of its slot within the owner (figure 5's reverse pointer).
//
// # Why no reader can return bytes of a revoked or recycled segment
//
// A read loads a word out of a slot, loads the segment's generation g1 and gives up unless g1 is even and equals the
// generation in the word; copies the bytes; loads the generation again, g2; and answers only if g1 = g2. Then:
//
//  1. Generations only grow, so from g1 to g2 the generation was g1 throughout.
//     Every revocation raises the generation before it punches, and every
//     recycling raises it before the segment can be opened for writing. So
//     between the two loads the segment was neither punched nor reopened.
//  2. Two kinds of writers write into a segment: the one appender that has it open, which writes each byte once, and
//     goroutines that overwrite an object in place (below). Neither ever writes late, into the segment's next life. A
//     segment is opened again only after its appender has closed it, even if it was revoked meanwhile: segmentList
//     leaves an open segment where it is. And it is opened again only after its generation has been raised and, after
//     that, every lock of its stripes has been seen free (revive).
//  3. A word gets into a slot only after its object has been written, and the slot is an atomic word. So the bytes
//     that are copied between g1 and g2 are the whole object that the word names. If the object can be overwritten in
//     place, that holds only if nobody has done so meanwhile.
//
// # Writing in place
//
// A store through a [Ptr] or into an [Array] overwrites a value of up to 4 KiB where it lies. Larger values, and
// values in a map or a queue, are immutable: a store appends a new object and swings the slot, which then names the
// new object. The state of each KiB of a segment, a stripe, lies beside the segment in memory that cannot vanish: a
// lock, a count of writes, and the dead bits of its objects. A writer takes the lock if the object is not dead,
// checks the generation, copies, and lets the lock go, which counts a write. Then:
//
//  1. A reader loads the state before and after the copy too, and answers only
//     if nobody held the lock and the counts are the same: no write was under
//     way between the two.
//  2. Whoever swings a slot (an evacuator that moves or evicts, a store that appends, a release) first sets the dead
//     bit of the object that the slot named, and for that waits until nobody holds the lock. So an object that is
//     copied elsewhere does not change any more, no write is lost, and a write to an object that is not dead is a
//     write to the object that the slot names.
//  3. Before a segment is opened again, and after its generation has been raised, revive sees each of its locks free.
//     A writer that takes a lock later loads the generation after that, finds that it is not the one in its word, and
//     writes nothing. So no writer of one life of a segment writes into the next.
//
// If the segment is revoked during a write, the bytes go into pages that no reader can prove any more: the value is
// lost, as it would have been a moment later.
//
// The word holds 22 of the generation's bits. For a stale word to pass, the
// segment would have to be recycled 4,194,304 times between the load of the
// word and the load of g1, two instructions apart; the second check compares
// all 64 bits.
//
// Headers and keys are read before they are proved, and until then may say anything. [header.fits] makes sure that no
// address computed from them leaves the segment, and nothing is concluded from them before the proof.
//
// Readers write nothing into soft memory. Hotness counters and states lie
// beside it, so that a reader that is overtaken by a revocation cannot damage
// what comes after. They are hints: a hotness count may be lost, and an object
// that is marked dead by mistake is evicted early.
//
// Besides its slot, a [Ptr] has a hint: the word that says where its value lay. The dead bit proves that a hint is
// current: it is set before the slot names another object, so an object that is not marked dead is the one that the
// slot names. A hint may be so old that the word's 22 bits of generation have come round. So the reverse pointer in
// the object's header must be the pointer's own, too.
//
// # Why there is no fault guard
//
// A page that was punched reads as zeros, which the proof catches; it does not fault. Faults would come only from
// truncation, which a coordinator uses to end a client that refuses to let go. A deferred recover was measured to
// cost 2.8 ns a read (7.4 instead of 4.6 for 32 bytes), and it is no proof: it let 73 torn reads through, where the
// generation let none through in 11.9 million reads. Doing without has one cost: a reader that touches a page after
// it was punched makes it exist again, as zeros. So the coordinator measures how much of each memfd exists, and
// punches again.
//
// # Concurrency
//
// Everything may be used by any number of goroutines unless it says otherwise.
// Locks are taken in this order:
//
//	Queue.mu
//	  appender.mu       one log's
//	    evacuator.mu    while segments are emptied
//	      shard.mu      one shard of a map's index
//	        larges.mu, flight.Group.mu, pointerTable.mu, owners.mu
//	          Heap.mu   the list of segments
//
// Readers take none of them, except for large values (larges.mu, shared). The lock of a stripe is a leaf below all of
// them: its holder takes no other lock and copies at most 4 KiB. A reader takes it only if writers leave it no time
// to copy. Atomic and plain accesses to soft memory race by design; that memory is outside of the Go heap and of what
// the race detector watches.
//
// # Files
//
// The memory: heap, store and memory_unsafe, segments (who has which of them) and rank (which
// go first), client and find (the coordinator's), stats, profile.
//
// What lies in it: header (of an object), append (a log), stripe (writers beside readers; what
// the processor must be told for that is package internal/order), overwrite (in place), evacuate.
//
// How it is found: word, table, tablegrow, tableread and cell; owner (who refers to an
// object), large (values in pieces).
//
// What programs use: map, bytemap, array, queue, pointers, pool (which rebuild once: package
// internal/flight); cost (what values took to make).
package soft
