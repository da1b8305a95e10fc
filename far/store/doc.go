// Package store says what far memory is to package heap: segments of one size that somebody
// lends, which are written once from the front to the back, read in batches, and given back.
// It has the interfaces and the errors that the heap and its stores share, so that a store needs
// to know nothing of the heap.
//
// Every store is a [Store]. What else it can do it says by further interfaces, for which the heap
// looks: to find another copy of bytes that were wrong ([Mirror]), to outlive the process
// ([Keeper]), to compute where the data is ([Computer], [Finder]).
//
// # Concurrency
//
// The methods of a store and of its segments may be called by any number of goroutines. The writes of one
// segment come in order of their offsets, and perhaps several at a time.
//
// # Stores
//
// [MemStore] is memory of this process, for tests and for programs without a network. Package far/disk has one
// in a file, package far/remote one over a pool of memory nodes, package far/copies one over
// several others.
//
// # Files
//
// store (what every store can do, Mirror and Keeper), compute (Computer and Finder, and what they
// are asked), errors, memory (MemStore).
package store
