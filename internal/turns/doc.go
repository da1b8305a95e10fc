// Package turns runs code that waits: normally, or simulated, one goroutine at a time.
//
// Code written for it goes through a [Process] for everything that has to do with time, goroutines and waiting. A nil
// Process means package time, the go statement and select. A Process of a [World] is simulated. Its goroutines are
// tasks: one runs at a time, and another one runs only when it waits. Time passes only while all tasks wait. Which of
// the tasks that can go on goes on first depends on a seed. So the code that ships runs through as many orders of
// events as there are seeds, and through the same order again with the same seed.
//
// A simulated Process can be killed, which ends its tasks where they are; paused, as by SIGSTOP; and may have a clock
// that is fast or slow.
//
// # What code has to do
//
// It may use mutexes, as long as it does not wait while it holds one; atomics; channel operations that do not wait,
// such as a select with a default; and contexts, but not their deadlines, nor context.AfterFunc. For everything else
// there are Wait, Recv, Group and Cond. Deferred calls must be right when a call that waits panics: that is how the
// tasks of a killed process end. The same seed does not repeat what depends on the order of a map's keys, or on
// random numbers other than Uint64.
//
// # Concurrency
//
// A nil Process is for any number of goroutines. A World, and all that runs in it, is for the goroutine that calls
// Run.
//
// # Files
//
//	process.go  what code calls
//	world.go    the simulated clock, and the tasks
package turns
