// Package pager serves the page faults of other processes. Their memory is larger than the part of it that is local;
// the rest lies in a volume of pages in far memory.
//
// A client (package region, or polder_pages in Python) makes a memfd, maps it, registers the mapping with
// userfaultfd(2), and passes both to the pager over a Unix socket. An access to a page that is not there, or the
// first write to one that was brought, waits until the pager has heard of it and has put the page there, or has ended
// its protection.
//
// # Frames
//
// A mapping has as many frames as its client has asked for: so many of its pages may be in the memfd at a time. Some
// pages of a loop that is too large stay, and pages that are used often beside the loop (policy.go says how). A page
// that has been written to or pinned since it was looked at last is spared once; the pager does not see reads of
// resident pages. A client that writes to a dirty page while it is being evicted waits until that is done, and keeps
// the page. A clean page is only punched out; dirty pages are protected, and adjacent ones read at once. Evicting
// begins while a 32nd of the frames, and at most 128, is still free, so that faults seldom wait for it.
//
// Faults whose distance stays the same are a stream. As long as it goes on, 4 to 128 pages, but no more than a 32nd
// of the frames, are read ahead of it. A reader ahead that finds too few free frames drops clean pages itself.
//
// Most of the cost of a page is system calls, so each call is for many adjacent pages: it places pages that were read
// ahead, drops clean ones, or protects dirty ones. To have such rows of pages, up to 16 kept pages that lie side by
// side are evicted together.
//
// # Names
//
// The contents of a mapping with a name stay in its volume when the client has gone: what is in its memory is written
// to the volume then. If the heap, and so the volume, is kept, Sync and the end of a client take a checkpoint. The
// client's table says which pages the last checkpoint has as they were last: the next pager can give these to the
// client. The other pages that the pager had are lost. The next pager makes them lost in the volume, too, since the
// volume has older ones. A random number, which is kept with the volume and in the table, says whether the two belong
// together.
//
// # What is lost
//
// An access to a page that is lost, that cannot be read within Config.Timeout, or for which nothing can be evicted
// since far memory is full, fails with SIGBUS from then on: the client never sees other bytes. A mapping ends with
// its connection or with its client's process, and gives everything back. When the pager dies, nobody sees zeros,
// since the client has the memfd and the userfaultfd: it waits for another pager, which takes over what is in the
// memfd. All other pages are lost, unless they were zeros or, with a name, a checkpoint has them.
//
// # Trust
//
// Whoever can connect to the socket may have what Config allows, but no more mappings, bytes or frames. A client can
// put more pages into its memfd than it has frames, by mapping the memfd once more: that is its own memory, and its
// control group's.
//
// # Concurrency
//
// For each mapping one goroutine reads faults, and serves those whose page is local to the pager, or comes from far
// memory sooner than another thread could be woken (prompt.go); workers serve the others; one goroutine evicts. A mapping's lock is not held while pages are placed and dropped, nor while far memory
// is waited for: frames that are loading or evicting belong to the goroutine that loads or evicts them. An access to
// such a frame is noted in the frame, and that goroutine wakes the access when it is done. A fault allocates nothing.
package pager
