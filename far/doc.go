// Package far lets a Go program keep more data than its memory holds: a
// [Heap] keeps what is used within a local budget and evacuates the rest to a
// [Store], memory that somebody else lends.
//
// A [Ptr] is a remoteable pointer to an object of any type without Go pointers,
// and is what data structures are made of; [Bytes] is one to a byte string of
// any size, [Shared] one of several to the same object (and [SharedRef] such a one in a far object), [Run] many in a row. A
// [ByteMap] holds byte-string keys and values. What is local is read at local
// speed; what is not is fetched, exactly that object or entry, and that once,
// however many goroutines ask for it (by [ByteMap.GetMany], twice).
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
// Deref, Enter and Leave are inlined, in generic code too, and together take
// about a nanosecond more than a plain pointer. [Heap.Do] does the same with a
// scope of a pool, and [Ptr.Load] and [Ptr.Store] copy the object and take none.
//
// Deref returns nil if the object cannot be had, and [Scope.Err] says why.
//
// In a scope nobody waits for the evacuator: it may be the scope that the
// evacuator waits for. What is fetched or made in a scope comes out of a reserve
// that is kept for scopes, Config.ScopeBytes for each of them; when the reserve
// is drawn on, further scopes wait in Enter until the evacuator has caught up, and
// where there are too many scopes for the reserve, only so many are let in at
// a time, in turn. So however many goroutines hold scopes and allocate, each of
// them gets its ScopeBytes, in bounded time, and local memory never exceeds its
// budget. A scope that takes more gets it if there is some, and otherwise
// [ErrScopeFull]. Outside of scopes, New and ByteMap's methods wait. Where the
// evacuator makes no room for 5 s, or the store fails, Enter lets a scope in
// without memory of its own: it may use what is local and get ErrScopeFull for the
// rest, and does not take what others were promised. When far memory is full and
// all that is local has no far copy, what is far can still be read, in the reserve,
// much slower; what is written there stays, and once that has used up the reserve
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
// All structures are iterated over in one way: All and its like take a [Scope], which
// bounds by its context what they wait for and, if the iteration ends early, says why
// in [Scope.Err]. A structure of objects yields them in the scope, which it enters and
// leaves; a [Map] yields copies, and Deref of a map returns one value in place.
//
// Prefetch of a heap, an array, a vector or a map brings what it is given into local
// memory and returns when it is there. It waits within its context, and so must
// not be called in a scope.
//
// # Budget
//
// Config.Local bounds all the memory that the heap has resident: logs,
// indexes, words of pointers, and the buffers of fetches and evacuation. It is
// held strictly; writers wait for the evacuator rather than exceed it.
// [Heap.SetLocal] changes it at any time. All of it lies outside
// the Go heap, where the garbage collector neither scans nor counts it; what
// the Go heap holds is a few words for every segment and every shard, the
// headers that FetchHeads remembers, and a little for every fetch under way.
//
// An object takes 16 bytes beside its data, in multiples of 16, while it is
// local, 16 or 32 more if it was read to where it stays, as objects of a kilobyte and more
// are that come together and others from 4 KiB on, and 8 bytes for its word whether it is local or far; less than half a
// byte, where neither it nor any of some 500 others, made at about the same time, is local. An
// entry of a ByteMap takes 20 bytes beside its key and value, and 8 for an expiry, in multiples of 16,
// and about 16 bytes of index. In far memory either takes 32 bytes
// beside its data, and the expiry, in multiples of 16.
//
// When the indexes of maps take half of the budget, or a fifth where checkpoints have a copy of them, what they have of
// far entries goes far, too, to leaves of some 30 entries, and less than half a byte of an entry remains: so 16 MiB are enough for ten million
// small entries. Whoever then asks for an entry that has not been used for long waits for two reads of the store, one
// after the other, and for one if there is no such entry. Values of more than 64 KiB keep their 16 bytes.
//
// When the words of pointers take a 32nd of the budget, those that nobody uses go far, a page of them at a time, and
// whoever then dereferences one of these pointers waits for a read more. Room for all words to come back is not
// given to other indexes: so there is more room for data, and not for more pointers.
//
// Where indexes and words of pointers would
// leave too little of the budget for data all the same, a call that adds an entry fails with an
// [ErrMetadataFull] that says what budget would do.
//
// # Loss
//
// When the store loses a segment (its node died), the entries and objects in it
// are lost: reading one gives a [LostError], never other bytes, until the key is
// set or deleted or the pointer freed. Every entry and object carries a CRC32C
// from evacuation to fetch, which covers where it lay.
//
// When leaves are lost, nobody knows any more what was in them: then any key of their
// ranges that has not been used of late gives a LostError, until it is set or deleted. Len goes on counting lost entries
// of which the words are in leaves, until somebody asks for them.
//
// Of a lost entry no more than 40 bits of its key's hash remain. Another key
// with the same ones, of which there is hardly ever one, is taken for it.
//
// # How it works
//
// The names are those of AIFM (Ruan et al., OSDI 2020, sections 4 and 5). A
// map's index is a hash table of words in shards, and leaves in far memory for those words that
// there is no room for (package index). A word says where its entry
// is, local or far, and how hot. Local entries lie in logs: segments that
// mutators append to. The evacuator empties segments in order of age, CLOCK's
// order: it keeps hot entries, drops clean ones, which have a far copy, and
// writes the others, batched, to far segments, which are logs, too. A fetched
// entry keeps its far copy until it is overwritten. An entry that is read for the
// first time in a while is not kept in local memory, unless there is room: it would
// cost the eviction of another. The cleaner reclaims far segments of which little
// lives. The janitor gives dead segments back, unless they are soon written to
// again, accounts for lost ones, and collects what has expired.
//
// A value that is longer than an eighth of the evacuator's buffer, at most
// 64 KiB, is stored in pieces under a version of its own, and becomes visible
// with its head.
//
// Objects of pointers lie in logs of their own, one for every processor and one
// for what has no temporal locality, out of the same pool of segments. The
// word of a pointer is one off-heap word, which never moves (nor does it change its address when it is far itself, see package objects), so that a pointer is
// as good in a far object ([Ref]) as in a local variable: the address of the
// object if it is local, was used of late and is left alone, and otherwise
// something with its top bit set, which is all that the fast path looks
// at. Whether an object has an equal far copy, its header says. Objects that were
// evacuated one after another lie side by side in far memory, and are read
// together when they are prefetched.
//
// A pass of the evacuator (section 5.3) marks the words of what lies in some
// segments and waits until the scopes that were open before have been left. It
// need not tell the mutators to use fences: membarrier(2) does that for
// them. Whoever meets a mark while it waits uses the object where it is and
// pins it, as with hazard pointers; what is pinned in the end stays. From then on
// nobody holds the address of a marked object, and whoever meets a mark copies
// the object to another segment and races for the word by CAS with the evacuator,
// which keeps what was used of late, drops what has an equal far copy, and
// writes the rest. (In the paper mutators copy objects at once. An object that
// somebody is writing to in an older scope would be copied halfway.)
// A mutator never waits for any of that.
//
// # Concurrency
//
// All methods of Heap, Class, ByteMap and Bytes may be called by any number of
// goroutines, and so may those of pointers; a Scope has one user at a time. Each
// call on a ByteMap is atomic. The bytes of an object are the program's, and need
// its locks. Enter a scope before taking a lock that others take in a scope:
// entering may wait.
//
// No lock of the heap's is held while the store works. Heap.mu, of structures' statistics, is a leaf; the locks of maps are in
// package bytemap, those of objects in package objects, and those of the memory, below all of them, in package heap.
//
// # Far bytes
//
// What is far is in the format of package record, which can read it without the heap: every record says
// of which map or class it is, its key or number, and, by its version, which of two is the right one.
// That is not all that it takes to use it again: hashes are seeded by the heap that wrote them.
// A heap whose store is a heap.Keeper keeps that, too, and is opened again by [Open] as it was at the last checkpoint, with its maps, and with
// those classes of objects, arrays and vectors that were made to be kept.
// What comes back is checked as if anybody had written it, and refused if it was written by another heap,
// elsewhere or at another time.
//
// # Files
//
// Package heap has the memory itself, and knows no data structure: logs, far segments,
// evacuator, cleaner, scopes. The owners of what is in it are package objects (objects of pointers)
// and package bytemap (entries of maps); host knows both. In far memory all are records of
// package record.
//
// The heap: heap, api, errors, host, scopes, registry (the heap of a pointer),
// keep (checkpoints, opening a heap again, and what package saved copies to a file), kept (what is kept of classes, arrays and vectors).
//
// Maps: typedmap. Pointers: ptr, class, shared, bytes. Structures: structure has what they share, then array, vector, list, queue
// (and stack); package ahead brings their objects before they are used. Looking through structures where their elements are: compute, and
// bringing, copying and shuffling some of them: gather; package look does it. The ordered map, package ordered, stands on what programs use.
//
// To look at a heap: stats, explain; prom is a package of its own.
package far
