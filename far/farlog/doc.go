// Package farlog is a heap's segments in far memory: it borrows them from a store, finds them by far
// addresses, keeps them while somebody reads them, knows how much lives in them, and gives them back.
//
// Programs use package far, and the rest of what a heap is package heap has: it decides what is
// written, and writes it. In this package a segment is no more than a header and an
// account; what the records behind the header mean it does not know.
//
// # The life of a segment
//
// A segment is borrowed ([Log.Borrow], [Log.BorrowForPages]), gets a number ([Log.Add]), and is filled from the
// front to the back by one writer. [Segment.Append] accounts for each record. When the writer is done with
// it, it is sealed. From then on records in it only die, and when none lives and nobody
// has it pinned it is dead: the log says so to who was named in [Log.Init], and [Log.Drop] gives it
// back. A number is used again then, which is why a reader has to hold a pin, and to
// look again, after it has pinned, whether the record is still referred to.
//
// Some segments are not given back at once, since something is to be gained by keeping
// them: a few spare ones, so that a full store can be cleaned; idle ones, for what is
// written next; and, in a log that outlives its process, those to which the last checkpoint may
// refer. What a store does not take back is offered to it again ([Log.PayBack]).
//
// # A log that outlives its process
//
// If the store is a [store.Keeper], [Log.OpenKeeper] finds the last checkpoint by the root, whose
// format package record has, and [Log.LoadSegments] the segments as they were then.
// [Log.Hold] and [Log.Commit] make the next checkpoint, between which nothing is given back. [Log.Pin] keeps what a checkpoint refers
// to beyond the next one, so that it can be copied, as long as the store has more to lend; [Restore] makes a log of such a copy.
//
// # Concurrency
//
// All methods may be called by any number of goroutines, but for those that say that they are
// the writer's, which is one goroutine. A log has one lock, mu, below all of the heap's; no
// operation on the store is made under it.
//
// # Files
//
// log (the table of segments, and borrowing), segment, giveback (dropping, spare and idle ones), clean (which
// segment is to be cleaned), keep (checkpoints), room (who waits for what they give back), pin (of a checkpoint that is copied), mend (what of a damaged copy is right), restore (from a copy), pins (of many segments, for one call).
package farlog
