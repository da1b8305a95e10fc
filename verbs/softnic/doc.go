// Package softnic is a software RNIC: memory regions and windows, queue pairs,
// completion queues and the reliable-connected transport between them, as one
// deterministic state machine.
//
// # Determinism
//
// A [NIC] has no goroutine, clock, socket or randomness. Packets and work
// requests go in by method calls; packets, completions and memory effects
// come out, through an [Output] and in registered memory. The same calls in
// the same order give the same outputs, byte for byte, which is why it runs
// under the wall clock and under a simulated one alike. The addresses that it
// gives to regions are its own and not those of the process.
//
// # Concurrency
//
// A NIC is not safe for concurrent use: callers serialise calls. An Output is
// called from inside the NIC's methods and must not call the same NIC back;
// it may call Receive of another NIC. Package softdev adds the lock.
//
// # Running
//
// [NIC.Receive], [NIC.PostSend] and the other methods change state and note
// which queue pairs have something to do; [NIC.Run] does it. Run emits every
// packet. It does a bounded amount of work and says whether any is left, so a
// chain that never waits cannot hold its caller for ever. Acknowledgements
// coalesce for as long as Run is not called. A simulator takes over from Run
// with [NIC.Pace], and lets queue pairs do one thing at a time, at the time
// that its clock says.
//
// # Memory
//
// Every access of a peer's and every SGE is checked against the region or
// window that its key names, packet by packet: a right that is taken back is
// gone at once. Atomics, and READs and WRITEs of exactly one aligned word of 8
// bytes, are single atomic accesses, also towards the host's sync/atomic, so a
// host may poll a word that a peer writes.
//
// # Chains
//
// Send and receive queues are rings of entries of verbs.WQESize bytes. An
// entry is read when it is executed, and again if it had to wait (for a WAIT,
// a fence, room), so the requests before it may rewrite it where the ring lies
// in a registered region. A managed queue executes up to the index that an
// ENABLE gave, posted or not, and wraps: a chain recycles itself by adding to
// the counts of its own WAIT and ENABLE entries, through a queue pair that is
// connected in loopback. In loopback a WRITE has taken effect when the next
// request is executed; what a READ or atomic brings is there for a request
// with a fence. Indexes and counts are of 64 bits and never wrap.
//
// # Allocation
//
// ALLOC and FREE take chunks from an allocator (see verbs.Allocator) and give them
// back, each as one step between two packets. An ALLOC is executed when its answer
// is sent, so that one whose queue pair fails before that has taken nothing. The
// allocator's table and queue lie in registered memory, where chains and the host
// may work on the same; words of the queue are accessed atomically.
//
// # Wire
//
// See [Packet]. Links carry packets reliably and in order. A message of more
// than Config.MTU bytes travels in several packets. Every request packet has
// the next packet sequence number (PSN, 24 bits, from 0); a repeated or
// skipped one is an invalid request, since only a bug or an attack explains
// it. Responses carry the PSN of their request, acknowledge everything before
// it, and come in order; an Ack or Nak waits for the READ responses before it.
//
// # Flow control
//
// A NIC consumes whatever arrives at once, so the reader of a link never has
// to stop. What a NIC emits stays within Output.Ready, packet by packet, apart
// from one Down per queue pair. At most [MaxRdAtom] READs and atomics are
// outstanding per queue pair and direction, so what a responder must remember
// is bounded, too.
//
// # Deviations from the InfiniBand specification
//
// There is no clock, hence no retransmission (links are reliable) and no RNR
// timer (what the retransmission of a READ does, package sim models: sim.Loss): a
// SEND that finds no receive posted fails at once with
// verbs.StatusRNRRetryExcErr. A queue pair that goes to the error state tells
// its peer (Down), which then fails its oldest request with
// verbs.StatusRetryExcErr instead of waiting for a time-out. A window that is
// bound to a queue pair is invalidated when that queue pair is destroyed.
package softnic
