// Package twolayer is FineMem's metadata: a bitmap of two layers that clients
// change by one-sided compare-and-swap, with a redo log inside the bitmap's own
// words, and what may be decided from it.
//
// Everything here is a function of words: packing, searching, deciding. The
// protocol that moves the words over a fabric is package pool/finemem's; what the
// memory node does with the same words, on its own memory, is [Table].
//
// # Granularities
//
// Memory is cut into chunks, 32 chunks are a span, 16 spans a section: 4 KiB,
// 128 KiB and 2 MiB, in the paper and by default. A size is a class k, for
// 1<<k chunks, and what is allocated lies at a multiple of its size:
//
//	k         size              header               log entry of           keys
//	0 to 4    4 to 64 KiB       the span's           the first chunk        of chunks
//	5 to 8    128 KiB to 1 MiB  the section's        the first span's first of spans
//	9         2 MiB             the section's        the section's first    of sections
//	10 to 18  4 MiB to 1 GiB    every section's      every section's first  of sections
//
// # Words
//
// A [Span] and a [Section] are headers of 64 bits, the lowest first:
//
//	 0 [32] span: the free map, 1 for a free chunk
//	        section: 2 bits for every span, see [State]
//	32 [2]  retry level of the last operation, see [Level]
//	34 [30] temporary log, see [Log]: in use 1, timestamp 7, offset 5, size 3, user 14
//
// An [Entry] is a chunk's place in the full log, and a [Cap] is the pair of keys of
// a chunk, a span or a section. A [Layout] says where they lie.
//
// # Two layers, one truth
//
// A span header is authoritative for its chunks while the span is open, which its
// log's in-use bit says; the section header is, while the span is closed. A closed
// span is free as a whole, or allocated as a whole or with its neighbours. The
// section's state of an open span is a hint: 01 and 10 that there may be free
// chunks, 11 that there may be none.
//
// Nobody can change two words at once, so the order keeps them apart. In what
// follows, a CAS "from a value" names the one whose success proves that the word
// has not changed since it was read.
//
//   - To open a span, read the section's header, 00 for the span, and then the
//     span's, closed. CAS the section to 01 from the value read; then CAS the span
//     to open, with its first allocation, from the value read. If that fails, do
//     not try it again with another value: somebody has repaired the span.
//   - To close one, read the section's header, CAS the span from open, all free and
//     flushed, to closed, and CAS the section to 00 from the value read. If that
//     says 11, CAS it to 01 first, and go on with that.
//   - A span that is closed though its section says 01 or 10 was left so by a
//     client that crashed, or is slow, while it opened or closed it. To repair it,
//     read the section's header, CAS the span from closed to closed with another
//     timestamp ([Span.Reclosed]), and CAS the section to 00 from the value read.
//     The second defeats a slow opener, whose value of the span's header is old,
//     and the third a slow closer, whose value of the section's is.
//   - A closed span whose section says 11 is allocated. So nobody may leave that
//     behind as a hint: only who has chunks of a span, which cannot be closed
//     then, has its section say 11.
//
// # The log
//
// A successful CAS of a header is the commit point of an allocation or a free, and
// what it did is in the header's temporary log. Who next changes the log, first
// flushes it to the full log: reads the entry, reads the header again, when that
// has been read, to see that it still has that log, and only then replaces the entry
// by CAS from the value read. A flush that is out of date finds another header, or another entry, since
// every replacement counts the entry's sequence number up.
//
// Timestamps are odd for allocations and even for frees, and advance only when one
// follows the other. They make the header of a chunk that was freed and allocated
// again another word. They cannot tell alone which of two logs of a chunk is
// older, though: a header may run through all 128 of them while a chunk rests.
//
// # Capabilities
//
// A [Cap] in the table is one of these:
//
//	main, backup   ready: main opens the memory, backup will
//	backup, 0      swapped: it was freed. Main does not open it yet, and the key
//	               before it may still; the node has not dealt with it
//	0, 0           unused: nothing is lent by this entry
//
// A free swaps before it changes the header, and no allocation is handed out while
// one of the entries that overlap it is swapped. So nobody has memory that another's
// key opens. A span is closed, and thus leaves the layer of chunks, only when none
// of its chunks is swapped; it is opened only when it and its section are not.
package twolayer
