// Package respbench measures "polder up" and "polder serve" beside
// redis-server: the same load from the same generator (package load) on the
// same machine in the same minutes.
//
// # What is measured
//
// GET and SET of 64 B, 1 KiB and 4 KiB, one command in flight or sixteen, on
// 50 connections. First everything is local: the budget exceeds the data, and
// keys are chosen uniformly. Then the local budget is a fifth of the memory
// that the data takes, and keys follow a Zipfian with theta 0.99; the
// rest lies in a node in a process of its own over TCP ("far tcp"),
// or in the lent memory of the same process ("far inproc"). Redis keeps
// everything in memory in both. "Local hits" is the part of GETs for which
// nothing was read from far memory.
//
// Before that, commands with 100,000 fields or keys: HSET of new fields, HGETALL,
// MSET and DEL, and WATCH of 10,000 keys. One client sends one after the other,
// and the time until it has the whole reply is measured. Likewise SET and GET of
// a value of 36 MiB, which a cache of attention stores for 256 tokens of a large
// model, with --max-value 64MiB --client-memory 256MiB.
//
// Last, "origin" is polder serve --origin before that same Redis, beside the Redis
// alone, on one host: what remains of a round trip is the loopback's, so that what is
// seen is what the cache costs, and "local hits" what the Redis is spared. It has room
// for half of the data. "Origin 1ms away" is the same at a distance: clients and cache
// both reach the Redis through a relay of the benchmark's, which passes on what it is sent
// half a millisecond later, in either direction and however much it is. There are
// 4 connections, so that the relay is not what is measured: what the cache gains is round
// trips. "Stale" is for how long after a write at the Redis itself has been answered a
// reader of the cache got the old value.
//
// # How
//
// Every server is a process of its own and starts empty. Servers take turns,
// case by case and round by round, so that what else happens on the machine
// happens to all; the medians of the rounds are printed. The generator is one
// thread of this process. Nothing is persisted by either side.
package respbench
