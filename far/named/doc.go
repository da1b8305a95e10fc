// Package named keeps a heap in the memory of nodes under a name, from where another process opens it again when the
// one that had it is gone.
//
//	o, err := named.Own(ctx, register, named.Config{Me: "10.0.0.5:6379"})   // raises the epoch
//	p, err := pool.Open(ctx, ...)                                           // whose nodes keep what they lend: o.Epoch, o.Sessions
//	store, err := o.Store(copies.Config{Places: remote.Places(p)})          // a store.Keeper
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
// fails with an OwnedError if it changes: the heap is in use. With Standby it goes on watching. It does not wait for an owner
// that is known to be dead: the manifest says which process that is, and whoever shares machine and PID namespace with it asks the
// kernel; elsewhere, when a beat is missing, Config.Gone is asked.
// Being wrong about that takes the heap away from an owner that lives, and loses nothing that the heap promises.
//
// # Evidence
//
// What an owner has in local memory may be old as soon as there is another one. Before it answers anybody out of it,
// it therefore needs evidence: it asked the register at some moment, and the answer was that it is the owner. It uses evidence for as long
// as a Lease after it has asked (Owner.Shown), and the next owner waits until the lease of the one before
// is over (Owner.Ready). An owner that gives the heap up before that waits as well, and of one that dies the manifest has the longer lease of the two: those who come later
// know of no other. Of clocks this takes that their rates differ by less than a twentieth, and that they go on while a machine
// sleeps (CLOCK_BOOTTIME).
//
// With Config.Fenced there is no lease: evidence is that all copies of a segment of the log have taken a write that began after it was asked
// for (Log.Ask, Log.Shown). Before another owner reads the log it has ended this one's writes to a copy of each of its segments at least.
//
// # Log
//
// What has changed since the last checkpoint may be kept in a Log, which the next owner replays: records, in segments that
// the manifest lists before they are written to. A record counts when all copies of its segment have it. If one
// copy is late the record is written again to another segment, with the same number. The next owner fences the nodes, takes of each
// segment the copy that has the most, takes a checkpoint of what comes of it, and only then serves: until then the log stays,
// and after that nobody asks any more what the last records were that nobody was told of.
//
// # What is promised
//
// The heap comes back as its last checkpoint has it, as a whole, and with all records that the log has kept since. What is in the checkpoint survives what
// copies survive: the loss of all copies of a segment but one; and the loss of fewer than half of the witnesses.
//
// # Files
//
// manifest (its format), owner (owning a heap: epoch, beats, evidence), alive (whether an owner on this machine is dead), keeper (the store.Keeper),
// log.
package named
