// Package disk is far memory in a file: a store.Store whose segments are pieces of one file in a directory. The disk
// should be one from which a heap reads faster than from anywhere else. The store is a store.Keeper, too: a heap that
// was made by far.Open is there again when the directory is opened the next time, after a power cut as well as after
// the end of a process.
//
// As [Copies] it is a disk that has a copy of what lies at nodes (package copies), in a directory of its own.
//
// # Files
//
//	data  the segments, side by side; unborrowed slots take no room on the disk, but for a few (ready.go)
//	root  the root of the heap, and the size of segments; replaced as a whole
//	lock  is locked as long as a process has the directory open
//
// # Reading and writing
//
// Data is read and written past the page cache (O_DIRECT) where the file system can, since the heap's local memory is
// its cache. The disk reads and writes blocks of 4 KiB; a heap reads and writes records of any length. So reads go
// through buffers of the store's, a bounded number of them, in a bounded number of goroutines. A block that is
// written in part is read first, unless its contents are known. The store remembers the block in which the last write
// to a segment has ended, for the last few segments, since a log is continued where it ended. And it knows that
// nothing lies behind what was ever written to a segment.
//
// When a write has returned, the disk has the data. The data is safe from a power cut once the next root is kept,
// since the disk is told to flush before that; with Config.Sync it is safe when the write has returned.
//
// # Failures
//
// A full disk is store.ErrStoreFull: room for a segment is reserved when it is borrowed, so later writes do not run
// out of it. When the disk cannot read something, whoever asks gets an error, each time. When the disk does not
// answer, a write to Copies can be given up; it may still land, but neither after a later write to the segment nor
// when the slot has been lent again.
package disk
