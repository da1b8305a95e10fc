// Package named keeps a heap in the memory of nodes under a name, from where another process opens it again when the
// one that had it is gone.
//
//	o, err := named.Own(ctx, register, named.Config{Me: "10.0.0.5:6379"})   // raises the epoch
//	p, err := pool.Open(ctx, ...)                                           // whose nodes keep what they lend: o.Epoch, o.Sessions
//	store, err := o.Store(copies.Config{Places: remote.Places(p)})          // a heap.Keeper
//	heap, err := far.Open(ctx, store, far.Config{})
//	err = o.Ready(ctx)                                                      // from now on there is no other owner
//
// # Manifest
//
// What it takes to open the heap is its manifest: the root of its last checkpoint, the sessions at the nodes that have
// its memory, and where copies lie that were moved since that checkpoint. It is the value of a register (package holder)
// that witnesses or etcd keep, and changes by compare-and-swap.
//
// # Owner
//
// One process at a time owns the heap, in an epoch. Who opens it raises the epoch in the manifest, and then at each node,
// which ends the queue pairs of the owner before. So an owner that was superseded, even one that was stopped in the
// meantime, can change neither the manifest nor anything that the manifest refers to.
//
// An owner changes the manifest at least every Beat. Who wants to open the heap watches it for Patience first, and
// fails with an OwnedError if it changes: the heap is in use. With Standby it goes on watching.
// Being wrong about that takes the heap away from an owner that lives, and loses nothing that the heap promises.
//
// # Evidence
//
// What an owner has in local memory may be old as soon as there is another one. Before it answers anybody out of it,
// it therefore needs evidence: it asked the register at some moment, and the answer was that it is the owner. It uses evidence for as long
// as a Lease after it has asked (Owner.Shown), and the next owner waits until the lease of the one before
// is over (Owner.Ready). Of clocks this takes that their rates differ by less than a twentieth, and that they go on while a machine
// sleeps (CLOCK_BOOTTIME).
//
// # What is promised
//
// The heap comes back as its last checkpoint has it, as a whole. What is in the checkpoint survives what
// copies survive: the loss of all copies of a segment but one; and the loss of fewer than half of the witnesses.
//
// # Files
//
// manifest (its format), owner (owning a heap: epoch, beats, evidence), keeper (the heap.Keeper).
package named
