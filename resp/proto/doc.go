// Package proto reads and writes the Redis serialization protocol: a [Parser]
// that finds commands in a buffer without copying them, functions that append
// replies of RESP2 and RESP3 to a byte slice, and a [Skimmer] that finds where a
// reply ends without taking it apart.
//
// Nothing here does I/O, keeps a clock or starts a goroutine. A Parser or a Skimmer
// belongs to one connection and is not for concurrent use.
package proto

// RedisVersion is the version of Redis whose semantics the commands have.
const RedisVersion = "7.0.15"
