// Package turns runs code that waits: as it always runs, or simulated, one goroutine at a time.
//
// Code that is written for it says through a [Process] whatever has to do with time, with goroutines and with waiting. To a nil
// Process that is package time, the go statement and select. A Process of a [World] is simulated: its goroutines are tasks, of
// which one runs at a time and hands over only where it waits; time passes only while all of them wait; and which of those
// that can go on does so first is decided by a seed. So the code that ships runs through as many orders of events as there are seeds,
// and through the same one again with the same seed.
//
// A simulated Process can be killed, which ends its tasks where they are; paused, as by SIGSTOP; and may have a clock
// that is fast or slow.
//
// # What code has to do
//
// It may use mutexes, as long as it does not wait while it holds one; atomics; channels with which it does not wait, such as those with a select that
// has a default; and contexts, but for their deadlines and context.AfterFunc. For all else there are Wait, Recv, Group and
// Cond. Deferred calls must be right when a call that waits panics: that is how a task ends that is killed. What
// depends on the order of a map's keys, or on random numbers other than Uint64, is not repeated by the same seed.
//
// # Concurrency
//
// A nil Process is for any number of goroutines. A World, and all that runs in it, is for the goroutine that calls Run.
//
// # Files
//
//	process.go  what code calls
//	world.go    the simulated clock, and the tasks
package turns
