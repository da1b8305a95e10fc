package far

import (
	"time"

	"polder/far/heap"
)

// Config configures a Heap.
type Config struct {
	// Local is the budget of resident memory, in bytes. At least
	// MinLocal.
	Local int64
	// MaxLocal is the largest budget that SetLocal can set, which costs
	// address space. Zero means four times Local.
	MaxLocal int64
	// ScopeBytes is how much local memory a scope can take for certain while
	// it is open, for objects that are fetched or made in it. That much is
	// kept in reserve for every scope there is; or, where it would be more than
	// an eighth of the budget, only so many are let in at a time. Zero means
	// 64 KiB. If scopes turn out to take more, more is kept.
	//
	// An object takes its size and 16 bytes, in multiples of 16; one that is
	// made, 9 more for its word; one that is fetched, 32 more from 4 KiB on,
	// and if its class has no size of its own up to an eighth more.
	ScopeBytes int
	// HeldTooLong is how long a scope may be open before it is reported in the
	// log, with the stack of the goroutine that made it and of the one that
	// leaves it. Zero means a second.
	HeldTooLong time.Duration
	// MaxValue is the largest value in bytes that a ByteMap takes. Zero means
	// a quarter of Local or 512 MiB, whichever is less.
	MaxValue int
	// CheckpointEvery is how often a heap that was opened takes a checkpoint, if something has changed. Zero means when
	// it is closed, and when far memory is needed that waits for a checkpoint to be given back.
	CheckpointEvery time.Duration
}

// core is what the heap's memory needs to know of cfg.
func (cfg *Config) core() heap.Config {
	return heap.Config{Local: cfg.Local, MaxLocal: cfg.MaxLocal, ScopeBytes: cfg.ScopeBytes, HeldTooLong: cfg.HeldTooLong}
}

// Entry is a value in a ByteMap, with what the map keeps beside it.
type Entry struct {
	Value  []byte
	Expire time.Time // zero: never; kept to the millisecond
	Tag    uint8     // the caller's own, for instance a type
}

// UpdateFunc decides what becomes of an entry. See ByteMap.Update.
type UpdateFunc func(old Entry, found bool) (Entry, Verdict, error)

// Verdict is what an UpdateFunc wants done.
type Verdict uint8

const (
	Keep   Verdict = iota // leave it as it is
	Put                   // store the returned Entry
	Remove                // delete it
)
