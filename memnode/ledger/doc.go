// Package ledger keeps a node's memory beyond the node's process. A [Ledger] is a memfd: what
// is lent, and before it what the next process has to know, namely who has which chunk, and
// the sessions. [Outliving] hands it over to a [Store], a service manager's or a keeper's, and
// the next node takes it from there.
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
// then, each from a page on, the sessions, of sessionRecord bytes each:
//
//	 0  u64  number of the owner, 0: there is no session here
//	 8  u64  id
//	16  [32] secret
//	48  u64  epoch of its keep, 0: it is not kept
//	56  [32] name of the heap, padded with zeros
//
// the table, whose entries begin with the number of who owns the chunk, 0 if nobody does
// (entries of the managers whose NIC writes to it are of verbs.EntrySize bytes, and the
// rest of them is not used again); and the chunks.
//
// # When it counts
//
// Nothing is written twice before it counts: a word of 8 bytes is what changes, and it is
// changed before the client is answered. So the process can be killed at any instruction.
//
//   - A session is there once its owner's number is, which is written last.
//   - A chunk is its owner's once the number is there, and before that it reads as zero.
//     What nobody owns may have any content: the next process zeroes it before it lends it.
//   - A chunk whose owner has no session, since the process was killed while it reclaimed
//     what that had, is nobody's.
//
// # Concurrency
//
// A Ledger belongs to one goroutine, the node's control goroutine, but for the table's entries
// that the NIC writes. An Outliving may be used by any.
package ledger
