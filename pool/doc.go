// Package pool borrows memory from memory nodes.
//
//	p, err := pool.Dial(ctx, "10.0.0.1:7070", "10.0.0.2:7070")
//	c, err := p.Alloc(ctx, 10<<20)
//	_, err = c.WriteAt([]byte("hello"), 0)
//
// A [Pool] keeps a connection to each of its nodes and hands out chunks of their memory, of any size. A [Chunk] is
// read and written at offsets, and has atomics on its 8-byte words. The nodes lend in units of [Pool.ChunkSize]. Most
// managers hand out single units; FineMem hands out runs of them, of up to 2 MiB at a time. A chunk is made of as
// many units as it takes, where possible on one node. [Pool.Do] runs many operations, on many chunks and nodes, in
// one round trip. A manager (package manager) gets chunks from the nodes and gives them back; reading and writing
// chunks is one-sided.
//
// # Failures
//
// A connection that breaks is made again, with backoff, and the session with the node is resumed: the node keeps a
// client's chunks for a grace period. READs and WRITEs that were in flight are repeated until their deadline; an
// atomic operation that may or may not have happened fails with [ErrOutcomeUnknown]. While a node refuses
// connections, operations on it fail at once with [ErrNodeGone]. When it turns out that the node has forgotten the
// client, or when the grace period is over, the chunks are lost: Chunk.Lost is closed, and operations fail with
// [ErrLost]. A chunk that lies on several nodes is lost with the first of them.
//
// Every operation is bounded by its context and by Config.Timeout, whichever ends first. An operation that is larger
// than the buffer goes out in rounds, and each round in which something succeeded starts Config.Timeout anew. A WRITE
// that fails for whatever reason may have been done in part. A WRITE that ran into its deadline may still take
// effect, but not after a later operation on the same chunk, and not after Free.
//
// # Memory that outlives its pool
//
// With Config.Keep, nodes keep what a pool has borrowed when the pool is closed or its process dies. Whoever stores
// what Pool.Sessions and Chunk.Place return can open another pool, with a higher epoch, and get the chunks back by
// [Pool.Reopen]; [Pool.Prune] then frees the rest. Once a node has let the later pool in, nothing that the earlier
// pool has sent or will send takes effect there any more. As soon as one node has told the earlier pool so, its
// operations fail with [ErrSuperseded] at every node, and it does not connect again.
//
//	first, err := pool.Open(ctx, pool.Config{..., Keep: &pool.Keep{Name: "orders", Epoch: 1, Changed: store}})
//	c, err := first.AllocAt(ctx, node, size)
//	at, _ := c.Place()
//	...
//	keep := &pool.Keep{Name: "orders", Epoch: 2, Sessions: stored, Changed: store}
//	second, err := pool.Open(ctx, pool.Config{..., Keep: keep})
//	c, err := second.Reopen(ctx, at, size)
//
// A session belongs to the node's memory. A node that has lost its memory, or that had lent nothing when the pool was
// gone, begins another session, and Keep.Changed is told of it. So a Place never names memory other than that which
// it was made for. Chunks of a kept pool have no grace period: if they are lost, they are lost at once. If a chunk
// from an earlier pool's session is freed while its node cannot be reached, the node gets it back with Prune.
//
// # Memory
//
// Data passes through a slab of registered memory outside the Go heap, of Config.Buffer bytes (8 MiB by default) and
// never more. Operations that do not fit at once are carried out in several rounds. When the slab is used up, callers
// queue for it, in order.
//
// A pool may have nodes on several fabrics: NodeConfig.Device. The slab is registered for each.
//
// Chunks of a node on this machine that is dialled as "unix:/path" do not use the slab: they lie in this process's
// memory, and operations on them are memory copies and atomic instructions, done by the caller at once.
//
// A node on this machine that is dialled as "host:port" may also pass its memory, for reading only
// (memnode.Config.InPlace); the pool asks for it each time it connects. Then READs are memory copies, done by the
// caller at once. Everything else goes over queue pairs, and so do READs that follow a change of memory in their
// batch, and READs of a chunk on which a caller has given up an operation that still flies. What was read counts only
// if the node had not ended the connection by then; otherwise it is read again, over the next connection. If a node
// does not pass its memory, everything goes over queue pairs. NodeStats.ReadsInPlace counts the reads in place.
//
// # Concurrency
//
// Everything may be called by any number of goroutines. Callers share the access queue pairs of a node, which form
// one or more groups (Config.Groups). A chunk's extents are dealt out to the groups when they are allocated, and
// operations on an extent go over its group only. While one caller rings the doorbell, others post; all that they
// post goes out with the next doorbell, together. A completion wakes its caller directly; there is no goroutine for
// an operation, and no allocation in the steady state. One goroutine for each node, the keeper, makes connections and
// resumes sessions.
//
// The caller says what an operation is for; its size does not matter. Operations that somebody waits for go over the
// first access queue pair. Operations with Op.Bulk go over the other queue pairs, if the manager has several, each
// with its own key of the chunk. Operations that somebody waits for also overtake bulk that is not posted yet, and of
// bulk only a window is in flight: so a read on a miss does not wait for bulk writes. If a caller has given up on a
// piece that still flies, later pieces on the same extent go the same way, behind it.
//
// Lock order: link.mapped, node.mu, link.mu; group.pollMu, group.mu; slab.mu and Pool.callMu are leaves. No lock is
// held across an operation on the fabric, except that completion handlers are serialised by pollMu while they poll.
package pool
