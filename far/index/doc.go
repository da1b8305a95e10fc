// Package index is the index of a map: words, which say where entries are; tables of them, which are local; and
// the part that can go far: leaves, which are pages in far memory, and the directory that says where they are, which
// is local. It reads and writes nothing, and takes no locks.
//
// A map keeps its words in a hash table in local memory for as long as that does not take too much of the budget: see
// [Table]. Beyond that, words of entries that are far are settled: they go to the leaf of their tag, the 32 bits of
// the key's hash by which the table is ordered. A directory divides the tags into ranges of the same length, with a
// leaf for each. Since hashes are spread evenly, so are words over leaves, and all that remains in local memory is a
// reference of 8 bytes for each leaf. A directory is doubled when its leaves hold more than [Most] words on average.
//
// # Leaf
//
// A leaf is the body of a record of kind page:
//
//	 0  16 B  authentication code, AES-GMAC, of what follows
//	16  u32  tag of the first slot
//	20  u24  the first word without its address: bits 63..40
//	23  u8   bits of a value in the third column
//	24  u16  number of slots
//	26  u8   bits of a value in the first column
//	27  u8   bits of a value in the second column
//	28       three columns, each of whole bytes, with a value for each slot: the tag minus the first tag;
//	         the address; the rest of the word, xor the rest of the first word
//
// The slots are in ascending order of the tags. The values of a column have as many bits as the largest one needs: in
// maps whose entries are of much the same size, a slot takes six or seven bytes, where a word and a tag take twelve.
// The far part of the index, and what is moved for it, is that much smaller.
//
// The heap relies on the addresses in a leaf. A checksum does not protect them, since whoever lends the memory can
// compute the right one. The nonce of the authentication code is the position of the segment in the log and the
// leaf's offset in the segment. Nothing is ever written twice there, so neither a made-up leaf nor an older one at
// the same place passes.
//
// # Files
//
// word: the bits of a word; table: the hash table of them. leaf, and dir: what is far, and where; merge: how
// words of a table get there.
package index
