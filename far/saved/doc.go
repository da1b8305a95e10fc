// Package saved is a heap in a file: what far memory and the last checkpoint of a heap had at one moment, as polder heap
// save writes it and polder heap load reads it. A [Snapshot], which far.Heap.Snapshot takes, is read from a heap that goes on meanwhile;
// [Restore] makes a heap of what was read, which far.Open then finds. Between them there is the format, which is encoded, decoded and
// checked here; what is decoded may be anything.
//
// Everything has one user, and no locks of its own; a Snapshot takes those of package farlog for as long as it pins and lets go of
// what it refers to.
//
// A file is a magic number of 8 bytes, with the version of the format in the lowest one, and parts behind each other. Everything is
// little-endian. A part is a header of 32 bytes and a body:
//
//	 0  u32  CRC32C of the rest of the header
//	 4  u32  CRC32C of the body
//	 8  u32  kind
//	12  u32  length of the body
//	16  u64  of what it is a part
//	24  u64  offset in that
//
//	kind        of                    offset     body
//	Start       number of the heap    0          u64 bytes of a segment of the heap
//	Segment     position of a segment in it      bytes of the segment, as package record has them
//	Checkpoint  number of a checkpoint in it     bytes of the checkpoint
//	Root        the same              0          a root as package record has it, without parts
//	End         number of the heap    0          u64 parts before, u64 bytes before, SHA-256 of these
//
// Start comes first, and once. The parts of one segment, and those of one checkpoint, are in order, with others between. Root comes
// behind the last part of its checkpoint, which its hash is the number of, and End comes behind Root.
//
// # Going on
//
// A file may be begun with one checkpoint of a heap and ended with a later one, and so it can be continued after any part, whatever has
// happened meanwhile. For segments are written once, from the front to the back, and no two of a heap
// have the same position: what a file has of a segment is never wrong later. At worst the last checkpoint does not need it,
// and whoever reads the file leaves it out. An earlier checkpoint in the file counts for nothing, whether it is whole or not.
//
// # Checksums
//
// A part that is damaged is found out by its own checksums, and where it is is said. Parts that are missing, or in another order, are
// found out by the hash at the end. Records of segments have checksums of their own, which nobody makes again: a heap that was loaded
// checks what it reads by the same ones as before.
//
// # Files
//
// The format: part (encoding and decoding), reader (that parts follow each other), writer (a file, or the rest of one). The two ends:
// snapshot (a heap becomes parts) and restore (parts become a heap, and checking them without).
package saved
