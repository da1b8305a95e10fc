// Package copies keeps what a heap evacuates at several places, so that nothing is lost with one of them: it is a
// store.Store made of others, each at a place of its own, such as a memory node.
//
// # Copies
//
// Every segment has Config.Copies copies, at places of different zones as long as there are so many. A write counts
// when all copies have it. A copy that is late closes the segment: the write fails with store.ErrSealed, and the heap
// goes on in another segment at once, at places that answer; where those have hardly room for one, a late copy is
// waited for a little longer. All copies of a closed segment have what was acknowledged in it, the late one included,
// so a place that has been stopped and goes on has lost nothing.
//
// Reads go to the copy that has answered fastest, and to another one as well when the first is late. Those
// second reads are bounded by a budget, unless a place does not answer at all.
//
// A place may have one more copy of every segment (Place.Every): a disk, which survives a loss of power. While it cannot be written the heap goes on
// without, and what it lacks is copied to it later.
//
// # Repair
//
// A copy is lost when its place says so (store.Segment.Lost), or has not been of use for Config.RepairAfter. What has
// too few copies is copied to other places, what has the fewest first, at a part of the bandwidth while
// others use it. A segment is lost when all its copies are, and counts as lost if a write to it had succeeded, or may have for a process that
// had the store before: with an empty one nothing is lost.
//
// A heap without a name is owned by one process, so where copies lie is known by that process alone, and is gone
// with it.
//
// Segments are kept in copies only. Erasure coding would come in here: repair would make fragments of a closed segment, each at a place of its own, in
// the place of its copies, and read would put the segment together from as many as it takes. Writing, closing and freeing would stay as they are, since a
// segment is closed and freed as a whole.
//
// # Scrubbing
//
// A damaged copy does no harm as long as there is a good one: who reads it sees that, reads another, and has the damaged one replaced (Reread). So
// that one that nobody reads is not found too late, the copies of one segment after the other are compared in the background, of one a second at most, when nothing has to be
// repaired. Where they differ whoever wrote the bytes is asked which are right (Judge).
//
// # Balance
//
// New copies are made where there is most room. If one place has much more room than others, such as one that was added, copies of segments that
// are written to no more move there, too, once it gets as many new ones as others, when nothing has to be repaired, and at the same part of the bandwidth.
//
// # Spare copies
//
// A place that lends what its host does not need (State.Idle) gets one more copy of each segment, a spare one, as soon as
// nothing is written to the segment for a while, it has all others, and they have the same bytes; but for what was not acknowledged, which copies
// of a closed segment need not share, and of which the spare one has zeros. If they differ elsewhere one of them is damaged, and there
// is no spare copy till it is known which; nor of a segment that an earlier process was writing to when it ended. The place is told that it may drop the copy whenever its host
// needs the memory, so it is not one of those that count: it is in no manifest, and no repair copies from it. A spare copy is
// read where its place answers fastest, or the first is late, by those who check what they have read; if it has been dropped they read
// zeros, until the place has said so, and then another copy. When a copy that counts is lost or has to move, the permission is
// taken back; if the place answers that the spare copy is still there it counts from then on, and nothing has to be copied.
// Spare copies make way when a place has no room for one that counts.
//
// What such a place has beside them it cannot drop, whether or not the segment has a spare copy elsewhere: when it says that it is leaving, since its host needs more, that is moved elsewhere,
// and not at leisure, until it stays again.
//
// # Files
//
//	copies.go   Config, Store: borrowing segments
//	place.go    what is known of a place: whether it answers, and how fast
//	segment.go  a segment's copies: writing them, freeing them
//	read.go     reading, from another copy when one is late
//	repair.go   finding what has too few copies, and copying it
//	scrub.go    comparing copies
//	balance.go  moving copies to where there is more room
//	spare.go    copies that may vanish
//	compute.go  looking through objects where they lie
//	stats.go    statistics
package copies
