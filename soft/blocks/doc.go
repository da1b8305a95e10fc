// Package blocks is a page cache for files (section 4.4 of the Midas paper): blocks of files,
// kept in soft memory under the file's identity and the block's number. [Cache.FS] and
// [Cache.ReaderAt] read through it: blocks that are missing are read from the file, several
// that follow each other at once, and each of them once, however many ask.
//
// FS says what becomes of a file that changes. What a ReaderAt reads must not change.
//
// # Concurrency
//
// A [Cache], what it opens, and a [ReaderAt] may be used by any number of goroutines. There is no lock
// beside those of soft.Map and of the reads that are under way.
package blocks
