// Package bytemap implements maps from byte strings to byte strings on a heap. Package far has the typed maps that
// programs use, and exports the [Map] of this package as ByteMap. Package bytemap stands on package heap, for which
// the entries of a map are records that a lock keeps in place, on package entry, which knows the bytes of an entry,
// and on package index, which says where entries are.
//
// [Maps] is all maps of a heap. The heap calls its methods that are named after those of heap.Host. Its other methods
// are for whoever has a heap: they make maps, their statistics, and checkpoints of them. What far's typed maps need
// of a Map beyond its methods are the functions [Set], [ReadMany], [Aggregate] and [StatsOf], and the type [Reading],
// which copies nothing.
//
// # Concurrency
//
// All methods may be called by any number of goroutines, and each call on a Map is atomic.
//
// Whoever looks at an entry or moves it holds the lock of its shard, for no longer than it takes to copy one entry,
// and never while the store works. Whoever waits for the store has pinned the far segment that it reads, and looks at
// the index again afterwards. Lock order:
//
//	Map.clearing
//	  shard.mu
//	    heap.OpenLog.Mu
//	    Maps.mu
//
// and below all of these the locks of package heap. A checkpoint holds the locks of all shards at a time, in order of
// the maps.
//
// # Files
//
// Basics: maps (all maps of a heap), bytemap (one map, and its calls), shard (an index and its lock).
//
// Reading: read (one value where it lies), many (many values in one batch), fetch (fetching far entries, and which of
// them stay local), slow (calls that have to wait), find (the store looks keys up, where their leaves are), compute
// (the store looks through values, where they are). Changing: update, txn, big (values in pieces). Iterating: scan.
//
// Index words for which tables have no room: cold (what is known, and what has to be read) and leaffetch (reading
// it); settle (when words move to leaves, and the far memory of leaves), settlevisit (leaf by leaf) and leafbury
// (leaves of cleared maps); fit (how much of a budget tables may take, and fitting them into a smaller budget).
//
// What the heap asks of maps: owner (of one entry), host (of all maps: what is lost, what the cleaner has to know,
// chores), loss (entries that are gone), sweep (entries that have expired).
//
// checkpoint (what is kept, and maps that are loaded), stats, audit (in builds with invariants).
package bytemap
