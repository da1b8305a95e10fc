// Package hashes has the formats of Redis hashes: lists of fields and values, as they lie in far memory or in soft
// memory; which fields of a stored list are struck out in local memory, because there was no room to store the list
// again; and, for a hash in blocks, which block has a field. The package reads and stores nothing, and takes no
// locks: package keyspace does that.
//
// # Files
//
// list (fields and values), strikes (what is struck out of stored lists), linear (hashes in blocks).
package hashes
