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
// spared once; reads of a page that is there are not seen. Who writes to a page that is being
// evicted waits until that is done, and keeps it. A page that is clean is only punched out; those
// that are dirty are protected, read and written in rows. Evicting begins while an eighth of the
// frames, and at most 128, is still free, so that faults seldom wait for it.
//
// Faults whose distance stays the same are a stream, and as long as it goes on, 4 to 32 pages
// are read ahead of it. What is read ahead takes no more than half of the frames kept free.
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
// pager; workers do the others; one evicts. A mapping's lock is held over the system calls
// that change its pages, and never while far memory is waited for. A fault allocates nothing.
package pager
