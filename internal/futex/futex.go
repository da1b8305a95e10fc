// Package futex lets a thread sleep until a word in memory that several processes
// map has another value (Linux's futex).
//
// The word is everybody's to write who maps it, so whoever waits does it for a
// bounded time and looks again: no peer keeps a goroutine for good. A goroutine that
// waits keeps its thread.
//
// Every function may be called by any number of goroutines.
package futex
