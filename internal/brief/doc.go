// Package brief makes system calls that return at once, and does not tell the Go
// scheduler of them.
//
// A system call made by package syscall, net or os is announced to the scheduler,
// since it may take long. If the process was idle just before, as one that answers
// a message at a time always is, the announcement wakes the runtime's monitor
// thread. It looks every 20 us whether the call has ended, and goes back to sleep
// when the process is idle again: several switches of threads for each message,
// some of them before the message is read. On two processors they took a sixth of
// all processor time of a server, two nodes and their client, and a quarter of the time
// of a durable SET.
//
// Whoever makes a call here keeps its P meanwhile. So a call must not wait: sockets
// are not blocking, and at most maxBytes are moved at once.
package brief
