// Package pager serves the page faults of other processes. The memory of such a process is a volume of pages in far
// memory, of which only a part is in local memory.
//
// A client (package region, or polder_pages in Python) makes a memfd, maps it, registers the mapping with
// userfaultfd(2), and passes both to the pager over a Unix socket. An access to a page that is not there, or the
// first write to a page that was brought, waits until the pager has heard of it and has put the page there, or has
// ended its protection.
//
// # Frames
//
// A mapping may have as many pages in the memfd at a time as its client has asked for: its frames. policy.go says
// which pages stay when a client goes round a loop that is larger than its frames, or scans memory beside pages that
// it uses often. A page that has been written to or pinned since the pager last considered it is spared once; the
// pager does not see reads of a page that is there. Clean pages are evicted by punching them out. Dirty pages are
// write-protected first and read in rows; a client that writes to one while it is being evicted waits, and keeps the
// page. Evicting begins when a 32nd of the frames, and at most 128, is still free, so that faults seldom wait for it.
//
// Faults at a constant distance are a stream. As long as it goes on, 4 to 128 pages, but no more than a 32nd of the
// frames, are read ahead of it. A worker that reads ahead and finds too few free frames drops clean pages itself.
//
// Most of what a page costs is system calls, so one call handles many pages in a row: to place pages that were read
// ahead, to drop clean ones, to protect dirty ones. To make rows likely, up to 16 adjacent kept pages are evicted
// together.
//
// # Names
//
// The contents of a mapping with a name stay in its volume when the client has gone: what it had in its memory is
// written to the volume then. If the heap is kept, and so the volume, Sync and the end of a client take a checkpoint.
// The client has a table that says which of its pages the last checkpoint has in their latest version. The next pager
// can give that client those pages. The others are lost unless they are in the memfd, and the pager marks them as
// lost in the volume, which has older versions of them. A random number, which is kept with the volume and in the
// table, says whether the two belong together.
//
// # What is lost
//
// Accesses to a page fail with SIGBUS from then on if the page is lost, cannot be read within Config.Timeout, or
// finds no frame because far memory is full and nothing can be evicted: they never see other bytes. A mapping ends
// with its connection or with its client's process, and gives everything back. The client itself holds the memfd and
// the userfaultfd, so when the pager dies nobody sees zeros: the client waits for another pager, which takes over
// what is in the memfd. Pages that were not in it are lost, unless they were zeros.
//
// # Trust
//
// Anybody who can connect to the socket may have Config's memory, but no more mappings, bytes or frames. A client can
// put more pages into its memfd than it has frames, through another mapping of it: that memory is its own, and is
// charged to its control group.
//
// # Concurrency
//
// Each mapping has one goroutine that reads faults and serves those whose page is local to the pager, workers that
// serve the other faults, and one goroutine that evicts. A mapping's lock is not held while pages are placed or
// dropped, nor while far memory is waited for: a frame that is loading or evicting belongs to the goroutine that does
// it. An access to such a frame is noted in the frame, and its goroutine wakes the access when it is done. A fault
// allocates nothing.
package pager
