package farlog

import (
	"sync/atomic"

	"polder/far/record"
	"polder/far/store"
	"polder/internal/processor"
)

// Segment is a segment borrowed from the store. It is written once, from the front to the back, and lives until
// nothing refers to it. It begins with its header, whose format is in package record.
type Segment struct {
	Seg  store.Segment
	ID   uint64
	Seed uint32 // of the checksums of the records in it
	log  *Log
	age  uint64 // order of opening: its position in the log

	stream record.Stream // what is in it
	epoch  uint64        // of the owner that opened it

	lost     atomic.Bool // the store has lost it, or it is forsaken
	forsaken atomic.Bool // see Forsake
	sealed   atomic.Bool // nothing is written to it any more

	Restored bool        // a checkpoint listed it at opening: less may live in it than Live says; immutable
	Worn     atomic.Bool // the store takes no more writes to it: once dead, it is not used again
	Counted  atomic.Bool // its loss is accounted for
	away     bool        // it is forsaken, and its memory has been given back; under the log's mu

	// The writer's:
	Broken bool // it cannot be walked, so it cannot be cleaned
	Failed bool // a write to it has failed; writes behind that one fail, too
	Writes int  // writes under way
	End    int  // bytes written, or about to be
	// Cleaned is the offset at which the writer goes on cleaning the segment: what lay before it has been moved. It
	// is 0 if cleaning has not begun.
	Cleaned int

	_ [64]byte // what is above seldom changes

	// Live is the bytes, in whole size classes, of the records that owners refer
	// to, by themselves or through a local copy.
	Live    atomic.Int64
	filled  atomic.Int64 // End in whole size classes
	written atomic.Int64 // bytes that the store is known to have
	// pins counts the reads under way. The count is split by processor, because every miss changes it twice and all
	// misses would contend for one number. A reader takes a pin while a lock of the owner keeps a record here alive,
	// or checks afterwards that the owner still refers to the record; so a pin that is taken once Live is 0 protects
	// nothing.
	pins [pinParts]pinPart
}

// pinParts is a power of two.
const pinParts = 4

type pinPart struct {
	_ [64]byte
	n atomic.Int64
}

// Pin keeps s from being given back until Unpin is called with what it returns.
func (s *Segment) Pin() (part int) {
	part = processor.Number() & (pinParts - 1)
	s.pins[part].n.Add(1)
	return part
}

// Unpin ends a pin.
func (s *Segment) Unpin(part int) {
	if s.pins[part].n.Add(-1) == 0 && s.Dead() {
		s.log.died()
	}
}

// Pinned is the number of pins.
func (s *Segment) Pinned() (n int64) {
	for i := range s.pins {
		n += s.pins[i].n.Load()
	}
	return n
}

// Bury accounts for the death of size bytes, in whole classes.
func (s *Segment) Bury(size int) {
	if s.Live.Add(-int64(size)) == 0 && s.Dead() {
		s.log.died()
	}
}

// Append accounts for a record that is about to be written behind the others and has size bytes, in whole classes.
// From now on it counts as live.
func (s *Segment) Append(size int) {
	s.Live.Add(int64(size))
	s.filled.Add(int64(size))
}

// Wrote notes that the store has the first end bytes.
func (s *Segment) Wrote(end int) { s.written.Store(int64(end)) }

// Seal says that nothing is written to s any more.
func (s *Segment) Seal() {
	if s.sealed.Store(true); s.Dead() {
		s.log.died()
	}
}

// Sealed reports whether nothing is written to s any more.
func (s *Segment) Sealed() bool { return s.sealed.Load() }

// DecodeHead is record.DecodeHead of what was read at off.
func (s *Segment) DecodeHead(b []byte, off int) (record.Record, error) {
	return record.DecodeHead(b, s.Seed, off)
}

// Decode is record.Decode of what was read at off.
func (s *Segment) Decode(b []byte, off int) (record.Record, error) {
	return record.Decode(b, s.Seed, off)
}

// Address is the far address of what lies at off.
func (s *Segment) Address(off int) uint64 { return s.ID*s.log.Units + uint64(off)/record.Unit }

// Position says when s was opened. No two segments of a heap have the same position, even if they were opened by
// different owners.
func (s *Segment) Position() uint64 { return s.epoch<<epochShift | s.age }

// epochShift leaves room for 2^40 segments in an epoch, and for 2^24 epochs.
const epochShift = 40

// HasPages reports whether s has pages of indexes. Such a segment is cleaned by the owner of the pages.
func (s *Segment) HasPages() bool { return s.stream == record.Pages }

// Filled is the bytes of the records that were written to s, in whole size classes.
func (s *Segment) Filled() int64 { return s.filled.Load() }

// Dead reports whether nothing can refer to s any more.
func (s *Segment) Dead() bool {
	return s.sealed.Load() && s.Live.Load() == 0 && s.Pinned() == 0
}

// Gone reports whether the store has lost s.
func (s *Segment) Gone() bool {
	if !s.lost.Load() && store.Gone(s.Seg) {
		s.lost.Store(true)
	}
	return s.lost.Load()
}

// Header is what the header of s says.
func (s *Segment) Header() *record.Segment {
	return &record.Segment{
		Heap:     s.log.heap,
		Stream:   s.stream,
		Hash:     record.XXH3,
		Number:   s.ID,
		Epoch:    s.epoch,
		Position: s.age,
	}
}
