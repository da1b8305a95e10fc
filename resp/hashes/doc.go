// Package hashes has what a Redis hash is in memory: lists of fields and values as they lie in far memory, or in soft memory, and what of such a list
// is struck out in local memory, since there was no room to store it again; and, of a hash in blocks, which block has a field. It reads and stores nothing, and takes no locks: that does
// package resp.
//
// # Files
//
// list (fields and values), strikes (what is struck out of stored lists), linear (hashes in blocks).
package hashes
