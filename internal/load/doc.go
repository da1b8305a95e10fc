// Package load drives a Redis-protocol server as hard as one thread can, and
// measures what comes back.
//
// A [Run] keeps a number of connections busy, each with a batch of pipelined
// commands in flight, from a single event loop over epoll: the generator
// costs so little that on two cores the other one is the server's. Every
// reply is checked: a GET must return the value that [Value] defines for its
// key, so a server that answers fast and wrong is an error, not a figure.
// Latencies are those of a command from the write of its batch to the arrival
// of its own reply.
//
// Keys are chosen uniformly ([Uniform]) or by a Zipfian whose popular keys lie
// anywhere ([Scattered]), and the choice is made before the clock starts.
//
// A Run uses one goroutine, locked to its thread. Different Runs may go on at
// the same time.
package load
