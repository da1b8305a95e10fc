package store

import (
	"context"
	"time"
)

// Timeout bounds every operation on a store that no caller waits for.
const Timeout = 10 * time.Second

// DiskName is how the names of those disks begin that have a copy of what lies elsewhere; no other name begins so.
// From such a name, a process without the disk sees that what had a copy there need not be lost.
const DiskName = "disk "

// MinSegmentSize is the least size of a store's segments, in bytes: one holds an
// entry with the longest key.
const MinSegmentSize = 128 << 10

// A Store is memory that somebody else lends, in segments of one size. The heap needs no more of it than this.
// Package far/remote provides one over the network, and MemStore is one in this process.
//
// All methods may be called by any number of goroutines.
type Store interface {
	// SegmentSize is the size in bytes of every segment, a power of two of at least MinSegmentSize.
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
	// Bulk says that nobody waits for just this read, such as a read by the cleaner, or of pages. A store that can
	// lets other reads overtake it.
	Bulk bool
	Err  error
}

// A Mirror is a Store that has more than one copy of a segment.
type Mirror interface {
	Store
	// Reread repeats a read whose bytes were not those that were written. It reads one copy after the other into
	// op.Buf, and calls good after each, which reports whether the bytes are right, and may change them. If some copy
	// was good, Reread puts the good bytes in op.Buf, calls good once more, and reports what that returns. Otherwise
	// it reports false. A copy that was not good is mended or replaced later, when the function given to Judge has
	// looked at the whole segment.
	Reread(ctx context.Context, op ReadOp, good func() bool) bool
	// Judge sets look, which the store calls with a segment whose copies have different bytes. The store does not
	// know which of them are right, so look reads all that counts in the segment with reread. Judge is called before
	// anything is read or written. The store calls look from several goroutines, but from one at a time.
	Judge(look Judge)
}

// A Judge reads all that counts in seg with reread, and reports whether it has, and some copy was good each time.
// reread does what Mirror.Reread does. But good answers for every byte of op.Buf: the store may write these bytes in
// the place of those of a copy that was not good. So what is read must not go on behind the records that good checks.
type Judge func(ctx context.Context, seg Segment, reread Rereader) (all bool)

// A Rereader reads bytes of a segment from all copies.
type Rereader func(op ReadOp, good func() bool) bool

// Reread repeats a read of s whose bytes were not those that were written, since they may have been damaged only on
// their way. If s is a Mirror, Mirror.Reread does it; otherwise s is read once more. Reread reports whether good has
// accepted what op.Buf has.
func Reread(ctx context.Context, s Store, op ReadOp, good func() bool) bool {
	if m, ok := s.(Mirror); ok {
		return m.Reread(ctx, op, good)
	}
	one := [1]ReadOp{op}
	s.Read(ctx, one[:])
	return one[0].Err == nil && good()
}

// Gone reports whether the contents of seg are gone for good.
func Gone(seg Segment) bool {
	select {
	case <-seg.Lost():
		return true
	default:
		return false
	}
}

// A Segment is a borrowed piece of a store.
type Segment interface {
	// Write writes p at off and returns when it is done. It is bulk: reads that somebody waits for should not wait
	// for it. A write that fails may take effect in part, or later, but not after a later operation on the segment:
	// when nothing in the segment lives, it may be written from the front again. ErrSealed says that the segment
	// takes no more, now or at all: what was written before stays, and the heap goes on in another segment at once.
	Write(ctx context.Context, p []byte, off int) error
	// Free gives the segment back. It is not used afterwards.
	Free(ctx context.Context) error
	// Lost is closed when the segment's contents are gone for good.
	Lost() <-chan struct{}
	// Name says where the segment lies, for messages, such as
	// "127.0.0.1:7070/chunk 12".
	Name() string
}

// A Starter is a Segment to which a goroutine can write without waiting, for example to write to several segments at
// once.
type Starter interface {
	Segment
	// Start begins a Write. The caller has to call End of the Flight that Start returns, and leaves p as it is until
	// End has returned. The goroutine that finds that there may be nothing to wait for any more calls landed, at most
	// once, and must not be held up by it. That may be before Start returns.
	Start(ctx context.Context, p []byte, off int, landed func()) Flight
}

// A Flight is a write under way.
type Flight interface {
	// Landed reports whether the write has succeeded, so that End returns at once.
	Landed() bool
	// End returns when the write has ended, as Write does. It is called once.
	End(ctx context.Context) error
}

// A Keeper is a Store whose segments outlive the process that has borrowed them. The Keeper sees to it that only one
// process at a time has it open.
type Keeper interface {
	Store
	// Root returns what SetRoot was given last, nil if it never was.
	Root(ctx context.Context) ([]byte, error)
	// SetRoot keeps root, at most record.MaxRoot bytes, in place of the root before, once all that was written to
	// segments is kept as well. If it fails, root may be kept or not, but never a part of it.
	SetRoot(ctx context.Context, root []byte) error
	// Reopen borrows a segment again by its name; its bytes are what they were. It fails with a *LostError if
	// they are gone for good.
	Reopen(ctx context.Context, name string) (Segment, error)
	// Prune gives back what an earlier process has borrowed and nobody has reopened.
	Prune(ctx context.Context) error
	// Wants reports whether there should be another root soon, since the Keeper has to remember more and more until
	// then.
	Wants() bool
}
