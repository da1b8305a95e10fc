package heap

import (
	"context"

	"polder/far/record"
)

// An Owner is a data structure that refers to records in the logs. The heap
// moves records between local and far memory; an Owner says of a record whether it refers
// to it, and is told where it is from now on.
//
// All methods are called in goroutines of the heap's or of those who fetch, which hold no
// lock then, not even the owner's. They must not wait for local memory or for the store.
type Owner interface {
	// Evacuate deals with a local record in a segment that is being emptied.
	// If the owner refers to it, it asks ev.place what is to become of it, carries
	// that out, and reports whether it then refers to the record's new place. It reports false, too,
	// if it does not refer to the record any more.
	Evacuate(ev *Evacuation, r Local) bool
	// Settled is called when the far copy of r that Evacuate has staged has been written
	// at addr of s; or has not, if written is false. It makes the owner refer to the far
	// copy if that was written, s is not lost, and the owner refers to the
	// local record still, and reports whether it does. With stays set the owner goes on to refer
	// to the local record, and through that to the far one.
	Settled(r Local, s *FarSegment, addr uint64, written, stays bool) bool
	// Check refuses a far record that cannot be this owner's, or not the one that w wants,
	// which is nil if nobody wants a certain one. Its checksums are right. The bytes of a wanted
	// record are the owner's: Check may put there what Landed and the flight's users need.
	Check(e record.Record, w *Want) error
	// Refers reports whether the owner refers to the far record that w wants.
	Refers(w *Want) bool
	// Landed is called when f has brought its record, unless nobody is to share it, and perhaps again.
	// An object is local already, and the owner refers to it from now on if it refers to the far
	// record still; for what a lock keeps in place it makes a local copy if that is
	// wanted and there is room.
	Landed(f *Flight) Landing
	// Live reports whether the owner refers to the far record e, which lies at addr: by itself,
	// or through a local copy.
	Live(e record.Record, addr uint64) bool
	// Moved makes the owner refer to the copy at to, in s, of the far record
	// e if it refers to that at from and s is not lost, and reports whether it does.
	Moved(e record.Record, from, to uint64, s *FarSegment) bool
}

// Landing is what an owner says of a record that was fetched.
type Landing uint8

const (
	Elsewhere Landing = iota // it does not refer to the far record any more
	StaysFar                 // it refers to the far record
	Kept                     // it refers to the local copy
)

// A Marker is the owner of the records that scopes keep in place. The evacuator
// marks them before it moves them, so that whoever comes by one meanwhile says
// that it uses it: see pass.
type Marker interface {
	Owner
	// Mark marks the record of a number, if that is the local one at addr.
	Mark(number uint64, addr uintptr, pass uint64)
	// Unmark leaves the record of a number where it is, if that is the local one at addr.
	Unmark(number uint64, addr uintptr)
}

// Suspect is a far record that may have died.
type Suspect struct {
	Owner        uint16
	Number, Addr uint64
	Dead         bool // as far as the host has found out
}

// A Host is what the heap is memory for: the owners, and what they have to do from
// time to time.
type Host interface {
	// Owner returns the owner of a number, nil if there is none.
	Owner(id uint16) Owner
	// Marker returns the owner of the records that scopes keep in place.
	Marker() Marker
	// Learns reports whether owners may have to read the store to know what lives, so that Learn has to be
	// called.
	Learns() bool
	// Learn is called before the cleaner asks owners which of rs live, and may read the store: after
	// that they know it of those, which all lie in the segment that is being cleaned, until Learn is called without
	// any. If they cannot know it just now, it fails, perhaps with ErrNotNow.
	Learn(ctx context.Context, rs []Suspect) error
	// Leaks reports whether owners may have lost sight of records that count as live: of those the cleaner
	// finds out.
	Leaks() bool
	// Lost is called once for every far segment that the store has lost.
	Lost(s *FarSegment)
	// Chores is called whenever the janitor has been woken, and, with tick set, every
	// sweepEvery.
	Chores(tick bool)
	// Freeing reports whether Chores is about to make room.
	Freeing() bool
}
