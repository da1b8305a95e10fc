// Package copies keeps what a heap evacuates at several places, so that the loss of one place loses nothing. It is a
// store.Store made of other stores, each at a place of its own, such as a memory node.
//
// # Copies
//
// Every segment has Config.Copies copies, at places of different zones as far as there are enough zones. A write
// counts when all copies have it. A late copy closes the segment: the write fails with store.ErrSealed, and the heap
// goes on at once in another segment, at places that answer. If the places have little room left, a late copy is
// waited for a little longer. All copies of a closed segment, the late one included, have everything that was
// acknowledged in it, so a place that was stopped and goes on has lost nothing.
//
// A read goes to the copy at the place that has answered fastest, and to another copy as well when the first is late.
// A budget bounds these second reads, unless a place does not answer at all.
//
// A place may have one more copy of every segment (Place.Every): a disk, which survives a loss of power. While the
// disk cannot be written, the heap goes on without it; the copies that it lacks are made later.
//
// # Repair
//
// A copy is lost when its place says so (store.Segment.Lost), or when its place has not been usable for
// Config.RepairAfter. Segments with too few copies are copied to other places, those with the fewest copies first.
// While others use the places, this takes only a part of the bandwidth. A segment is lost when all its copies are
// lost. Stats.Lost counts it only if a write to it had succeeded, or may have succeeded for an earlier process that
// had the store: losing an empty segment loses nothing.
//
// A heap without a name is owned by one process. Only that process knows where the copies lie, and when it ends,
// nobody does.
//
// Segments are kept as whole copies only. Erasure coding would come in here: instead of copies, repair would make
// fragments of a closed segment, each at a place of its own, and read would put the segment together from as many
// fragments as it takes. Writing, closing and freeing would stay as they are, since a segment is closed and freed as
// a whole.
//
// # Scrubbing
//
// A damaged copy does no harm as long as there is a good one: whoever reads the damaged copy notices, and reads
// another (Reread). A damaged copy that nobody reads might be found too late. So when nothing has to be repaired, the
// store compares the copies of one segment after the other in the background, at most one segment a second.
//
// Where a copy was found to be damaged, or copies differ, the store asks whoever wrote the bytes which copies are
// right (Judge). Copies may be damaged in different places, so that none is right everywhere. So each damaged copy is
// moved to other memory at its place, and what is wrong in it is taken from a copy that has it right. If there is no
// room for that, and some other copy is right everywhere, the damaged copy is dropped, and repair makes another in its
// memory. If no copy is right everywhere, all of them stay as they are, and the store tries again every second. In no
// case are bytes given up that only one copy has right.
//
// # Balance
//
// New copies are made where there is most room. A place may have much more room than others, for example because it
// was added. Then copies of segments that are no longer written to also move there, once the place gets as many new
// copies as others. They move only when nothing has to be repaired, and use the same part of the bandwidth as repair.
//
// # Spare copies
//
// A place may lend memory that its host does not need (State.Idle). It gets one more copy of a segment, a spare copy,
// as soon as nothing has been written to the segment for a while, the segment has all its other copies, and these
// have the same bytes. Bytes that were not acknowledged may differ, even in a closed segment; the spare copy has
// zeros there. If the copies differ elsewhere, one of them is damaged, and there is no spare copy until it is known
// which. Nor is there a spare copy if the copies differ because an earlier process was writing to the segment when it
// ended.
//
// The place is told that it may drop a spare copy whenever its host needs the memory. So a spare copy does not count:
// it is in no manifest, and no repair copies from it. It is read where its place answers fastest, or when the first
// read is late, but only by readers who check what they have read. After the place has dropped it they read zeros
// until the place says so, and then another copy. When a copy that counts is lost or has to move, the store takes the
// permission back; if the place answers that the spare copy is still there, it counts from then on, and nothing has
// to be copied. Spare copies make way when their place has no room for a copy that counts.
//
// Such a place cannot drop the copies that count, whether or not their segments have spare copies elsewhere. When it
// says that it is leaving, since its host needs more memory, these copies are moved elsewhere, and at full speed,
// until it stays again.
//
// # Files
//
//	copies.go   Config, Store: borrowing segments
//	place.go    what is known of a place: whether it answers, and how fast
//	segment.go  a segment's copies: writing them, freeing them
//	read.go     reading, from another copy when one is late
//	repair.go   finding segments that have too few copies, and copying them
//	scrub.go    comparing copies
//	judge.go    replacing damaged copies
//	balance.go  moving copies to where there is more room
//	spare.go    spare copies, which may vanish
//	compute.go  scanning objects and finding entries where they lie
//	keep.go     Keep: a store that outlives its process
//	stats.go    statistics
package copies
