// Package ahead fetches objects of far data structures before they are used: the prefetching of a heap.
//
// A structure tells the [Engine] when an object is used for the first time in a while. A [Prefetcher], one for every
// scope and structure, guesses from that which objects will be used next, and a few goroutines of the heap fetch
// them. How much may be in flight is measured. Structures whose objects are next to each other use [Engine.Enter] to
// get at an object: it does all of that, and where a goroutine has to wait for an object anyway, it fetches the
// objects that follow, too.
//
// # Concurrency
//
// All methods of an Engine may be called by any number of goroutines. It has no locks. Whoever calls Access must not
// hold a lock of a structure, since a Prefetcher may be the program's. The package imports nothing of package far,
// which has the structures.
//
// # Files
//
// stride: the Prefetcher. structure: what is known of a structure, and how its objects are used. engine: the
// goroutines, and what they measure.
package ahead
