package store

import (
	"context"

	"polder/internal/offload"
)

// A Computer is a Store that can look through objects where they lie, and copy elements of them.
type Computer interface {
	Store
	// Scan looks through the objects of parts as q says, in as few round trips as it can. For a part with Elements,
	// it copies those elements to Out; of q only their size matters. For a part with Out alone, it marks the elements
	// that match in Out, as q.Filter does. Otherwise it adds what the elements that match come to to a. The parts of
	// a call are all of one of these three kinds. Scan checks every record, and sets each part's Err: a part that has
	// failed has no share in a, and has to be read. Until Scan returns, the segments have to be pinned, and nobody
	// else may use q and a.
	Scan(ctx context.Context, q *offload.Scan, o Objects, parts []ScanPart, a *offload.Aggregate)
}

// Objects says what objects of one kind have in common in far memory.
type Objects struct {
	Owner uint16
	Born  uint64 // versions of the objects are greater
	Size  int    // of their data

	// Entries says that they are entries of a map whose values have Size bytes. They may have any version, and none
	// expires.
	Entries bool
}

// ScanPart is N objects whose records lie side by side, and whose numbers are consecutive; or one entry, whose record
// has at most N bytes, and whose number has the lowest 32 bits of Number.
type ScanPart struct {
	Seg    Segment
	Seed   uint32
	Off    int    // of the first record
	Number uint64 // of the first object
	N      int
	// Out is where Scan marks the elements that match: each object has bytes of its own there. Without Out, Scan adds
	// the elements up.
	Out []byte
	// Elements are the indices of the elements that Scan copies to Out, if it is not nil. Then the part is one
	// object.
	Elements []uint32
	Err      error
}

// A Finder is a Store that can look up entries of maps where they lie, by the leaves of the maps' indexes.
type Finder interface {
	Store
	// Finds reports whether Find is likely to be faster than two reads, for leaves in s. It does not wait.
	Finds(s Segment) bool
	// Find looks up the entries, in as few round trips as it can. The caller pins the segments of the leaves
	// meanwhile, and checks what was found as it checks what it reads.
	Find(ctx context.Context, l *Lookups)
}

// Lookups are entries of one owner that are looked up.
type Lookups struct {
	Owner uint16
	Units uint64 // size of a segment, in units of addresses
	// Segment returns the segment of a far address and the seed of its records, or nil if no segment has that
	// address, which may be any number.
	Segment func(addr uint64) (Segment, uint32)
	Finds   []Lookup
}

// Lookup is an entry that is looked up.
type Lookup struct {
	Seg  Segment // of the leaf that knows the entry
	Seed uint32
	Off  int    // of the record of the leaf, in Seg
	N    int    // the most bytes that the record of the leaf has
	Hash uint64 // the number of the entry

	// Entry is what was found, and At the far address where it lies.
	Entry []byte
	At    uint64
	// Leaf is the record of the leaf, if no entry was found.
	Leaf []byte
}
