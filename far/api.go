package far

import "time"

// Config configures a Heap.
type Config struct {
	// Local is the budget of resident memory, in bytes. At least
	// MinLocal.
	Local int64
	// MaxValue is the largest value in bytes that a ByteMap takes. Zero means
	// a quarter of Local or 512 MiB, whichever is less.
	MaxValue int
}

// MinLocal is the smallest local budget.
const MinLocal = 4 << 20

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
