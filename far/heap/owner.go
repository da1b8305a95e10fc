package heap

import (
	"context"

	"polder/far/record"
)

// An Owner is a data structure that refers to records in the logs. The heap moves records between local and far
// memory. An Owner says of a record whether it refers to it, and is told where the record is from now on.
//
// All methods are called by goroutines of the heap, or by goroutines that fetch; they hold no locks at that time, not
// even the owner's. The methods must not wait for local memory or for the store.
type Owner interface {
	// Evacuate deals with a local record in a segment that is being emptied. If the owner refers to the record, it
	// asks ev.Place what is to become of it, does that, and reports whether it now refers to the record's new place.
	// If it no longer refers to the record, it reports false.
	Evacuate(ev *Evacuation, r Local) bool
	// Settled is called when the write of the far copy of r, which Evacuate has staged, has ended: written says
	// whether the copy is now at addr, in s. If it is, if s is not lost, and if the owner still refers to the local
	// record, Settled makes the owner refer to the far copy, and it reports whether it did. With stays set the owner
	// goes on referring to a local record, and through that to the far copy.
	Settled(r Local, s *FarSegment, addr uint64, written, stays bool) bool
	// Check refuses a far record that cannot be this owner's, or that is not the one that w wants; w is nil if no
	// particular record is wanted. The record's checksums are right. The bytes of a wanted record are the owner's:
	// Check may put there what Landed and the flight's users need.
	Check(e record.Record, w *Want) error
	// Refers reports whether the owner refers to the far record that w wants.
	Refers(w *Want) bool
	// Landed is called when f has brought its record, unless nobody is to share f; it may be called more than once. A
	// scoped record is an object in local memory by then, and the owner refers to the object from now on if it still
	// refers to the far record. Of a locked record the owner makes a local copy, if that is wanted and there is room.
	Landed(f *Flight) Landing
	// Live reports whether the owner refers to the far record e, which lies at addr: by itself,
	// or through a local copy.
	Live(e record.Record, addr uint64) bool
	// Moved makes the owner refer to the copy of the far record e that lies at to, in s, if s is not lost and the
	// owner still refers to the record at from. It reports whether it did.
	Moved(e record.Record, from, to uint64, s *FarSegment) bool
}

// Landing is what an owner says of a record that was fetched.
type Landing uint8

const (
	Elsewhere Landing = iota // the owner no longer refers to the far record
	StaysFar                 // the owner refers to the far record
	Kept                     // the owner refers to the local copy
)

// A Marker is the owner of the records that scopes keep in place. The evacuator marks records before it moves them,
// so that whoever meets a marked record meanwhile says that it uses the record: see pass.
type Marker interface {
	Owner
	// Mark marks the record with this number, if it is the local one at addr.
	Mark(number uint64, addr uintptr, pass uint64)
	// Unmark takes the mark off the record with this number, which stays where it is, if it is the local one at addr.
	Unmark(number uint64, addr uintptr)
}

// Suspect is a far record that may have died.
type Suspect struct {
	Owner        uint16
	Number, Addr uint64
	Dead         bool // as far as the host has found out
}

// A Host is what the heap is memory for: the owners, and what they have to do from time to time.
type Host interface {
	// Owner returns the owner of a number, nil if there is none.
	Owner(id uint16) Owner
	// Marker returns the owner of the records that scopes keep in place.
	Marker() Marker
	// Learns reports whether owners may have to read the store to know what lives, so that Learn has to be called.
	Learns() bool
	// Learn is called before the cleaner asks owners which of rs live, and may read the store. The records rs all lie
	// in the segment that is being cleaned. After Learn owners know which of them live, until Learn is called without
	// any. If owners cannot find out just now, Learn fails, perhaps with ErrNotNow.
	Learn(ctx context.Context, rs []Suspect) error
	// Leaks reports whether owners may have lost sight of records that still count as live: the cleaner finds such
	// records.
	Leaks() bool
	// Lost is called once for every far segment that the store has lost.
	Lost(s *FarSegment)
	// Chores is called whenever the janitor has been woken, and also every SweepEvery, then with tick set.
	Chores(tick bool)
	// Freeing reports whether Chores is about to make room.
	Freeing() bool
}
