// Package pages keeps memory in pages of 4 KiB: a Volume, which is read and written at any offset. The pages in use
// stay in local memory, and the rest lies in far memory. It is for programs that were never written for far memory;
// package nbd serves a Volume as a block device.
//
//	v, err := pages.New(heap, "disk", 16<<30)
//	...
//	err = v.Write(ctx, b, off)
//	err = v.Read(ctx, b, off)
//
// # What a page costs
//
// A page is an entry of a map of the heap (far.ByteMap), under its number, so it is kept, evicted, cleaned and
// checked as everything else in the heap is: its checksum is checked whenever it comes back, and pages that are read
// for the first time in a while push out nothing that is in use. In far memory a page takes 4144 bytes. In local
// memory, while it is far, it takes some 16 bytes, and less than one once indexes take a fifth of the budget. A page
// that was never written, was written with zeros only, or was discarded takes nothing. With Config.Compress a page is
// kept compressed (s2) if that makes it an eighth smaller. In addition a Volume has one bit for each page of every
// 128 MiB in which some page was ever written.
//
// # Concurrency
//
// A Volume may be used by any number of goroutines. A page that is read while others write to it reads as it was
// before one of the writes, or after it. Reads and writes of several pages are not atomic: overlapping ones are
// ordered page by page, and the order may differ from page to page. Readers take no lock. A writer holds the lock of
// the page's stripe, also while it waits for local memory and, if it writes part of a page, for the rest of the page.
package pages
