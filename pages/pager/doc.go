// Package pager serves the page faults of other processes: their memory is larger than what
// is of it in local memory, and the rest is a volume of pages in far memory.
//
// A client (package region, or polder_pages in Python) makes a memfd, maps it, registers the
// mapping with userfaultfd(2), and passes both to the pager over a Unix socket. An access to
// a page that is not there, or the first write to one that was brought, waits until the pager
// has heard of it and has put the page there, or has ended its protection.
//
// # Frames
//
// Of a mapping so many pages may be in the memfd at a time as the client has asked for: its
// frames. Those of a loop that is too large, and what is used often beside it, stay in part
// (policy.go says how); a page that has been written to or pinned since it was looked at last is
// spared once; reads of a page that is there are not seen. Who writes to a dirty page that is being
// evicted waits until that is done, and keeps it. A page that is clean is only punched out; those
// that are dirty are protected and read in rows. Evicting begins while a 32nd of the
// frames, and at most 128, is still free, so that faults seldom wait for it.
//
// Faults whose distance stays the same are a stream, and as long as it goes on, 4 to 128 pages, but no more than a 32nd of the
// frames, are read ahead of it. Who reads ahead and finds too few free frames drops clean pages itself.
//
// What a page costs is above all system calls, so they are for many pages in a row: to place those that were read ahead, to drop
// those that are clean, to protect those that are dirty. So that there are rows, up to 16 pages that were kept side by side go
// together.
//
// # Names
//
// What is in a mapping with a name stays in its volume when the client has gone: what it had in its
// memory is written then. If the heap is kept, and so the volume, Sync and the end of a client take a
// checkpoint, and the table that the client has says which pages it has as they were at last: those
// the next pager can give that client; the others are lost, and are made so in the volume, too,
// since it has older ones. A random number, which is kept with the volume and in the
// table, says whether the two belong together.
//
// # What is lost
//
// An access to a page that is lost, cannot be read within Config.Timeout, or for which nothing
// can be evicted since far memory is full, fails with SIGBUS from then on: it never sees other
// bytes. A mapping ends with its connection or with its client's process, and gives everything
// back. The client has the memfd and the userfaultfd, so that nobody sees zeros when the pager
// dies: it waits for another one, which takes over what is in the memfd. What was not, is
// lost, unless it was zeros.
//
// # Trust
//
// Who can connect to the socket may have Config's memory, but no more mappings, bytes or
// frames. A client can put more pages into its memfd than it has frames, by another mapping
// of it: that is its own memory, and its control group's.
//
// # Concurrency
//
// Of each mapping one goroutine reads faults, and serves those whose page is local to the
// pager; workers do the others; one evicts. A mapping's lock is not held while pages are placed and dropped, nor while far memory
// is waited for: frames that are loading or evicting are the goroutine's that does it. An access to one of them is noted in the
// frame, and whoever has it wakes who waits when that is done. A fault allocates nothing.
package pager
