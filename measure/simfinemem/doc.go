// Package simfinemem reproduces in virtual time what FineMem's authors have
// published of allocation: how long it takes up to 128 threads on 16 compute
// nodes to allocate from one memory node, and how many CMP_SWAPs are in vain.
//
// # The experiment
//
// Every thread allocates blocks of one size, as fast as it can. When it has sixteen, it frees one of them, at random,
// before every further allocation, and there is memory for twice as many blocks as the threads can have. Allocations
// are timed from the application's call to its return. Contestants:
//
//   - FineMem, as package pool/finemem runs it: two layers of bitmaps changed by
//     CMP_SWAP, from the allocation service of each compute node, over the memory node's
//     own worker, package memnode/rebind. First with the paper's order of search, then
//     with ours, and then with a queue pair of the service's for each thread.
//   - Array scan: there is a word for every chunk. A thread looks for free chunks by READs, and claims one by
//     CMP_SWAP. Each thread has a queue pair and a position of its own.
//   - RPC: the memory node's only core manages the chunks, and binds a window for each request.
//   - RPC + registration: the core also registers the memory first.
//
// # Calibration
//
// The NIC, the wire and the node's core are those of package verbs/sim, which were fitted to other experiments (see
// sim.Costs); costs.go has what is added. None of these costs is fitted to a published latency of FineMem's. The
// length of the array scan's READs is fitted, to the scan's published mean: see scanPiece.
//
// The published 43.2 µs are the time of eight requests of 5.4 µs, one after the
// other, and there are eight threads to a compute node: so the allocation service
// takes one request at a time, here as there.
package simfinemem
