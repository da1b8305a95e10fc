// Package ledger keeps a node's memory beyond the node's process. A [Ledger] is a memfd: the lent memory, and before
// it what the next process must know, namely who has which chunk, and the sessions. [Outliving] hands it to a
// [Store], which is a service manager or a keeper, and the next node takes it from there.
//
// # The layout
//
// Everything is little-endian. On the first page:
//
//	 0  u64  magic "PMNLEDGR"
//	 8  u32  version of the layout
//	12  u32  CRC32C of what follows, up to byte 64
//	16  [16] name of the manager, padded with zeros
//	32  u64  chunk size in bytes
//	40  u64  chunks
//	48  u64  most sessions
//	56  u64  0
//
// then, each beginning on a page of its own, the sessions, of sessionRecord bytes each:
//
//	 0  u64  number of the owner, 0: there is no session here
//	 8  u64  id
//	16  [32] secret
//	48  u64  epoch of its keep, 0: it is not kept
//	56  [32] name of the heap, padded with zeros
//
// the table, whose entries begin with the owner number of the chunk's owner, 0 if nobody owns the chunk (the entries
// of managers whose NIC writes to the table have verbs.EntrySize bytes, and the next process does not use the rest of
// them); and the chunks.
//
// # When it counts
//
// Nothing has to be written in two places to count: every change takes effect with one word of 8 bytes, which is
// written before the client is answered. So the process can be killed at any instruction.
//
//   - A session exists once the number of its owner, which is written last, is in its record.
//   - A chunk is its owner's once the owner's number is in the table; before that it reads as zero. A chunk that
//     nobody owns may have any content: the next process zeroes it before it lends it.
//   - A chunk whose owner has no session belongs to nobody: the process was killed while it reclaimed that session.
//
// # Concurrency
//
// A Ledger belongs to one goroutine, the node's control goroutine, except for the table's entries, which the NIC may
// write. An Outliving may be used by any goroutine.
package ledger
