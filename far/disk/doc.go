// Package disk is far memory in a file: a store.Store whose segments are pieces of one file in a directory, on a
// disk that is faster than fetching what a heap keeps there from anywhere else. It is a
// store.Keeper, too: a heap that was made by far.Open is there again when the directory is opened the next time, after a power
// cut as well as after the end of a process.
//
// It is also, as Copies, a disk that has a copy of what lies at nodes (package copies), in a directory of its own.
//
// # Files
//
//	data  the segments, side by side; those that nobody has borrowed take no room on the disk, but for a few (ready.go)
//	root  the root of the heap, and the size of segments; replaced as a whole
//	lock  is locked as long as a process has the directory open
//
// # Reading and writing
//
// Data is read and written past the page cache (O_DIRECT) where the file system can, since the heap's local memory
// is its cache. The disk reads and writes blocks of 4 KiB; a heap, records of any length. So reads go through
// buffers of the store's, a bounded number of them, in a bounded number of goroutines; and a block that is
// written in part is read first, unless it is known: the last blocks of the last few writes are, since a log is written on
// where it ended, and so is that nothing lies behind what was ever written to a segment.
//
// A write is in the disk's hands when it has returned, and safe from a power cut when the root that follows it
// is kept, before which the disk is told to flush.
//
// # Failures
//
// A full disk is store.ErrStoreFull: room for a segment is reserved when it is borrowed, so later writes do not
// run out of it. What the disk cannot read is an error for who asks, each time.
package disk
