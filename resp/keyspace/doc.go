// Package keyspace keeps keys and their values for package resp, in far memory or, as a cache, in soft memory: strings, hashes, and when
// they expire. It knows neither clients nor commands.
//
// A [Space] is the keys of one heap: all that a server has, or one partition of it. An [Access] is how one client uses a Space, one
// command after the other, and can go from one Space to another between two of them. A command takes the locks of its keys
// ([Access.Want], [Access.LockWanted], or for a single key [Access.LockKey]), reads and changes them, ends its changes with [Access.End],
// under the locks still, and gives the locks back.
//
// # Waiting
//
// A command first runs with [far.NoWait]. If it needs something far, it fails with [far.ErrWouldBlock] and has changed nothing; the caller
// fetches ([Space.Fetch]) and runs it again. When that has not helped [MaxTries] times, [Access.Wait] lets it wait with its locks
// held, for Config.OpTimeout in all.
//
// # Concurrency and lock order
//
// A Space may be used by any number of goroutines, an Access by one at a time. Keys are hashed to stripes, each with a read-write lock.
// Whoever takes several takes them in ascending order. The lock order is
//
//	stripe locks (ascending)
//	  watch table, sweeper, journal
//	  the heap's own locks
//
// # What counts together
//
// What a command changes counts as a whole or not at all: see txn.go. With a journal it is one batch of a write-ahead log, which is
// appended under the locks; so a checkpoint, which takes the locks of all stripes, knows up to which batch it has everything. What a
// reply shows is a [Sight], which is not to be sent before the log is committed up to there.
//
// # Hashes
//
// A hash of up to 16 KiB and 512 fields is one entry. A larger one is cut into
// blocks of about 4 KiB by linear hashing; the blocks lie in a map of their
// own, and what leads to them in local memory, about a hundred bytes a hash. A heap that is kept (far.Open) has that with each of its
// checkpoints, see keep.go. Package hashes has the formats.
//
// Removing fields stores what is left of a block beside it, and frees the block when the command's
// changes count. In full far memory what is kept for that may be too little for all blocks of a
// command or a transaction. Then the fields are struck out: where they are in the stored
// blocks is remembered in local memory, eight bytes a field, and whoever reads a block skips
// them. After the command the blocks are stored without them, one after the other, each in
// the place of the one before; see struck.go.
//
// # Files
//
// space (a Space, from its heap to its end), store (where entries are, as an interface) and cache (the one in soft memory); access (entries,
// one by one), lock (stripes), txn (changes that count together or not at all), watch.
//
// Hashes: hash (reading), hashwrite, large (their blocks), struck (deletions without room), sweep (what is done later), copied (copies that
// are read without a lock).
//
// What outlives the process: keep (in the heap's checkpoints), journal (since the last one) and replay, saved (checkpoints that are asked
// for, and what replies may show).
package keyspace
