// Package race is a hash table in borrowed memory that its users read and change by
// READ, WRITE and CMP_SWAP alone: RACE hashing (Zuo et al., USENIX ATC '21), the
// key-value store with which OneSidedMW and FineMem prove themselves.
//
//	t, err := race.New(ctx, p) // p is a *pool.Pool, with any manager
//	err = t.Put(ctx, []byte("key"), []byte("value"))
//	value, found, err := t.Get(ctx, []byte("key"), nil)
//	found, err = t.Delete(ctx, []byte("key"))
//
// The nodes' CPUs do nothing but lend. Index, keys and values are in their memory, and nothing of an entry is in this
// process's: a Get is two round trips, always. A program that wants its often used entries to be local takes package
// far.
//
// A table is used by one process, with any number of goroutines, because a chunk is open to one client only. Several
// processes divide the keys among them (OneSidedMW, section 7). When a process ends, the memory of its table goes
// back to the nodes.
//
// # The table
//
//   - A subtable (table.go) has groups of three buckets of 64 bytes, main, overflow, main. A
//     main bucket and the overflow bucket beside it are read at once, 128 bytes. Two
//     hash functions give a key two such pairs, of different groups.
//   - A slot (word.go) is a word: 8 bits of fingerprint, 8 bits of length, two bits for tentative and frozen, 46 bits
//     that name a block (malloc.Ref). A vacant slot has the length 0 and, in place of the block, a number that no
//     vacant slot has had before.
//   - A block, of package pool/malloc, has the key's hash, lengths, key and value. It does
//     not change while a slot names it.
//   - The directory is extendible: its entry for the low bits of a key's hash is the
//     key's subtable. In the paper it is in far memory, clients have copies, and buckets
//     have headers by which a client finds that its copy is old. Here one process has
//     the table, so its directory is the only one, and buckets have an eighth slot in
//     place of the header.
//
// # Operations
//
// All of them begin by finding the key (find.go): READs of both pairs of buckets with
// one doorbell, and with another READs of the blocks whose fingerprint is the key's.
//
//   - Get does that: 2 round trips, or 1 if there is no such fingerprint.
//   - Put WRITEs its block beside the READs of the buckets. If the key is there, it
//     swaps the slot to the new block: 3 round trips. If not, it swaps a vacant slot of
//     the pair that has more of them to the block, as tentative, READs the buckets again, and
//     if the key is nowhere else makes it firm: 4 round trips.
//   - Delete swaps the slot to a vacant word: 3 round trips.
//
// Two Puts of one key may choose different slots at the same time. Tentative slots let them see each other: of the
// two, the Put that looks later sees the slot of the other. A Put that sees the key firm in another slot takes its
// own block back, and updates that slot. If it sees tentative blocks of others for its key, it takes them out, and
// their Puts begin again. So a key is never firm in two slots. The paper needs only 3 round trips: there an insertion
// counts at once, and duplicates are cleared later. But then a Delete must clear all duplicates, one after the other,
// and one that it clears may be of a Put that came after it had cleared the first, and that has already been read:
// the explorer of this package's tests found that order.
//
// Put splits a subtable (split.go) when there is no vacant slot. It freezes every slot by CMP_SWAP, so that no
// operation that began earlier can change it; it writes two subtables with what was there, each entry in its old
// position; it enters them in the directory. Reading goes on in the frozen subtable, which stays as it was. Writers
// that meet a frozen slot split as well, so nobody depends on a splitter that has stopped: a later splitter freezes
// what is left, and the first that is ready enters its subtables. Splitters take turns, so that they do not all do
// the work; nothing else depends on that. Subtables are never merged.
//
// # Stopping in the middle
//
// An operation may fail, or its context may end, at every step; the table is consistent then, and what is left over
// is removed later: a tentative block by a Put or Delete of the key or by a split, a half-frozen subtable by whoever
// wants to write to it. A Put or Delete that fails may have been done. A CMP_SWAP that has been posted is waited for,
// within the pool's timeout. If its outcome is unknown, a READ of the word tells, because no word comes twice; if
// another operation has changed the word by then, or the word cannot be read, the one or two blocks that the CMP_SWAP
// was about are kept until Close (Stats.InDoubt).
//
// When a node is lost, a Get of a key whose block was there fails with pool.ErrLost until the key, or another key of
// its fingerprint in the same buckets, is put or deleted, or its subtable splits. All operations on keys whose
// subtable was there fail with it for good.
//
// # Reuse
//
// A block is freed when no operation is in progress that began while a slot named it (epoch.go): operations enter an
// epoch and leave it, and a block that was taken out in one epoch is freed two epochs later. So nobody reads a block
// that is being reused, and no word that an operation has read comes again while the operation runs. An operation
// that waits for a node delays that, for as long as the pool's timeout.
//
// # Concurrency
//
// Everything may be called by any number of goroutines. Table.mu and epochs.mu are
// leaves, and not held across an operation on the fabric.
package race
