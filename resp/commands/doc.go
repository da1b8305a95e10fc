// Package commands has the commands of Redis that are about keys and values: each is a function of a [Client] and its arguments, with
// the name of the command in front. It replies to the client, or returns an error, which becomes the reply. If that is
// far.ErrWouldBlock nothing has changed, and the function may be run again.
//
// The commands know neither connections nor other clients, nor where partitions are. Whoever runs one has looked at the number of its
// arguments, has the locks of its keys, and ends its changes: package resp, whose table of commands says how many keys each has.
//
// # Files
//
// client (what they work with), keys (DEL, RENAME, COPY, OBJECT and the like), strings, setoptions (those of SET), numbers, expire, hash, hashscan, scan.
package commands
