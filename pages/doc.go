// Package pages keeps memory in pages of 4 KiB. A Volume is read and written at any offset; the pages in use stay in
// local memory, and the rest lies in far memory. It is for programs that were never written for far memory; package
// nbd serves a Volume as a block device.
//
//	v, err := pages.New(heap, "disk", 16<<30)
//	...
//	err = v.Write(ctx, b, off)
//	err = v.Read(ctx, b, off)
//
// # What a page costs
//
// A page is an entry of a map of the heap (far.ByteMap), under its number. So it is kept, evicted, cleaned and
// checked like everything else in the heap: its checksum is verified whenever it comes back, and a page that is read
// for the first time in a while pushes out no page in use. In far memory a page takes 4144 bytes. Of local memory it
// takes some 16 bytes while it is far, and less than one byte once indexes take a fifth of the budget. A page that
// was never written, was only written with zeros, or was discarded takes nothing. With Config.Compress, a page is
// kept in its compressed form (s2) if that is at least an eighth smaller. Besides, a Volume has one bit for each page
// of every 128 MiB in which any page was ever written.
//
// # Concurrency
//
// A Volume may be used by any number of goroutines. A read of a page while others write to it sees the page before or
// after each of the writes. A read or a write of several pages is not atomic: if two of them overlap, each page sees
// them in one order, but the pages may see them in different orders. Readers take no lock. A writer holds the lock of
// the page's stripe while it waits for local memory and, if it writes only a part of a page, for the rest of the
// page.
package pages
