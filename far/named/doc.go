// Package named keeps a heap in the memory of nodes under a name. When the process that had the heap is gone, another
// process can open it again under this name.
//
//	o, err := named.Own(ctx, register, named.Config{Me: "10.0.0.5:6379"}) // raises the epoch
//	p, err := pool.Open(ctx, ...)                                         // nodes keep what they lend: o.Epoch, o.Sessions
//	store, err := o.Store(copies.Config{Places: remote.Places(p)})        // a store.Keeper
//	heap, err := far.Open(ctx, store, far.Config{})
//	err = o.Ready(ctx)                                                    // from now on there is no other owner
//
// # Manifest
//
// The manifest has what it takes to open the heap: the root of its last checkpoint, the sessions at the nodes that
// have its memory, and the places of copies that were moved since that checkpoint. It is the value of a register
// (package holder) that witnesses or etcd keep, and changes by compare-and-swap.
//
// # Owner
//
// One process at a time owns the heap, in an epoch. A process that opens the heap raises the epoch in the manifest,
// and then at each node, which ends the queue pairs of the previous owner. So an owner that was superseded, even one
// that was stopped in the meantime, can change neither the manifest nor anything that the manifest refers to.
//
// An owner changes the manifest at least every Beat. A process that wants to open the heap watches the manifest for
// Patience first. If it changes the heap is in use: the process fails with an OwnedError, or, with Standby, goes on
// watching. It need not wait for an owner that is known to be dead. The manifest says which process the owner is; a
// process on the same machine and in the same PID namespace asks the kernel, others ask Config.Gone when a beat is
// missing. A wrong answer takes the heap away from an owner that is alive, and loses nothing that the heap promises.
//
// # Evidence
//
// What an owner has in local memory may be out of date as soon as there is another owner. So before it answers
// anybody from local memory it needs evidence: it has asked the register at some moment, and the answer was that it
// is the owner. It uses evidence for a Lease after the moment when it asked (Owner.Shown). The next owner waits until
// the lease of the previous one is over (Owner.Ready). An owner that gives the heap up before then waits as well.
// Until then the manifest has the longer one of the two leases, in case this owner dies: later owners know of no
// other lease. Clocks must run at rates that differ by less than a twentieth, and must go on while a machine sleeps
// (CLOCK_BOOTTIME).
//
// With Config.Fenced there is no lease. Evidence then is that all copies of a segment of the log have taken a write
// that began after the evidence was asked for (Log.Ask, Log.Shown). This works because another owner, before it reads
// the log, ends this owner's writes to at least one copy of each segment of the log.
//
// # Log
//
// Changes since the last checkpoint may be kept in a Log, which the next owner replays. A Log is records in segments,
// which the manifest lists before they are written to. A record counts when all copies of its segment have it. If a
// copy is late the record is written again, with the same number, to another segment. The next owner fences the
// nodes, reads from each segment the copy that has most records, takes a checkpoint of the result, and only then
// serves. Until then the old log stays. After that, nobody needs to know any more which of the last, unacknowledged
// records counted.
//
// # What is promised
//
// The heap comes back as its last checkpoint has it, as a whole, and with all records that the log has kept since. It
// survives the loss of all copies of a segment but one, and the loss of fewer than half of the witnesses.
//
// # Files
//
// manifest (its format), owner (owning a heap: epoch, beats, evidence), alive (whether an owner on this machine is
// dead), keeper (the store.Keeper), remove (emptying a heap, and what is left of one), log.
package named
