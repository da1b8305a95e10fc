// Package rebind is FineMem's background worker: it gives what clients have freed
// new keys. A capability that is swapped says that its grain was freed: the worker
// takes the old window away from the memory, zeroes it, binds the window that was the
// backup, and publishes the pair of its key and the next backup's. Until then the old
// key works, and nobody is given the memory.
//
// # What wakes it
//
// To free is to change words by one-sided operations, which the node's CPU does not
// see. So the worker publishes in a word of the metadata whether it sleeps
// (twolayer.Layout.WorkerAt: even while it is awake, odd while it sleeps, another number
// every time). A client reads that word in the batch of operations in which it frees,
// after it has counted the free. If the worker sleeps, the client sends a doorbell, a
// SEND of no bytes, once for each odd number, and does not wait for it. So
//
//   - while the worker is awake, nobody rings: it looks by itself, every [Gap], or as
//     soon as it is through with much ([Worker.Again]), until there is nothing more;
//   - no free is missed: the worker says that it sleeps and then looks once more. Either
//     that look sees the free, or the client has seen that it sleeps;
//   - a receive queue of [Doorbells] is enough for a client, if those that came are
//     posted again before every [Worker.Turn]. What a client sends arrives before what it
//     reads later, so it cannot ring for a second sleep before its first doorbell has
//     arrived.
//
// A doorbell can get lost, with the client that should have sent it. So the worker looks
// every [SlowPoll], too.
//
// Demand wakes it otherwise: a client that finds nothing but memory with old keys asks
// the node, which has the worker go through all that had been freed (see
// [Worker.Backlog]).
//
// # Concurrency
//
// A Worker is for one goroutine. It has none, and no clock: its user waits, between
// turns, for as long as Turn has said or until a doorbell comes. Memory nodes run it in
// their control goroutine, and measure/simfinemem in virtual time.
package rebind
