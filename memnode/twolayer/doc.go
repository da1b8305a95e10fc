// Package twolayer is FineMem's metadata: a bitmap of two layers that clients change by one-sided compare-and-swap,
// with a redo log inside the bitmap's own words, and the decisions that are made from it.
//
// Everything here is a function of words: packing, searching, deciding. Package pool/finemem has the protocol that
// moves the words over a fabric. [Table] is what the memory node does with the same words in its own memory.
//
// # Granularities
//
// Memory is cut into chunks; 32 chunks are a span, and 16 spans a section: 4 KiB, 128 KiB and 2 MiB, in the paper and
// by default. An allocation has a class k, which stands for 1<<k chunks, and lies at a multiple of its size:
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
// While a span is open, which its log's in-use bit says, its own header is authoritative for its chunks. While it is
// closed, the section's header is. A closed span is free as a whole, or allocated as a whole or together with its
// neighbours. For an open span the section's state is a hint: 01 and 10 say that there may be free chunks, 11 that
// there may be none.
//
// Nobody can change two words at once, so correctness depends on the order of the changes. In what follows, a CAS
// "from a value" proves by its success that the word has not changed since that value was read.
//
//   - To open a span, read the section's header, which must say 00 for the span, and then the span's, which must say
//     closed. CAS the section to 01 from the value read; then CAS the span to open, with its first allocation, from
//     the value read. If the second CAS fails, do not try it again with another value: somebody has repaired the
//     span.
//   - To close a span, read the section's header; CAS the span from open, all free and flushed, to closed; and CAS
//     the section to 00 from the value read. If the section's header says 11 for the span, first CAS it to 01, and go
//     on with the new value.
//   - If a span is closed although its section says 01 or 10, a client that opened or closed it has crashed, or is
//     slow. To repair the span, read the section's header, CAS the span from closed to closed with another timestamp
//     ([Span.Reclosed]), and CAS the section to 00 from the value read. The first CAS defeats a slow opener, whose
//     value of the span's header is then old; the second defeats a slow closer, whose value of the section's header
//     is.
//   - A closed span whose section says 11 is allocated. So nobody may leave 11 behind as a hint for a span that may
//     be closed: only a client that has chunks of the span, which therefore cannot be closed, sets its section's
//     state to 11.
//
// # The log
//
// A successful CAS of a header is the commit point of an allocation or a free, and the header's temporary log says
// what it did. Whoever changes the log next first flushes it to the full log: it reads the entry; then it reads the
// header again, to see that the header still has this log; and only then it replaces the entry by CAS from the value
// read. A flush that is out of date finds another header or another entry, since every replacement counts the entry's
// sequence number up.
//
// Timestamps are odd for allocations and even for frees, and advance only when a free follows an allocation or an
// allocation a free. Because of them, the header differs after a chunk has been freed and allocated again. They alone
// cannot tell which of two logs of a chunk is older, though: a header may run through all 128 timestamps while
// nothing happens to a chunk.
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
// A free swaps the capability before it changes the header, and no allocation is handed out while an entry that
// overlaps it is swapped. So nobody has memory that another client's key opens. A span is closed, and thus leaves the
// layer of chunks, only when none of its chunks is swapped; it is opened only when neither it nor its section is
// swapped.
package twolayer
