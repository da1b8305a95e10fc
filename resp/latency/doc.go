// Package latency has what operators are told of how long commands take: SLOWLOG and LATENCY. Both count from when a
// command begins to run until its reply is there. That includes waiting for far memory, but not waiting for the
// client, for other commands of a pipeline, or for the end of CLIENT PAUSE. Any number of goroutines use the package.
package latency
