// Package turns runs code that waits: in the usual way, or simulated, one goroutine at a time.
//
// Code that is written for it uses a [Process] for everything that concerns time, goroutines and waiting. A nil
// Process passes these on to package time, the go statement and select. A Process of a [World] is simulated. Its
// goroutines are tasks, of which one runs at a time and hands over only where it waits. Time passes only while all
// tasks wait. A seed decides which of the tasks that can go on does so first. So the shipped code runs through as
// many orders of events as there are seeds, and through the same order again with the same seed.
//
// A simulated Process can be killed, which ends its tasks where they are. It can be paused, as by SIGSTOP. Its clock
// may be fast or slow.
//
// # What code has to do
//
// It may use mutexes, as long as it does not wait while it holds one; atomics; channels on which it does not wait,
// such as in a select with a default; and contexts, except for their deadlines and context.AfterFunc. For everything
// else there are Wait, Recv, Group and Cond. Deferred calls must be right when a call that waits panics: that is how
// a killed task ends. What depends on the order of a map's keys, or on random numbers other than Uint64, is not
// repeated by the same seed.
//
// # Concurrency
//
// A nil Process may be used by any number of goroutines. A World, and everything that runs in it, belongs to the
// goroutine that calls Run.
//
// # Files
//
//	process.go  what code calls
//	world.go    the simulated clock, and the tasks
package turns
