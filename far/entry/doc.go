// Package entry is the bytes of a map's entry: in local memory, in far memory, and in a checkpoint. It takes no
// locks; package bytemap says who holds the locks that keep an entry where it is.
//
// # Files
//
// entry: an entry, what it is made from, and how a record that was read becomes an entry. large: what stands for a
// value that is stored in pieces. heads: the headers and keys of some far entries.
package entry
