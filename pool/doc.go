// Package pool borrows memory from memory nodes.
//
//	p, err := pool.Dial(ctx, "10.0.0.1:7070", "10.0.0.2:7070")
//	c, err := p.Alloc(ctx, 10<<20)
//	_, err = c.WriteAt([]byte("hello"), 0)
//
// A [Pool] keeps a connection to each of its nodes and hands out chunks of
// their memory, of any size; a [Chunk] is read and written at offsets, and has
// atomics on its 8-byte words. The nodes lend in units, [Pool.ChunkSize], which most
// managers hand out one by one; FineMem hands out runs of them, up to 2 MiB at a
// time. A chunk is made of as many as it takes, where possible on one node. [Pool.Do] runs many operations, on many chunks and nodes,
// in one round trip. How chunks are had and given back is a manager's
// business (package manager); reading and writing them is one-sided.
//
// # Failures
//
// A connection that breaks is made again, with backoff, and the session with
// the node resumed: the node keeps a client's chunks for a grace period.
// Operations that were in flight are repeated until their deadline if they are
// READs or WRITEs; an atomic operation that may or may not have happened fails
// with [ErrOutcomeUnknown]. While a node refuses connections, operations on it
// fail at once with [ErrNodeGone]. When it turns out that the node has forgotten
// the client, or the grace period is over, the chunks are lost: Chunk.Lost is
// closed, and operations fail with [ErrLost]. A chunk that lies on several nodes is
// lost with the first of them.
//
// Every operation is bounded by its context and by Config.Timeout, whichever
// ends first; one that is larger than the buffer goes out in rounds, and a round that
// got something done begins the time anew. A WRITE that fails for whatever reason may have been done in
// part; one that ran into its deadline may still take effect, but not after a
// later operation on the same chunk, and not after Free.
//
// # Memory that outlives its pool
//
// With Config.Keep, nodes keep what a pool has borrowed when it is closed or its process
// dies. Who stores what Pool.Sessions and Chunk.Place return can open another pool, with a
// higher epoch, and have the chunks again by [Pool.Reopen]; [Pool.Prune] then frees
// what else there was. When a node has let the later pool in, nothing that the earlier one
// has sent or will send takes effect there any more. That one's operations fail
// with [ErrSuperseded], at every node as soon as one has said so, and it does not connect
// again.
//
//	first, err := pool.Open(ctx, pool.Config{..., Keep: &pool.Keep{Name: "orders", Epoch: 1, Changed: store}})
//	c, err := first.AllocAt(ctx, node, size)
//	at, _ := c.Place()
//	...
//	second, err := pool.Open(ctx, pool.Config{..., Keep: &pool.Keep{Name: "orders", Epoch: 2, Sessions: stored, Changed: store}})
//	c, err := second.Reopen(ctx, at, size)
//
// A session is one with the node's memory: a node that has lost that, or that had lent
// nothing when the pool was gone, begins another, of which Keep.Changed tells. So a Place
// never names memory other than what it was made for. Chunks that are lost are
// so at once, since there is no grace period. What is freed while the node cannot be
// reached, in a session of an earlier pool, it has back with Prune.
//
// # Memory
//
// Data passes through a slab of registered memory outside the Go heap, of
// Config.Buffer bytes (8 MiB by default) and never more. Operations that do not
// fit at once are carried out in several rounds, and when the slab is used up
// callers queue for it, in order.
//
// A pool may have nodes on several fabrics: NodeConfig.Device. The slab is registered for each.
//
// Chunks of a node on this machine that is dialled as "unix:/path" need none of
// that: they lie in this process's memory, and operations on them are memory
// copies and atomic instructions, done by the caller at once.
//
// A node on this machine that is dialled as "host:port" may pass its memory, too (memnode.Config.InPlace), for reading
// only, which the pool asks for each time it connects. Then READs are memory copies, done by the caller at once, and
// everything else goes over queue pairs, as do READs that follow something else in their batch, and those of a chunk on
// which a caller has given up an operation that still flies. What was read is believed only if the node had not ended the
// connection by then; otherwise it is read again, over the next one. If a node does not pass its memory, nothing else is
// different. NodeStats.ReadsInPlace counts.
//
// # Concurrency
//
// Everything may be called by any number of goroutines. Callers share the
// access queue pairs of a node, of which there are one or more groups (Config.Groups); a
// chunk's extents are dealt out to them when they are allocated, and what is done in an extent
// goes over its group alone. What several of them post while one is ringing the
// doorbell goes out with the next doorbell, together. A completion wakes its
// caller directly; there is no goroutine for an operation, and no allocation
// in the steady state. One goroutine a node, the keeper, makes and resumes
// connections.
//
// The caller says what an operation is for, and its size does not matter: what
// somebody waits for goes over the first access queue pair, and what Op.Bulk says
// is not waited for over the others if the manager has several, each with
// the chunk's key for it. It is also overtaken while it waits to be posted,
// and of it only a window is in flight, so that a read on a miss does not wait
// for bulk writes. Where a caller has given up on a piece that still flies, later
// ones on its chunk go the same way, behind it.
//
// Lock order: link.mapped, node.mu, link.mu; group.pollMu, group.mu; slab.mu and
// Pool.callMu are leaves. No lock is held across an operation on the fabric, except that
// completion handlers are serialised by pollMu while they poll.
package pool
