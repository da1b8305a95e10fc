// Package index is the index of a map: words, which say where entries are; tables of them, which are local; and
// the part that can go far: leaves, which are pages in far memory, and the directory that says where they are, which
// is local. It reads and writes nothing, and takes no locks.
//
// A map keeps its words in a hash table in local memory for as
// long as that does not take too much of the budget: see [Table]. Beyond that, words of entries
// that are far are settled: they go to the leaf of their tag, the 32 bits of the key's hash by which the table is ordered. A
// directory divides the tags into ranges of the same length, with a leaf for each; since hashes are spread
// evenly, so are words over leaves, and a reference of 8 bytes for each leaf is all that remains in
// local memory: a directory is doubled when its leaves hold more than [Most] words on
// average.
//
// # Leaf
//
// A leaf is the body of a record of kind page:
//
//	 0  16 B  authentication code, AES-GMAC, of what follows
//	16  u32  tag of the first slot
//	20  u24  of the first word, all but the address: bits 63..40
//	23  u8   bits of a value of the third column below
//	24  u16  number of slots
//	26  u8   bits of a value of the first column
//	27  u8   bits of a value of the second column
//	28       three columns, each of whole bytes, with a value for each slot: the tag, less the first one;
//	         the address; the rest of the word, xor that of the first
//
// The slots are in ascending order of the tags. Their values take the bits that they need: six bytes or seven a slot,
// of maps whose entries are of much the same size, where a word and a tag have twelve. What is far
// of the index, and what is moved for it, is as much smaller.
//
// Its words are addresses that the heap relies on, so a checksum, which whoever lends the memory can
// make right, is not enough. The code's nonce is the position of the segment in the log and the leaf's offset
// in it, at which nothing is ever written twice: neither a made-up leaf nor an older one at the same
// place passes.
//
// # Files
//
// word: the bits of a word; table: the hash table of them. leaf, and dir: what is far, and where; merge: how
// words of a table get there.
package index
