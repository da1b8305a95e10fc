package store

import (
	"context"

	"polder/internal/offload"
)

// A Computer is a Store that can look through objects, and take elements out of them, where they lie.
type Computer interface {
	Store
	// Scan looks through the objects of parts as q says, in as few round trips as it
	// can. It adds what the elements that count come to to a, or, for a part with Out, marks them there
	// as q.Filter does; or it copies the Elements there, and q says but how large they are. The parts of a call are of one kind. It
	// checks every record, and sets each part's Err: one that has failed has no share in a, and has to be read.
	// Segments are pinned meanwhile, and q and a its own.
	Scan(ctx context.Context, q *offload.Scan, o Objects, parts []ScanPart, a *offload.Aggregate)
}

// Objects says what objects of one kind have in common in far memory.
type Objects struct {
	Owner uint16
	Born  uint64 // their versions are greater
	Size  int    // of their data

	// Entries says that they are entries of a map, with values of Size bytes, of any version, none of which expires.
	Entries bool
}

// ScanPart is objects whose records lie side by side, and whose numbers follow each other; or one entry, whose record
// has N bytes at the most, and a number with the lowest 32 bits of Number.
type ScanPart struct {
	Seg    Segment
	Seed   uint32
	Off    int    // of the first record
	Number uint64 // of the first object
	N      int
	// Out is where the elements that match are marked, each object's in bytes of its
	// own. Without it they are added up.
	Out []byte
	// Elements, if there are any, is which elements of the object, of which there is one, are copied to Out.
	Elements []uint32
	Err      error
}

// A Finder is a Store that can look entries of maps up where they lie, by leaves of their index.
type Finder interface {
	Store
	// Finds reports whether Find is likely to be faster than two reads for leaves in s. It does not wait.
	Finds(s Segment) bool
	// Find looks entries up, in as few round trips as it can. The caller pins the segments of the leaves meanwhile, and
	// checks what was found as it checks what it reads.
	Find(ctx context.Context, l *Lookups)
}

// Lookups are entries of one owner that are looked up.
type Lookups struct {
	Owner uint16
	Units uint64 // of a segment
	// Segment returns the segment of a far address and the seed of its records, or nil if no segment has that
	// address, which may be any number.
	Segment func(addr uint64) (Segment, uint32)
	Finds   []Lookup
}

// Lookup is an entry that is looked up.
type Lookup struct {
	Seg  Segment // of the leaf that knows the entry
	Seed uint32
	Off  int    // where the leaf is
	N    int    // bytes that its record has at the most
	Hash uint64 // the number of the entry

	// Entry is what was found, and At the far address where it lies.
	Entry []byte
	At    uint64
	// Leaf is the record of the leaf, if no entry was found.
	Leaf []byte
}
