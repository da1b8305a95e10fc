// Package ahead fetches objects of far data structures before they are used: the prefetching of a heap.
//
// A structure tells the [Engine] of uses that are the first in a while. A [Prefetcher], one for every
// scope and structure, guesses from them what will be used next, and a few goroutines of the heap fetch that. How
// much may be in flight is measured. [Engine.Enter] is how structures whose objects are next to each other come by one, with
// all of that; where a goroutine has to wait for an object anyway, it fetches those that follow, too.
//
// # Concurrency
//
// All methods of an Engine may be called by any number of goroutines. It has no locks; a structure's locks must not be held in
// Access, since a Prefetcher may be the program's. It imports nothing of package far, which has the structures.
//
// # Files
//
// stride: what guesses. structure: what is known of a structure, and how its objects are used; engine: the goroutines, and
// what they measure.
package ahead
