// Package bytemap is maps from byte strings to byte strings on a heap: package far has the maps with types that programs
// use, and gives this one's [Map] as ByteMap. It stands on package heap, of which the entries of a map are records that a lock keeps in
// place, on package entry, which has their bytes, and on package index, which says where they are.
//
// [Maps] is all maps of a heap. Its methods named after those of heap.Host are what the memory asks of entries; the others are for
// whoever has a heap: making maps, their statistics, and checkpoints of them. What far's typed maps need of a Map beyond
// its methods are functions: [Set], [ReadMany], [Aggregate], [StatsOf], and a [Reading], which copies nothing.
//
// # Concurrency
//
// All methods may be called by any number of goroutines, and each call on a Map is atomic.
//
// Whatever looks at an entry or moves it holds its shard's lock, for no longer
// than it takes to copy one entry, and never while the store works. Whoever
// waits for the store has the address of what it reads pinned, and looks at
// the index again afterwards. Lock order:
//
//	Map.clearing
//	  shard.mu
//	    heap.OpenLog.Mu
//	    Maps.mu
//
// and below all of these the locks of package heap. A checkpoint holds the locks of all shards at a time, in order of the maps.
//
// # Files
//
// maps (those of a heap), bytemap (one, and its calls), shard (an index and its lock).
//
// Reading: read (one value where it lies), many, fetch (of what is far, and whether it stays), slow (what waits), find (looking up
// keys where their leaves are), compute (looking through values where they are). Changing: update, txn, big (values in pieces).
// Iterating: scan.
//
// Where words go that tables have no room for: cold (what is known, and what has to be read) and leaffetch
// (reading it); settle (when, and the far memory of leaves), settlevisit (leaf by leaf) and leafbury (what was cleared); fit (how much
// tables may take of a budget, and of one that becomes smaller).
//
// What the heap's memory asks: owner (of one entry), host (of all maps: what is lost, what the cleaner has to know, chores), loss (entries
// that are gone), sweep (those that have expired).
//
// checkpoint (what is kept, and maps that are loaded), stats, audit (with invariants).
package bytemap
