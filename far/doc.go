// Package far lets a Go program keep more data than its memory holds: a
// [Heap] keeps what is used within a local budget and evacuates the rest to a
// [Store], memory that somebody else lends.
//
// A [Map] on a heap holds byte-string keys and values. What is local is read
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
// writers wait for the evacuator rather than exceed it.
//
// # Loss
//
// When the store loses a segment (its node died), the entries in it are lost:
// reading one gives a [LostError], never other bytes, until the key is set or
// deleted. Every entry carries a CRC32C from evacuation to fetch.
//
// # Concurrency
//
// All methods of Heap and Map may be called by any number of goroutines.
// Each call on a Map is atomic.
package far
