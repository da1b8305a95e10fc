// Package component runs active components at a memory node: AIFM's remote
// devices (section 4.2.4). A client constructs objects of the components that
// the node's program has been compiled with, and reads, writes, deletes and
// computes in them where the data is: a sum moves 32 bytes. Polder comes with one, far/remote/scan.
//
// A program that lends memory says in main, before anything else, which
// components it has:
//
//	component.Main(component.Set{scan.Name: scan.Component})
//
// Main returns, except in processes that the node starts for its clients'
// objects: these are the same program again. Config.Components of package
// memnode then sets how much memory they may have.
//
// # Isolation
//
// There are two places for a client's objects:
//
//   - A process of their own, the worker, which the node starts when the client
//     constructs the first one. Nothing of the node's memory, and of other
//     clients', is mapped there. All components that a user has written belong
//     there, unless he promises what Bounded does.
//   - The node's process, for components that are Bounded. They are called by the
//     goroutine that receives the client's messages, since two switches between
//     processes cost several times what one-sided reads do. What the process boundary is for, these do themselves: they are Go
//     that checks its bounds, so that they reach no memory but their own; their
//     memory is the Env's; every loop has an end that does not depend on what they
//     are given. One that breaks the promise and loops keeps its client's own
//     connection busy, and a CPU.
//
// What can go wrong, and whom it harms:
//
//   - A request that makes no sense is refused, by the node or by the component.
//   - A component that panics loses the object that was called. Its other
//     objects go on. So it is with one that is Bounded.
//   - A component in a worker that runs for longer than Config.Time is ended with its
//     worker, and so is one that overflows its stack or uses more memory of the
//     Go heap than it may. The client's objects are lost then: requests for them
//     fail, and the next one that is constructed is in a new worker. Those
//     of components that are Bounded go on.
//   - Other clients notice none of that, nor does the lending of memory.
//
// Objects are as lasting as the client's session: they outlive its connection
// by the grace period, and end with it. They end with the node, too. One that is
// constructed when nobody waits for it any more, or has no connection to be told,
// is destructed at once; only one whose reply was lost with the connection
// stays until the session ends.
//
// # Memory
//
// Objects take memory from their [Env], which refuses what goes beyond
// Config.ClientMemory, less what messages take. The Go heap of a worker is kept
// from growing beyond that and 64 MiB by the kernel (RLIMIT_DATA). A client that
// has constructed an object counts with all of ClientMemory against Config.Memory,
// so that it is refused early and never short of what it was promised. Objects in
// the worker and in the node count against one limit, with a counter in memory
// that both processes share; what a worker had is given back when it ends.
//
// # Wire and transport
//
// Package wire has the messages. They arrive on a queue pair of their own, and
// land in memory that the node shares with the worker: 32 buffers for requests
// and 40 for replies, and a page of flags before them. Between node and worker
// goes a record of 8 bytes, buffers and length, over a Unix socket in either
// direction. A client may have 32 requests unanswered; one more breaks its own
// queue pair.
//
// Neither end acknowledges a message by itself: that goes with the next one that it
// sends (verbs.QPInit.LazyAcks). So a call is one packet in either direction,
// and requests that come together are answered together.
//
// # Concurrency
//
// Calls of one object come one at a time, those of different objects side by
// side. The node's half has two goroutines a worker: one that takes its answers,
// and one that watches over its time. Tenant.mu guards the account of buffers,
// Server.mu the reservations and is taken inside of it; neither is held while
// an object is called or something is posted. Within worker, held.mu comes before
// worker.mu and Env.mu.
package component
