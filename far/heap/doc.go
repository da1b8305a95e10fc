// Package heap is the memory under package far: records in local logs and in far
// ones, under one local budget, with an evacuator that moves them between the two. It
// knows no data structure. What a record means, and where it is referred to from, its
// [Owner] knows.
//
// Programs use package far. This package is for those who write a data structure
// for it, and its exported fields are theirs to use as the comments say.
//
// # Records and owners
//
// A record is a header and bytes. In local memory it is an [object.Object] in a segment of a log,
// which mutators fill from the front and the evacuator empties as a whole. There are
// three kinds of segments. [Locked] ones hold records that a lock of their
// owner keeps in place: whoever looks at one holds the lock. [Scoped] ones hold
// records that a [Scope] keeps in place, and [Streamed] ones the same
// without temporal locality. In far memory all of them are records as package record has them,
// in far segments that begin with that package's header.
//
// Which segment is emptied next, and whether what was used of late stays, a [Policy] decides, which is CLOCK. The
// evacuator asks the owner of each record in a segment to deal with it:
// [Owner].Evacuate. The owner finds out whether it refers to the record, and what is known of its
// use, and asks [Evacuation.Place], which decides: a hot record is kept, at the
// end of the logs and a little cooler; a cold one that has an equal
// far copy is dropped; a cold one without is staged, and written to far memory together with
// others. The owner copies the record to where Place says while nothing can change it, and
// refers to that place from then on, or, if it is staged, from when [Owner].Settled says that it was
// written. If the owner has changed the record meanwhile, what was written is dead. The evacuator
// does not wait for that: it empties other segments while some are being written, as many as the
// window holds, which grows while writes are slow.
// The cleaner asks owners in the same way which far records live, and tells them what it
// has moved.
//
// # A pass
//
// A record that scopes keep in place may be in use while its segment is being emptied. A
// pass therefore marks the records first ([Marker]), and waits until the scopes that were open
// have been left. Whoever meets a mark meanwhile uses the record where it is and pins it; what
// is pinned in the end stays. From then on nobody holds the address of a marked
// record, and the evacuator and whoever meets the mark race to move it by a CAS of the
// owner's word. The evacuator needs no help of the mutators to order that: membarrier(2)
// takes the place of their fences.
//
// # Fetching
//
// Who needs a far record asks for it with a [Want]: where the owner's word says that it lies, and
// how much of it is wanted. All who want a record while it is being read share one [Flight],
// which they find by the record's address, and a [Batch] makes many flights with one read of
// the store. What has come is checked, and so is by the owner that it is its own ([Owner].Check). Then
// the owner refers to the local copy, unless its word has changed meanwhile
// ([Owner].Landed). A flight reads into a buffer, from which the record is copied; or, if
// it is large or lies beside others that are wanted, to where it stays.
//
// # Room
//
// Who needs local memory takes it from the end of a log, for somebody: a [Claim]. Some
// empty segments are set aside for those who cannot wait: the evacuator, which needs
// room to make room; scopes, for which the evacuator may be waiting; and what replaces
// something as large, for which there need not be other room. All others wait, in
// rounds, which the evacuator ends when it has made room or when there is none to be made. Indexes come
// out of the same budget ([Logs.GrowIndex]).
//
// Making room waits for the store and for scopes, and for no room: a record is put into a
// staging buffer, which the end of a write gives back and nothing else, or is kept in a
// segment that is set aside for that; without one, it waits for what is being written, and goes if that is nothing. Where
// a wider window takes memory, that is counted first, and given back by the logs before it is used.
//
// # Concurrency
//
// One goroutine evacuates and cleans, and has others that make one write each; another one is the janitor: it gives dead far segments
// back, notices lost ones, and lets the [Host] do its chores. Both are the heap's, and so
// are fields that a comment says are the evacuator's or the janitor's. All methods may be called by any number of
// goroutines; a Scope has one holder at a time. Far bytes are read outside of all locks, with the
// far segment pinned; they may be anything, and are checked.
//
// Lock order, below all locks of owners:
//
//	(a bucket of flights)
//	OpenLog.Mu
//	  (an owner's table of words)
//	    Logs.Mu
//	(buffers)
//	scopes.mu
//	  Logs.Mu
//	farlog.Log
//
// # Files
//
// heap (the heap, and how it is divided), owner (the interfaces), budget (its lines, and SetLocal),
// errors, stats (and the audit).
//
// Local memory: logs, slot (of an object). What the bytes of a record are there, package object says.
// Far memory: far (the segments, which package farlog has, and the names of what package store has), pages (of
// indexes), cleaner, janitor, writeback.
// Fetching: flight, batch.
//
// Evacuation: evacuator (the loop, and the emptying of a segment), policy (what goes first, and what stays), pass, window
// (what is being written).
// Scopes: scope, scope_plain and scope_atomic (entering and leaving), scope_admit (who is
// let in while memory is short), held (for too long), wait (for room).
package heap
