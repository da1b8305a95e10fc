// Package entry is the bytes of an entry of a map: in local memory, in far memory, and in a checkpoint. It takes no locks; who
// has those that keep an entry where it is, package bytemap says.
//
// # Files
//
// entry: an entry, what it is made of, and what becomes of a record that was read. large: what stands for a value in pieces. heads: the headers and keys of
// some far entries.
package entry
