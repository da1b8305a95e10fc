package resource

import "fmt"

// State is where a region is in its life.
type State uint8

// The states of Maru's memory model, section 2.
const (
	// None is a region that does not exist yet.
	None State = iota
	// Allocated: carved from the pool, not yet mapped by its owner.
	Allocated
	// Active: mapped by its owner, and by nobody else.
	Active
	// SharedRead: mapped by others as well.
	SharedRead
	// Released: the owner is gone; what follows is decided at once.
	Released
	// Deferred: the owner is gone, and keys or views still need the bytes.
	Deferred
	// Freed: the memory is the pool's again.
	Freed

	numStates
)

var stateNames = [numStates]string{"none", "allocated", "active", "shared-read", "released", "deferred", "freed"}

func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Event is what happens to a region.
type Event uint8

// The events of a region's life.
const (
	Requested      Event = iota // a client asks for a region
	OwnerMaps                   // the owner has mapped it, and its memory is sealed
	ReaderMaps                  // a client other than the owner maps it
	ReaderUnmaps                // such a client unmaps it, and another one still has it
	LastUnmaps                  // the last such client unmaps it
	OwnerLeaves                 // the owner disconnects, dies, or returns the region
	ReferencesHold              // the owner is gone and the reference count is positive
	ReferencesGone              // the owner is gone and the reference count is zero

	numEvents
)

var eventNames = [numEvents]string{"requested", "owner maps", "reader maps", "reader unmaps", "last reader unmaps", "owner leaves", "references hold", "references gone"}

func (e Event) String() string {
	if e < numEvents {
		return eventNames[e]
	}
	return fmt.Sprintf("event(%d)", uint8(e))
}

// transitions is the life cycle: the state that follows, by state and event;
// None where the event cannot happen.
//
// It is the model's figure with what the figure leaves out: an owner may leave
// before it has mapped the region; a second reader and one of several readers
// change nothing; and as keys can outlive the owner, readers may still come
// and go while a region is deferred.
var transitions = [numStates][numEvents]State{
	None: {
		Requested: Allocated,
	},
	Allocated: {
		OwnerMaps:   Active,
		OwnerLeaves: Released,
	},
	Active: {
		ReaderMaps:  SharedRead,
		OwnerLeaves: Released,
	},
	SharedRead: {
		ReaderMaps:   SharedRead,
		ReaderUnmaps: SharedRead,
		LastUnmaps:   Active,
		OwnerLeaves:  Released,
	},
	Released: {
		ReferencesHold: Deferred,
		ReferencesGone: Freed,
	},
	Deferred: {
		ReaderMaps:     Deferred,
		ReaderUnmaps:   Deferred,
		LastUnmaps:     Deferred,
		ReferencesGone: Freed,
	},
	Freed: {
		// Mappings that outlive the region are the kernel's affair.
		ReaderUnmaps: Freed,
		LastUnmaps:   Freed,
	},
}

// Next returns the state after an event, or an error if the event cannot
// happen in this state.
func (s State) Next(e Event) (State, error) {
	if s < numStates && e < numEvents {
		if to := transitions[s][e]; to != None {
			return to, nil
		}
	}
	return s, fmt.Errorf("cannot go on from a region that is %v when %v", s, e)
}
