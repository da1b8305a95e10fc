// Package named keeps a heap in the memory of nodes under a name. Another process can open it again by this name when
// the process that had it is gone.
//
//	o, err := named.Own(ctx, register, named.Config{Me: "10.0.0.5:6379"})   // raises the epoch
//	p, err := pool.Open(ctx, ...)                                           // with o.Epoch and o.Sessions
//	store, err := o.Store(copies.Config{Places: remote.Places(p)})          // a store.Keeper
//	heap, err := far.Open(ctx, store, far.Config{})
//	err = o.Ready(ctx)                                                      // from now on there is no other owner
//
// The pool is opened with o.Epoch and o.Sessions, so that its nodes keep what they lend.
//
// # Manifest
//
// To open the heap, a process needs the heap's manifest: the root of the last checkpoint, the sessions at the nodes
// that have the heap's memory, and where the copies lie that have moved since that checkpoint. The manifest is the
// value of a register (package holder), which witnesses or etcd keep. It changes by compare-and-swap.
//
// # Owner
//
// One process at a time owns the heap, in an epoch. A process that opens the heap raises the epoch in the manifest,
// and then at each node, which ends the queue pairs of the owner before. So an owner that was superseded, even one
// that was stopped in the meantime, can change neither the manifest nor anything that the manifest refers to.
//
// An owner changes the manifest at least every Beat. A process that wants to open the heap first watches the manifest
// for Patience. If the manifest changes, the heap is in use, and opening it fails with an OwnedError; with Standby
// the process goes on watching. It does not wait for an owner that is known to be dead. The manifest says which
// process the owner is, and a process on the same machine and in the same PID namespace asks the kernel whether that
// has ended; elsewhere Config.Gone is asked when a beat is missing. If the answer is wrong, the heap is taken away
// from an owner that lives, but nothing is lost that the heap promises.
//
// # Evidence
//
// What an owner has in local memory may be old as soon as there is another owner. So before it answers anybody out of
// local memory, the owner needs evidence: it asked the register at some moment, and the answer was that it is the
// owner. Evidence is valid for a Lease after the owner has asked (Owner.Shown), and the next owner waits until the
// lease of the owner before is over (Owner.Ready). An owner that gives the heap up earlier than that waits as well.
// An owner that dies earlier leaves the longer of the two leases in the manifest, since the owners after it know of
// no other lease. All this assumes that the rates of clocks differ by less than a twentieth, and that clocks go on
// while a machine sleeps (CLOCK_BOOTTIME).
//
// With Config.Fenced there is no lease. Evidence is that all copies of a segment of the log have taken a write that
// began after the evidence was asked for (Log.Ask, Log.Shown). Before another owner reads the log, it has made at
// least one copy of each of the log's segments refuse this owner's writes.
//
// # Log
//
// A Log may keep what has changed since the last checkpoint, for the next owner to replay. It consists of records in
// segments, which the manifest lists before they are written to. A record counts when all copies of its segment have
// it. If a copy is late, the record is written again to another segment, with the same number. The next owner fences
// the nodes, takes of each segment the copy that has the most records, replays them, takes a checkpoint of the
// result, and only then serves. Until then the log stays. After that it no longer matters what the last records were
// whose commit nobody was told of.
//
// # What is promised
//
// The heap comes back as a whole: as its last checkpoint has it, with all records that the log has kept since. What
// is in the checkpoint survives what copies survive: the loss of all copies of a segment but one; and the loss of
// fewer than half of the witnesses.
//
// # Files
//
//	manifest.go  the manifest's format
//	owner.go     owning a heap: epoch, beats, evidence
//	alive.go     whether an owner on this machine is dead
//	keeper.go    Store, the store.Keeper
//	log.go       Log
//	remove.go    emptying and freeing a heap; Stats
package named
