// Package copies keeps what a heap evacuates at several places, so that nothing is lost with one of them: it is a
// store.Store made of others, each at a place of its own, such as a memory node.
//
// # Copies
//
// Every segment has Config.Copies copies, at places of different zones as long as there are so many. A write counts
// when all copies have it. A copy that is late closes the segment: the write fails with store.ErrSealed, and the heap
// goes on in another segment at once, at places that answer. All copies of a closed segment have what was
// acknowledged in it, the late one included, so a place that has been stopped and goes on has lost nothing.
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
// others use it. A segment is lost when all its copies are.
//
// A heap without a name is owned by one process, so where copies lie is known by that process alone, and is gone
// with it.
//
// # Files
//
//	copies.go   Config, Store: borrowing segments
//	place.go    what is known of a place: whether it answers, and how fast
//	segment.go  a segment's copies: writing them, freeing them
//	read.go     reading, from another copy when one is late
//	repair.go   finding what has too few copies, and copying it
//	compute.go  looking through objects where they lie
//	stats.go    statistics
package copies
