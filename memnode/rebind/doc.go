// Package rebind is FineMem's background worker: it gives what clients have freed new keys. A swapped capability says
// that its grain was freed. Then the worker unbinds the old window, zeroes the memory, binds the window that was the
// backup, and publishes the new window's key together with the next backup's. Until the old window is unbound, the
// old key still works; nobody is given the memory before the worker is done.
//
// # What wakes it
//
// A client frees by changing words with one-sided operations, which the node's CPU does not see. So the worker
// publishes in a word of the metadata whether it sleeps (twolayer.Layout.WorkerAt: even while it is awake, odd while
// it sleeps, another number every time). A client reads this word in the same batch of operations in which it frees,
// after it has counted the free. If the worker sleeps, the client sends a doorbell, which is a SEND of no bytes, once
// for each odd number, and does not wait for it. So
//
//   - while the worker is awake, nobody rings: the worker looks by itself, every [Gap], or as soon as it has finished
//     with much freed memory ([Worker.Again]), until there is nothing more;
//   - no free is missed: the worker says that it sleeps, and then looks once more. Either this look sees the free, or
//     the client has seen that the worker sleeps;
//   - [Doorbells] receives are enough for a client, if the receives of the doorbells that came are posted again
//     before every [Worker.Turn]. What a client sends arrives before what it reads later, so it cannot ring for a
//     second sleep before its first doorbell has arrived.
//
// A doorbell can get lost together with the client that should have sent it. So the worker also looks every
// [SlowPoll].
//
// Demand wakes the worker, too: a client that finds only memory with old keys asks the node, which makes the worker
// go through everything that had been freed (see [Worker.Backlog]).
//
// # Concurrency
//
// A Worker is for one goroutine. It has no goroutine of its own, and no clock: between turns, its user waits for as
// long as Turn has said or until a doorbell comes. Memory nodes run it in their control goroutine, and
// measure/simfinemem in virtual time.
package rebind
