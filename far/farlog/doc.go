// Package farlog is a heap's segments in far memory: it borrows them from a store, finds them by far
// addresses, keeps them while somebody reads them, knows how much lives in them, and gives them back.
//
// Programs use package far; the rest of a heap is package heap, which decides what is written, and writes it. To this
// package a segment is no more than a header and an account of what lives in it: it does not know what the records
// behind the header mean.
//
// # The life of a segment
//
// A segment is borrowed ([Log.Borrow], [Log.BorrowForPages]), gets a number ([Log.Add]), and is filled from the front
// to the back by one writer, which accounts for each record with [Segment.Append]. When the writer is done, it seals
// the segment ([Segment.Seal]). From then on records in it only die. When none lives and nobody has the segment
// pinned, it is dead: the log calls the function that was given to [Log.Init], and [Log.Drop] gives the segment back.
// Then its number is used again. So a reader has to pin the segment, and to check after that whether the record is
// still referred to.
//
// Some dead segments are worth keeping: a few spare ones, so that a full store can be cleaned; idle ones, for what is
// written next; and, in a log that outlives its process, those that the last checkpoint may refer to. A segment that
// the store does not take back is offered to it again ([Log.PayBack]).
//
// # A log that outlives its process
//
// If the store is a [store.Keeper], [Log.OpenKeeper] finds the last checkpoint through the root, whose format is in
// package record, and [Log.LoadSegments] restores the segments as they were at that checkpoint. [Log.Hold] begins the
// next checkpoint and [Log.Commit] completes it; nothing is given back between the two. [Log.Pin] keeps what a
// checkpoint refers to beyond the next one, so that it can be copied, as long as the store has more to lend;
// [Restore] makes a log of such a copy.
//
// # Concurrency
//
// All methods may be called by any number of goroutines, except those whose comment says that they are the writer's:
// only the writer, one goroutine, may call those. A log has one lock, mu. It may be taken while locks of the heap are
// held, never the other way round, and no operation on the store is made under it.
//
// # Files
//
// log (the table of segments, and borrowing), segment, giveback (dropping, spare and idle segments), clean (which
// segment is to be cleaned), keep (checkpoints), room (for those who wait for the room that checkpoints make), pin
// (of a checkpoint that is copied), mend (finding out which copies of a segment are damaged), restore (from a copy),
// pins (of many segments, for one call).
package farlog
