// Package latency has what operators are told of how long commands take: SLOWLOG and LATENCY. Both count from when a command begins to
// run until its reply is there, with the wait for far memory, but not that for the client, other commands of a pipeline, or the end of CLIENT
// PAUSE. Any number of goroutines use them.
package latency
