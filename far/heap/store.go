package heap

import (
	"context"

	"polder/internal/offload"
)

// A Store is memory that somebody else lends, in segments of one size. The
// heap needs no more of it than this; package pool provides one over the
// network, and MemStore is one in this process.
//
// All methods may be called by any number of goroutines.
type Store interface {
	// SegmentSize is the size in bytes of every segment, a power of two.
	SegmentSize() int
	// Alloc borrows a segment. It fails with an error that Is ErrStoreFull
	// when there is none to be had now.
	Alloc(ctx context.Context) (Segment, error)
	// Read fills the buffers of all ops, in as few round trips as it can,
	// and sets each op's Err. It returns when the last one is done; no buffer is
	// written to afterwards, whatever became of its read.
	Read(ctx context.Context, ops []ReadOp)
}

// ReadOp is one read of a batch: len(Buf) bytes at Off of Seg.
type ReadOp struct {
	Seg Segment
	Off int
	Buf []byte
	// Bulk says that nobody waits for just this read: those of the cleaner, and of pages. A store that
	// can lets others overtake it.
	Bulk bool
	Err  error
}

// A Segment is a borrowed piece of a store.
type Segment interface {
	// Write writes p at off and returns when it is done. It is bulk: reads that somebody
	// waits for should not wait for it. One that fails may take
	// effect in part, or later, but not after a later operation on the segment,
	// which may be written from the front again when nothing in it lives.
	Write(ctx context.Context, p []byte, off int) error
	// Free gives the segment back. It is not used afterwards.
	Free(ctx context.Context) error
	// Lost is closed when the segment's contents are gone for good.
	Lost() <-chan struct{}
	// Name says where the segment lies, for messages, such as
	// "127.0.0.1:7070/chunk 12".
	Name() string
}

// A Computer is a Store that can look through objects where they lie.
type Computer interface {
	Store
	// Scan looks through the objects of parts as q says, in as few round trips as it
	// can. It adds what the elements that count come to to a, or, for a part with Bits, sets
	// those as q.Filter does. It checks every record, and sets each part's Err: one that has failed
	// has no share in a, and has to be read. Segments are pinned meanwhile, and q and a its own.
	Scan(ctx context.Context, q *offload.Scan, o Objects, parts []ScanPart, a *offload.Aggregate)
}

// Objects says what objects of one kind have in common in far memory.
type Objects struct {
	Owner uint16
	Born  uint64 // their versions are greater
	Size  int    // of their data
}

// ScanPart is objects whose records lie side by side, and whose numbers follow each other.
type ScanPart struct {
	Seg    Segment
	Seed   uint32
	Off    int    // of the first record
	Number uint64 // of the first object
	N      int
	// Bits is where the elements that match are marked, each object's in bytes of its
	// own. Without it they are added up.
	Bits []byte
	Err  error
}
