package store

import (
	"context"
	"time"
)

// Timeout bounds every operation on a store that no caller waits for.
const Timeout = 10 * time.Second

// DiskName is what the names of disks begin with that have a copy of what lies elsewhere, and no other names. Whoever does not have
// the disk knows by it that what had a copy there need not be lost.
const DiskName = "disk "

// MinSegmentSize is the least size of a store's segments, in bytes: one holds an
// entry with the longest key.
const MinSegmentSize = 128 << 10

// A Store is memory that somebody else lends, in segments of one size. The
// heap needs no more of it than this; package pool provides one over the
// network, and MemStore is one in this process.
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
	// Bulk says that nobody waits for just this read: those of the cleaner, and of pages. A store that
	// can lets others overtake it.
	Bulk bool
	Err  error
}

// A Mirror is a Store that has more than one copy of a segment.
type Mirror interface {
	Store
	// Reread makes a read again whose bytes were not those that were written: from one copy after the other, until
	// good accepts what op.Buf has, which it may change, and once more with what stays there. Copies that have other bytes are replaced.
	// It reports whether there was a good one.
	Reread(ctx context.Context, op ReadOp, good func() bool) bool
	// Judge has look be called with a segment whose copies have different bytes. The store does not know which of them are right: look
	// reads all that counts in it with Reread. It is called before anything is read or written, and look by one goroutine of several.
	Judge(look func(ctx context.Context, seg Segment))
}

// Reread makes a read of s again whose bytes were not those that were written, since they may have been damaged on their way only:
// as Mirror.Reread does, or else once. It reports whether good has accepted what op.Buf has.
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
	// Write writes p at off and returns when it is done. It is bulk: reads that somebody
	// waits for should not wait for it. One that fails may take
	// effect in part, or later, but not after a later operation on the segment,
	// which may be written from the front again when nothing in it lives.
	// ErrSealed says that the segment takes no more, now or at all: what was written before stays, and the
	// heap goes on in another segment at once.
	Write(ctx context.Context, p []byte, off int) error
	// Free gives the segment back. It is not used afterwards.
	Free(ctx context.Context) error
	// Lost is closed when the segment's contents are gone for good.
	Lost() <-chan struct{}
	// Name says where the segment lies, for messages, such as
	// "127.0.0.1:7070/chunk 12".
	Name() string
}

// A Starter is a Segment to which somebody can write who does not wait, such as to several segments at once.
type Starter interface {
	Segment
	// Start begins Write. Whoever calls it calls the End of what it returns, and leaves p as it is until then. Landed is called once at most,
	// when there may be no more to be waited for: by whoever finds that out, whom it must not hold up, and perhaps before Start returns.
	Start(ctx context.Context, p []byte, off int, landed func()) Flight
}

// A Flight is a write under way.
type Flight interface {
	// Landed reports whether the write has succeeded, so that End returns at once.
	Landed() bool
	// End returns when the write has ended, as Write does. It is called once.
	End(ctx context.Context) error
}

// A Keeper is a Store whose segments outlive the process that has borrowed them. One process at a time has it
// open, which is for the Keeper to see to.
type Keeper interface {
	Store
	// Root returns what SetRoot was given last, nil if it never was.
	Root(ctx context.Context) ([]byte, error)
	// SetRoot keeps root, at most record.MaxRoot bytes, in the place of the one before, once all that was written to segments
	// is kept as well. It does so entirely or, if it fails, perhaps not at all.
	SetRoot(ctx context.Context, root []byte) error
	// Reopen borrows a segment again by its name; its bytes are what they were. It fails with a *LostError if
	// they are gone for good.
	Reopen(ctx context.Context, name string) (Segment, error)
	// Prune gives back what an earlier process has borrowed and nobody has reopened.
	Prune(ctx context.Context) error
	// Wants reports whether there should be another root soon, since what the Keeper has to remember until then is getting long.
	Wants() bool
}
