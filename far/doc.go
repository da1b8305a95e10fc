// Package far lets a Go program keep more data than its memory holds: a
// [Heap] keeps what is used within a local budget and evacuates the rest to a
// [Store], memory that somebody else lends.
//
// A [Ptr] is a remoteable pointer to an object of any type without Go pointers; data structures are made of such
// pointers. [Bytes] is a pointer to a byte string of any size, [Shared] is one of several pointers to the same object
// ([SharedRef] is its form in a far object), and [Run] is many pointers in a row. A [ByteMap] holds byte-string keys
// and values. Data that is local is read at local speed. Data that is far is fetched: exactly the object or entry
// that is wanted, and only once, however many goroutines ask for it (by [ByteMap.GetMany], at most twice).
//
// # Pointers and scopes
//
// An object is dereferenced in a [Scope], and stays where it is until the scope
// is left:
//
//	s := heap.NewScope() // once for every goroutine
//	s.Enter()
//	if v := p.DerefMut(s); v != nil {
//		v.Count++
//	}
//	s.Leave()
//
// Deref, Enter and Leave are inlined, in generic code too, and together take about a nanosecond more than a plain
// pointer. [Heap.Do] does the same with a scope of a pool. [Ptr.Load] and [Ptr.Store] copy the object and need no
// scope.
//
// Deref returns nil if the object cannot be had, and [Scope.Err] says why.
//
// In a scope nobody waits for the evacuator, because the evacuator may be waiting for this very scope. What is
// fetched or made in a scope comes out of a reserve that is kept for scopes, Config.ScopeBytes for each. While the
// reserve is drawn on, further scopes wait in Enter until the evacuator has caught up. If there are too many scopes
// for the reserve, only so many are let in at a time, in turn. So each scope gets its ScopeBytes, in bounded time,
// however many goroutines hold scopes and allocate, and local memory never exceeds its budget. A scope that takes
// more gets it if there is some, and otherwise [ErrScopeFull]. Outside of scopes, New and ByteMap's methods wait.
//
// If the evacuator makes no room for 5 s, or the store fails, Enter lets a scope in without memory of its own. Such a
// scope may use what is local, gets ErrScopeFull for the rest, and does not take what other scopes were promised.
// When far memory is full and nothing that is local has a far copy, far objects can still be read, in the reserve and
// much more slowly. An object that is written there has to stay there. Once such objects have used up the reserve,
// far objects give ErrFull or ErrScopeFull until something is freed.
//
// # Waiting
//
// A call looks at its context only when it has to wait: for a fetch, or for
// local memory while the evacuator catches up. A call that need not wait
// succeeds whatever the context says. With [NoWait] a call that would wait
// returns [ErrWouldBlock] instead, and has changed nothing.
//
// # Iterating and prefetching
//
// All structures are iterated over in one way: All and its like take a [Scope]. The scope's context bounds what they
// wait for, and if the iteration ends early, [Scope.Err] says why. A structure of objects enters the scope, yields
// objects in it, and leaves it; a [Map] yields copies, and its Deref returns one value in place.
//
// Prefetch of a heap, an array, a vector or a map brings the objects or entries that it is given into local memory
// and returns when they are there. It waits within its context, and so must not be called in a scope.
//
// # Budget
//
// Config.Local bounds all the memory that the heap has resident: logs, indexes, words of pointers, and the buffers of
// fetches and evacuation. The bound is strict: writers wait for the evacuator rather than exceed it. [Heap.SetLocal]
// changes it at any time. This memory lies outside the Go heap, where the garbage collector neither scans nor counts
// it; only the nodes of Lists, which count in the budget, lie on the Go heap. Beside these the Go heap holds a few
// words for every segment and every shard, the headers that FetchHeads remembers, the counts of cloned Shareds, and a
// little for every fetch under way.
//
// While it is local, an object takes 16 bytes beside its data, in multiples of 16. It takes 16 or 32 bytes more if it
// was read directly to where it stays, as are objects of 1 KiB and more that are fetched together, and others from 4
// KiB on. Its word takes 8 bytes whether the object is local or far; but it takes less than half a byte if neither
// the object is local nor any of some 500 others that were made at about the same time. An entry of a ByteMap takes
// 20 bytes beside its key and value, and 8 for an expiry, in multiples of 16, and about 16 bytes of index. In far
// memory, an object or an entry takes 32 bytes beside its data, and 8 for an expiry, in multiples of 16.
//
// When the indexes of maps take half of the budget, the words of far entries go far, too, to leaves of some 30
// entries. (On a heap that takes checkpoints, they do when the indexes take a fifth, since a checkpoint has a copy of
// them.) In local memory less than half a byte of such an entry remains: so 16 MiB are enough for ten million small
// entries. Whoever then asks for an entry that has not been used for long waits for two reads of the store, one after
// the other; for one, if there is no such entry, or if the store can look entries up by itself (store.Finder). Values
// of more than 64 KiB keep their 16 bytes of index.
//
// When the words of pointers take a 32nd of the budget, words that nobody uses go far, a page of them at a time.
// Whoever then dereferences one of these pointers waits for one read more. The heap keeps enough of the budget for
// all words to come back, and gives none of that to other indexes or to new words: so there is more room for data,
// but not for more pointers.
//
// If indexes and words of pointers would leave too little of the budget for data all the same, a call that adds an
// entry or a pointer fails with an [ErrMetadataFull], which says what budget would do.
//
// # Loss
//
// When the store loses a segment (because its node died), the entries and objects in it are lost: reading one of them
// gives a [LostError], never other bytes, until the key is set or deleted or the pointer freed. Every entry and
// object carries a CRC32C from evacuation to fetch, which also covers where it lay.
//
// When leaves are lost, nobody knows any more which entries were in them. Then any key that belongs in such a leaf
// and has not been used of late gives a LostError, until it is set or deleted. Len goes on counting the lost entries
// whose words were in leaves, until somebody asks for them.
//
// Of a lost entry no more than 40 bits of its key's hash remain. Another key with the same 40 bits, which hardly ever
// exists, is taken for the lost one.
//
// # How it works
//
// The names are those of AIFM (Ruan et al., OSDI 2020, sections 4 and 5). A map's index is a hash table of words in
// shards, and leaves in far memory for those words that the table has no room for (package index). A word says where
// its entry is, local or far, and how hot. Local entries lie in logs: segments that mutators append to. The evacuator
// empties segments in order of age, CLOCK's order: it keeps hot entries, drops clean ones, which have a far copy, and
// writes the others, batched, to far segments, which are logs, too. A fetched entry keeps its far copy until it is
// overwritten. An entry that is read for the first time in a while is not kept in local memory unless there is room,
// since that would cost the eviction of another entry. The cleaner reclaims far segments of which little lives. The
// janitor gives dead segments back, unless they are soon written to again, accounts for lost segments, and collects
// expired entries.
//
// A value that is longer than an eighth of the evacuator's buffer, or than 64 KiB, is stored in pieces under a
// version of its own, and becomes visible with its head.
//
// Objects of pointers lie in logs of their own, one for every processor and one for objects without temporal
// locality, which take segments from the same pool. The word of a pointer is one off-heap word at an address that
// never changes, not even while the word itself is far (see package objects). So a pointer is as good in a far object
// ([Ref]) as in a local variable. If the object is local, was used of late and is not about to be moved, the word is
// its address. Otherwise the word has its top bit set, which is all that the fast path looks at. The object's header
// says whether it has an equal far copy. Objects that were evacuated one after another lie side by side in far
// memory, and are read together when they are prefetched.
//
// A pass of the evacuator (section 5.3) marks the words of the objects in some segments and waits until the scopes
// that were open before have been left. Mutators need no fences for that: membarrier(2) takes their place. Whoever
// meets a mark during that wait uses the object where it is and pins it, as with hazard pointers; an object that is
// still pinned at the end stays. From then on nobody holds the address of a marked object. Whoever now meets a mark
// copies the object to another segment, and races for the word by CAS with the evacuator, which keeps objects that
// were used of late, drops those that have an equal far copy, and writes the rest. (In the paper, mutators copy
// objects at once. Here, that would copy an object halfway if somebody was writing to it in an older scope.) A
// mutator never waits for any of that.
//
// # Concurrency
//
// All methods of Heap, Class, ByteMap and Bytes may be called by any number of goroutines, and so may those of
// pointers; a Scope has one user at a time. Each call on a ByteMap is atomic. The bytes of an object are the
// program's, and need its locks. Enter a scope before you take a lock that others take in a scope, since entering may
// wait.
//
// No lock of the heap's is held while the store works. Heap.mu, which guards the list of structures, is a leaf of the
// lock order. The locks of maps are in package bytemap, those of objects in package objects, and those of the memory,
// below all of them, in package heap.
//
// # Far bytes
//
// Far data is in the format of package record, which can read it without the heap: every record says to which map or
// class it belongs, what its key or number is, and by its version which of two records is the right one. To use the
// data again takes more than that: hashes are seeded by the heap that wrote them. A heap whose store is a
// store.Keeper keeps that, too. [Open] opens it again as it was at the last checkpoint, with its maps, and with those
// classes of objects, arrays and vectors that were made to be kept. What comes back is checked as if anybody might
// have written it, and refused if it was written by another heap, elsewhere or at another time.
//
// # Files
//
// Package heap has the memory itself, and knows no data structure: logs, far segments, evacuator, cleaner, scopes.
// The owners of what is in it are package objects (objects of pointers) and package bytemap (entries of maps); file
// host knows both. In far memory all are records of package record.
//
// The heap: heap, api, errors, host, scopes, registry (the heap of a pointer), keep (checkpoints, opening a heap
// again, and snapshots for package saved to copy to a file), kept (what checkpoints keep of classes, arrays and
// vectors).
//
// Maps: typedmap. Pointers: ptr, class, shared, bytes. Structures: structure has what they share; then array, vector,
// list, queue (and stack). Package ahead prefetches their objects. compute looks through structures where their
// elements are, and gather brings, copies and shuffles some of their elements; package look does the work of both.
// The ordered map, package ordered, is built on the exported parts of this package.
//
// To look at a heap: stats, explain; prom is a package of its own.
package far
