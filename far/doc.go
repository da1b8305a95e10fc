// Package far lets a Go program keep more data than its memory holds: a
// [Heap] keeps what is used within a local budget and evacuates the rest to a
// [Store], memory that somebody else lends.
//
// A [ByteMap] on a heap holds byte-string keys and values. What is local is read
// at local speed; what is not is fetched, exactly that entry, once, however
// many goroutines ask for it.
//
// # Waiting
//
// A call looks at its context only when it has to wait: for a fetch, or for
// local memory while the evacuator catches up. A call that need not wait
// succeeds whatever the context says. With [NoWait] a call that would wait
// returns [ErrWouldBlock] instead, and has changed nothing.
//
// # Budget
//
// Config.Local bounds all the memory that the heap has resident: logs,
// indexes, and the buffers of fetches and evacuation. It is held strictly;
// writers wait for the evacuator rather than exceed it. All of it lies outside
// the Go heap, where the garbage collector neither scans nor counts it; what
// the Go heap holds is a few words for every segment and every shard, the
// headers that FetchHeads remembers, and a little for every fetch under way.
//
// An entry takes 36 bytes beside its key and value, in multiples of 16, and
// about 16 bytes of index whether it is local or far. The index grows at the
// expense of the logs; where it would leave too little for them, a call that
// adds an entry fails with an [ErrFull] that says what budget would do.
//
// # Loss
//
// When the store loses a segment (its node died), the entries in it are lost:
// reading one gives a [LostError], never other bytes, until the key is set or
// deleted. Every entry carries a CRC32C from evacuation to fetch.
//
// Of a lost entry only 40 bits or more of its key's hash remain. Another key
// with the same ones, of which there is hardly ever one, is taken for it.
//
// # How it works
//
// The names are those of AIFM (Ruan et al., OSDI 2020, sections 4 and 5). A
// map's index is a hash table of words in shards. A word says where its entry
// is, local or far, and how hot. Local entries lie in logs: segments that
// mutators append to. The evacuator empties segments in order of age, CLOCK's
// order: it keeps hot entries, drops clean ones, which have a far copy, and
// writes the others, batched, to far segments, which are logs, too. A fetched
// entry keeps its far copy until it is overwritten. The cleaner reclaims far
// segments of which little lives. The janitor gives dead segments back,
// accounts for lost ones, and collects what has expired.
//
// A value that is longer than an eighth of the evacuator's buffer, at most
// 64 KiB, is stored in pieces under a version of its own, and becomes visible
// with its head.
//
// # Concurrency
//
// All methods of Heap and ByteMap may be called by any number of goroutines.
// Each call on a ByteMap is atomic.
//
// Whatever looks at an entry or moves it holds its shard's lock, for no longer
// than it takes to copy one entry, and never while the store works. Whoever
// waits for the store has the address of what it reads pinned, and looks at
// the index again afterwards. Lock order:
//
//	ByteMap.clearing
//	  shard.mu
//	    openLog.mu
//	      logs.mu
//	    buffers.mu
//	    Heap.mu
//	farLog.mu
//
// # Far bytes
//
// The layout of an entry, here and in far memory, is that of the type entry in
// this package's source. It is no interchange format: hashes in it are seeded
// by the heap that wrote it, and nobody else reads it. What comes back is
// checked as if anybody had written it.
package far
