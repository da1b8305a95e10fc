// Package pages keeps memory in pages of 4 KiB: a Volume, which is read and written at
// any offset, of which what is used stays in local memory and the rest lies in far memory.
// It is for programs that were never written for far memory; package nbd serves a Volume
// as a block device.
//
//	v, err := pages.New(heap, "disk", 16<<30)
//	...
//	err = v.Write(ctx, b, off)
//	err = v.Read(ctx, b, off)
//
// # What a page costs
//
// A page is an entry of a map of the heap (far.ByteMap) under its number, so that it is
// kept, evicted, cleaned and checked as everything else in the heap is: its checksum is
// checked whenever it comes back, and what is read for the first time in a while pushes
// out nothing that is used. In far memory it takes 4144 bytes; of local memory, while it is
// far, some 16 bytes, and less than one once indexes take a fifth of the budget. A page
// that was never written, or only with zeros, takes nothing, and neither does one that was
// discarded. With Config.Compress a page whose compressed form (s2) is an eighth smaller is kept as that. Beside that a Volume has one bit for each page of every 128 MiB of which some
// page was ever written.
//
// # Concurrency
//
// A Volume may be used by any number of goroutines. Whoever reads a page while others
// write to it sees it as it was before one of the writes, or after it. A read or a write
// of several pages is no unit: of those that overlap each page is in one order, but not the
// same. Readers take no lock. Who writes holds the lock of the page's stripe, and waits
// with it for local memory, and if it writes a part of a page for the rest of it.
package pages
