// Package sim is the verbs driver for virtual time: the software RNIC's engines
// under a discrete-event clock, with a model of what their work costs on real
// hardware. It answers what a laptop cannot measure: how long an operation
// takes on a ConnectX-5, and what it is that many clients wait for.
//
// The engines really run. A simulated chain binds real windows of a real
// softnic, and a chain that is wrong fails here as it would over any driver.
// The model only says when each packet and work request has its turn.
//
// # The model
//
// All its parameters are in [Costs], with their sources. For one device:
//
//   - A doorbell, and a completion until it is polled, take a posted write
//     across PCIe.
//   - The queue pair's context must be on the chip. A few are; of queues that
//     are parked in a WAIT they stay there, which is how offloaded logic slows
//     down those that have none. Otherwise it is fetched across PCIe.
//   - Work-queue entries are fetched across PCIe, several at a time. One that
//     has been rewritten since is fetched again.
//   - One of a few processing units, first come, first served, executes the
//     request. For a managed queue it is held while entries are fetched, since
//     it cannot go on; it is never held while data move.
//   - Payload that a request sends, or a READ asks for, is read across PCIe at
//     a limited rate, and payload that arrives is written so.
//   - An atomic operation reads and writes its word across PCIe, one after the
//     other for the same word.
//   - Requests of a peer are served by a pipeline of their own and not by the
//     processing units.
//   - A packet waits for the sender's line and then the receiver's, at the
//     link's rate, and propagates.
//
// A turn takes effect at its end. The network loses nothing unless [World.Lose] is
// called, and then answers only. What the model leaves out: other loss, and
// congestion in the network, limits of the receiving pipeline's rate, address
// translation and its caches, host memory and caches, NUMA, and that queues may
// be tied to processing units.
//
// # Processes
//
// Code that runs in virtual time is a process: a function that [World.Go]
// starts. It is ordinary sequential code, a coroutine of which one runs at a
// time and hands over to the next only in [Proc.Sleep], [Proc.Until] and
// CQ.Wait. So a simulation needs no locks, has no races, and depends on
// nothing but its input: the same program gives the same times, whatever the
// machine, its load, or GOMAXPROCS. Callbacks would give the same; processes
// leave protocols readable as protocols. A process may use mutexes that nobody
// holds, but must not wait for a channel or the wall clock: nothing would
// happen meanwhile.
//
// Code that does wait for channels, such as package pool and the drivers'
// conformance suite, runs over this driver after [World.FreeRun]: correct, but
// in an order that the wall clock has a part in.
//
// # Concurrency
//
// Before FreeRun, a World and what belongs to it are for one goroutine, and for
// the processes while that one is in Run. After FreeRun, devices and their
// objects are for any number of goroutines; events run in one of the World's,
// which lives while there are events, and not after Close.
//
// Lock order: the group's lock (see softdev), World.mu.
package sim
