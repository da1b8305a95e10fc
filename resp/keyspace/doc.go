// Package keyspace keeps keys and their values for package resp: strings and hashes, and when they expire. They lie
// in far memory or, as a cache, in soft memory. The package knows neither clients nor commands.
//
// A [Space] has the keys of one heap: all that a server has, or one partition of it. An [Access] is how one client
// uses a Space, one command after the other; between two commands it may change to another Space. A command takes the
// locks of its keys ([Access.Want] and [Access.LockWanted], or for a single key [Access.LockKey]), reads and changes
// the keys, ends its changes with [Access.End] while it still holds the locks, and releases them ([Access.Unlock]).
//
// # Waiting
//
// A command first runs with [far.NoWait]. If it needs something far, it fails with [far.ErrWouldBlock] and has
// changed nothing; the caller fetches what is needed ([Space.Fetch]) and runs the command again. If that has not
// helped [MaxTries] times, [Access.Wait] lets the command wait with its locks held, for Config.OpTimeout in all.
//
// # Concurrency and lock order
//
// A Space may be used by any number of goroutines, an Access by one at a time. Keys are hashed to stripes, each with
// a read-write lock. Whoever takes the locks of several stripes takes them in ascending order. The lock order is
//
//	stripe locks (ascending)
//	  watch table, sweeper, journal
//	  the heap's own locks
//
// # What counts together
//
// The changes of a command count as a whole or not at all: see txn.go. With a journal they are one batch of a
// write-ahead log. The batch is appended while the command holds its locks. Therefore a checkpoint, which takes the
// locks of all stripes, knows the last batch whose changes it has. A [Sight] says what a reply shows: the reply must
// not be sent before the log is committed up to there.
//
// # Hashes
//
// A hash of up to 16 KiB and 512 fields, or of a single field, is one entry. A larger one is cut into blocks of about
// 3 KiB by linear hashing. The blocks lie in a map of their own; what leads to them lies in local memory, about a
// hundred bytes for each hash. In a heap that is kept (far.Open), each checkpoint has that, too: see keep.go. Package
// hashes has the formats.
//
// When fields are removed, the shortened block is stored beside the old one, which is freed when the command's
// changes count. In full far memory, the room that is reserved for this may be too little for all blocks of a command
// or a transaction. Then the fields are struck out: local memory remembers where they are in the stored blocks, eight
// bytes for each field, and whoever reads a block skips them. After the command, the blocks are stored without these
// fields, one after the other, each in the place of the old one: see struck.go.
//
// # Files
//
// space (a Space, from its heap to its end), store (where entries are, as an interface) and cache (the store in soft
// memory); access (entries, one by one), lock (stripes), txn (changes that count together or not at all), watch.
//
// Hashes: hash (reading), hashwrite, large (their blocks), struck (deletions without room), sweep (what is done
// later), copied (copies that are read without a lock).
//
// What outlives the process: keep (what the heap's checkpoints have), journal (changes since the last checkpoint) and
// replay, saved (checkpoints that are asked for, and what replies may show).
package keyspace
