package verbs

// An AllocDevice is a Device with the allocation verb: a peer may take chunks of its memory by ALLOC and return them
// by FREE. The device executes each of them as one operation (section 7 of the OneSidedMW paper).
type AllocDevice interface {
	Device
	// CreateAllocator makes an allocator of chunks.
	CreateAllocator(AllocatorInit) (Allocator, error)
}

// An Allocator lends chunks that a table describes and a queue lists.
//
// An entry of the table is of EntrySize bytes: owner, for every window of the
// chunk a [Slot], and then for every window the address of the slot's RKey. The
// queue is a ring of addresses of entries. Its head and tail are words that
// hold the addresses of the element to be taken next and of the one to be
// filled next; an element is zero unless it is filled. All are little-endian.
//
// The answer to an ALLOC is of [AllocAnswerSize] bytes or fewer: u32 status, an
// [AllocStatus]; u32 0; u64 address of the chunk; u64 handle, for FREE: the
// address of the entry; u32 rkey for every access window. What the SGL has no
// room for is left out.
//
// ALLOC binds the chunk's first window to the queue pair that it came over, and
// the others to the group. FREE is refused, as a violation of protection,
// unless that queue pair has the first window.
type Allocator interface {
	// Attach lets the peer of qp allocate.
	Attach(qp QP, c AllocClient) error
	// Counts is how many chunks were allocated and freed over a queue pair.
	Counts(qp QP) (allocs, frees uint64, err error)
	// Close destroys the allocator. Nothing may be attached to it.
	Close() error
}

// AllocatorInit configures an allocator. All regions are of one protection
// domain.
type AllocatorInit struct {
	Table   MR
	Entries uint64 // address of entry 0, in Table; EntrySize bytes each
	Count   uint32 // of entries
	Windows int    // per chunk, 2 to MaxWindows: the first is for FREE
	Queue   MR
	Head    uint64 // address, in Queue, of the word with the address of the element taken next
	Tail    uint64 // likewise, of the element filled next
	Ring    uint64 // of the first element; a multiple of RingSize
	Size    uint64 // of the ring in bytes, a power of two
	// Freed is where chunks that are freed go: Tail itself, or the like of
	// it for a ring of the same size at FreedRing, from which somebody moves
	// them on.
	Freed     uint64
	FreedRing uint64
	// Zero has a chunk zeroed when it is freed.
	Zero      bool
	Memory    MR
	ChunkSize uint64
	Access    Access // of the windows
}

// AllocClient is what a queue pair may allocate.
type AllocClient struct {
	Owner  uint64 // written to the entries of its chunks, not 0
	Budget uint64 // most chunks
	Held   uint64 // chunks that it has already
	Group  []QP   // for the windows after the first
}

// The layout of a table.
const (
	EntrySize  = 256
	MaxWindows = 9
	SlotSize   = 16                               // address, rkey, lkey: as they lie in a BIND_MW
	EntrySlots = 8                                // after the owner
	EntryWords = EntrySlots + MaxWindows*SlotSize // addresses of the slots' keys
)

// AllocAnswerSize is the most bytes of an answer to ALLOC.
const AllocAnswerSize = 24 + 4*(MaxWindows-1)

// AllocStatus says how an ALLOC ended.
type AllocStatus uint32

const (
	AllocOK     AllocStatus = iota
	AllocEmpty              // the queue is empty
	AllocBudget             // the client has all that it may have
	AllocFailed             // a window could not be bound
)
