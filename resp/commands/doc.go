// Package commands has the commands of Redis that are about keys and values. Each is a function of a [Client] and the
// arguments, of which the first is the command's name. It replies to the client, or returns an error, which becomes
// the reply. If the error is far.ErrWouldBlock, nothing has changed, and the function may be run again.
//
// The commands know neither connections nor other clients, nor where partitions are. Package resp runs them, and its
// table of commands says how many keys each has. Before a command runs, resp has checked the number of its arguments
// and has taken the locks of its keys; afterwards it ends the command's changes.
//
// # Files
//
// client (what the commands work with), keys (DEL, RENAME, COPY, OBJECT and the like), strings, setoptions (options
// of SET), numbers, expire, hash, hashscan, scan.
package commands
