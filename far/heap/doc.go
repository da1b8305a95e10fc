// Package heap is the memory under package far. It keeps records in local logs and in far ones, under one local
// budget; an evacuator moves records between the two. It knows no data structures: what a record means, and where it
// is referred to from, only its [Owner] knows.
//
// Programs use package far. This package is for those who write a data structure
// for it, and its exported fields are theirs to use as the comments say.
//
// # Records and owners
//
// A record is a header and bytes. In local memory it is an [object.Object] in a segment of a log. Mutators fill
// segments from the front, and the evacuator empties a segment as a whole. There are three kinds of segments. A
// [Locked] segment holds records that a lock of their owner keeps in place: whoever looks at such a record holds the
// lock. A [Scoped] segment holds records that a [Scope] keeps in place. A [Streamed] segment is like a Scoped one,
// but for records without temporal locality. In far memory all records have the layout of package record, and lie in
// far segments that begin with that package's header.
//
// A [Policy] decides which segment is emptied next, and whether a record that was used lately stays local; the policy
// is CLOCK unless told otherwise. For each record in a segment that it empties, the evacuator calls [Owner].Evacuate.
// The owner finds out whether it still refers to the record and what is known of the record's use, and asks
// [Evacuation.Place], which decides. A hot record is kept: it moves to the end of the logs and becomes a little cooler.
// A cold record that has an equal far copy is dropped. A cold record without an equal far copy is staged: it is written
// to far memory together with others. The owner copies a kept or staged record to the place that Place returns, while
// nothing can change the record. From then on it refers to the new place of a kept record, or to the far copy of a
// dropped one; to the far copy of a staged record it refers once [Owner].Settled says that the copy was written. If the
// owner has changed a staged record meanwhile, the far copy is dead. The evacuator does not wait for writes: while some
// segments are being written it empties others, as many as the window holds, and the window grows while writes are
// slow. In the same way the cleaner asks owners which far records live, and tells them where it has moved those.
//
// # A pass
//
// A record that scopes keep in place may be in use while its segment is being emptied. A pass therefore marks the
// records first ([Marker]), and waits until the scopes that were open then have been left. A mutator that meets a
// mark meanwhile uses the record where it is and pins it; a record that is still pinned when the wait ends stays
// where it is. From then on nobody holds the address of a marked record, and the evacuator and any mutator that meets
// the mark race to move the record, by a CAS of the owner's word. Mutators need no fences to order all this: the
// evacuator's membarrier(2) takes their place.
//
// # Fetching
//
// Whoever needs a far record asks for it with a [Want]: where the record lies, according to the owner's word, and how
// much of it is wanted. All who want a record while it is being read share one [Flight], which they find by the
// record's address, and a [Batch] makes many flights with one read of the store. The bytes that have come are checked,
// and the owner checks that the record is its own ([Owner].Check). Then the owner refers to the local copy, unless its
// word has changed meanwhile ([Owner].Landed). A flight reads into a buffer, from which the record is copied; but a
// scoped record that is large, or lies beside others that are wanted, is read directly to where it stays.
//
// # Room
//
// Whoever needs local memory takes it from the end of a log, on somebody's behalf: a [Claim]. Some empty segments are
// set aside for those who cannot wait: for the evacuator, which needs room to make room; for scopes, for which the
// evacuator may be waiting; and for a record that replaces one as large, in case there is no other room. All others
// wait, in rounds. The evacuator ends a round when it has made room, or when there is none to be made. Indexes take
// their memory from the same budget ([Logs.GrowIndex]).
//
// Making room waits for the store and for scopes, but never for room. A record that goes is put into a staging
// buffer, which becomes free when a write ends and depends on nothing else. A record that is kept moves to a segment
// that is set aside for that. Without such a segment, it waits for the writes that are under way. If there are none,
// it goes although it is hot; or it stays where it is, if its segment is only compacted or the store takes nothing.
// Memory for a wider window is counted first, and used only when the logs have given it back.
//
// # Concurrency
//
// One goroutine, the evacuator, evacuates and cleans; others that it starts make one write each. Another one, the
// janitor, gives dead far segments back, notices lost ones, and lets the [Host] do its chores. A field that a comment
// says is the evacuator's or the janitor's is used by that goroutine only. All methods may be called by any number of
// goroutines; a Scope has one holder at a time. Far bytes are read outside of all locks, with their far segment
// pinned; they may be anything, and are checked.
//
// Lock order, below all locks of owners:
//
//	(a bucket of flights)
//	OpenLog.Mu
//	  (an owner's table of words)
//	    Logs.Mu
//	(buffers)
//	scopes.Mu
//	  Logs.Mu
//	farlog.Log
//
// # Files
//
// heap (the heap, and how its budget is divided), owner (the interfaces), budget (its lines, and SetLocal), errors,
// stats (and the audit).
//
// Local memory: logs, slot (memory for an object); package object says what the bytes of a record are there. Far
// memory: far (the far log, and short names for what package store declares), cleaner, janitor, writeback, room (for
// checkpoints in a full store). Fetching: flight, batch.
//
// Evacuation: evacuator (the loop, and the emptying of a segment), policy (what goes first, and what stays), pass,
// window (what is being written). Scopes: scope, scope_plain and scope_atomic (entering and leaving), scope_admit
// (who is let in while memory is short), held (for too long), wait (for room).
package heap
