// Package proto reads and writes the Redis serialization protocol: a [Parser]
// that finds commands in a buffer without copying them, and functions that
// append replies of RESP2 and RESP3 to a byte slice.
//
// Nothing here does I/O, keeps a clock or starts a goroutine. A Parser belongs
// to one connection and is not for concurrent use.
package proto
