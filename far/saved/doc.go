// Package saved is a heap in a file: what far memory and the last checkpoint of a heap had at one moment, as polder
// heap save writes it and polder heap load reads it. A [Snapshot], which far.Heap.Snapshot takes, is read from a heap
// that goes on meanwhile. [Restore] makes a heap of what was read, which far.Open then finds. Between the two is the
// format, which this package encodes, decodes and checks; what it decodes may be anything.
//
// Everything has one user, and no locks of its own. A Snapshot takes locks of package farlog while it pins what it
// refers to, and while it lets go of that.
//
// A file is a magic number of 8 bytes, with the version of the format in the lowest byte, and parts behind each
// other. Everything is little-endian. A part is a header of 32 bytes and a body:
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
// Start comes first, and once. The parts of one segment, and those of one checkpoint, are in order; other parts may
// lie between them. Root comes behind the last part of its checkpoint, whose number is the first 8 bytes of its hash.
// End comes behind Root.
//
// # Going on
//
// A file may begin with one checkpoint of a heap and end with a later one. So it can be continued after any part,
// whatever has happened to the heap meanwhile: segments are written once, from the front to the back, and no two
// segments of a heap have the same position, so what a file has of a segment never becomes wrong. At worst the last
// checkpoint does not need the segment, and whoever reads the file leaves it out. Earlier checkpoints in the file
// count for nothing, whether they are whole or not.
//
// # Checksums
//
// A damaged part is found out by its own checksums, and the error says where it is. Parts that are missing, or in
// another order, are found out by the hash at the end. Records in segments have checksums of their own, which are
// never made anew: a heap that was loaded checks what it reads by the same checksums as before.
//
// # Files
//
// The format: part (encoding and decoding), reader (checks that parts follow each other), writer (a file, or the rest
// of one). The two ends: snapshot (turns a heap into parts) and restore (turns parts into a heap, or only checks
// them).
package saved
