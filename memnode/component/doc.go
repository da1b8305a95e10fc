// Package component runs active components at a memory node: AIFM's remote devices (section 4.2.4). A client
// constructs objects of the components that the node's program has been compiled with, and reads, writes, deletes and
// computes in them where the data is: a sum moves 32 bytes. Polder comes with one component, far/remote/scan.
//
// A program that lends memory says in main, before anything else, which
// components it has:
//
//	component.Main(component.Set{scan.Name: scan.Component})
//
// Main returns, except in the processes that the node starts for its clients' objects, which run the same program
// again. Config.Components of package memnode sets how much memory the objects may have.
//
// # Isolation
//
// There are two places for a client's objects:
//
//   - A process of their own, the worker, which the node starts when the client constructs the first object. No
//     memory of the node or of other clients is mapped there. All components that a user has written belong there,
//     unless the user promises what Bounded says.
//   - The node's process, for components that are Bounded. They are called by the goroutine that receives the
//     client's messages, since two switches between processes cost several times as much as a one-sided read. They
//     provide by themselves what the process boundary is for: they are Go code whose bounds are checked, so they
//     reach no memory but their own; their memory is the Env's; every loop has an end that does not depend on the
//     input. A component that breaks the promise and loops keeps its client's own connection and one CPU busy.
//
// What can go wrong, and whom it harms:
//
//   - A request that makes no sense is refused, by the node or by the component.
//   - A component that panics loses the object that was called. The client's other objects go on. This holds for
//     Bounded components, too.
//   - If a component in a worker runs for longer than Config.Time, overflows its stack, or uses more memory of the Go
//     heap than it may, its worker ends. The client's objects in it are lost then: requests for them fail, and the
//     next object that is constructed is in a new worker. The client's objects of Bounded components go on.
//   - Other clients notice none of that, nor does the lending of memory.
//
// Objects last as long as the client's session: they outlive its connection by the grace period, and end with the
// session, or with the node. If the connection that asked for an object has gone before the object is constructed,
// the object is destructed at once; only an object whose reply was lost with the connection stays until the session
// ends.
//
// # Memory
//
// Objects take memory from their [Env], which refuses what exceeds Config.ClientMemory less the memory for messages.
// The kernel (RLIMIT_DATA) keeps the Go heap of a worker from growing beyond that plus 64 MiB. A client that has
// constructed an object counts with all of ClientMemory against Config.Memory, so that a client is refused early, and
// never gets less than it was promised. Objects in the worker and in the node count against one limit, with a counter
// in memory that both processes share; what a worker has used is given back when the worker ends.
//
// # Wire and transport
//
// Package wire has the messages. They arrive on a queue pair of their own, in memory that the node shares with the
// worker: a page of flags, then 32 buffers for requests and 40 for replies. Over a Unix socket, node and worker send
// each other records of 8 bytes, which say which buffers and how many bytes. A client may have 32 requests
// unanswered; one more breaks its own queue pair.
//
// Neither end sends an acknowledgement by itself: it goes with the next message that the end sends
// (verbs.QPInit.LazyAcks). So a call is one packet in either direction, and requests that arrive together are
// answered together.
//
// # Concurrency
//
// Calls of one object come one at a time; different objects are called concurrently. For each worker the node has two
// goroutines: one takes the worker's answers, and one watches its time. Tenant.mu guards the account of buffers.
// Server.mu guards the reservations, and may be taken while Tenant.mu is held. Neither is held while an object is
// called or something is posted. Within worker, held.mu comes before worker.mu and Env.mu.
package component
