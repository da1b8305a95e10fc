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
// everything in memory in both phases. "Local hits" is the part of GETs for which
// nothing was read from far memory.
//
// Before that, commands with 100,000 fields or keys: HSET of new fields, HGETALL,
// MSET and DEL, and WATCH of 10,000 keys. One client sends one command after the
// other, and the time until it has the whole reply is measured. The same is done
// with SET and GET of a value of 36 MiB, which is what an attention cache stores for
// 256 tokens of a large model; the server runs with --max-value 64MiB
// --client-memory 256MiB.
//
// Last, "origin" compares polder serve --origin in front of a Redis with that Redis
// alone. The cache has room for half of the data. First all run on one host: a round
// trip to the Redis is only the loopback's, so the figures show what the cache costs,
// and "local hits" how many reads it spares the Redis. "Origin 1ms away" is the same
// at a distance: clients and cache both reach the Redis through a relay in the
// benchmark, which delays all data by half a millisecond in either direction, however
// much it is. There are only 4 connections, so that the relay is no bottleneck and
// the figures show the round trips that the cache saves. "Stale" is for how long
// after the Redis itself has answered a write a reader of the cache still got the
// old value.
//
// # How
//
// Every server is a process of its own and starts empty. Servers take turns,
// case by case and round by round, so that whatever else runs on the machine
// disturbs all of them alike; the medians of the rounds are printed. The generator
// is one thread of this process. Neither side of [Run] writes anything to disk.
package respbench
