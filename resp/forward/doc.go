// Package forward carries Redis commands from one server of a cluster to another and
// brings back the reply as raw bytes, for clients that talk to a server which does not
// own the key's slot and do not know of clusters.
//
// # On the wire
//
// A link is a connection to another server, for version 2 or 3 of the protocol. It
// begins with HELLO 3 (not for version 2), AUTH default PASSWORD if there is a password
// (for version 3 within HELLO), and READONLY, which must be answered +OK: the other
// server then answers MOVED where it would forward. A link belongs to one call at a
// time. The call writes all its commands, then reads as many replies; pushes between
// them are passed over. Where a reply ends is found by [proto.Skimmer].
//
// Links are kept when a call has ended, at most Config.Conns to one server, those in use
// included. One that the other side has closed meanwhile is found out before it is used:
// the socket is looked at without waiting. A link on which anything went wrong, or whose
// call was given up, is closed. [Links.Forget] says that a server has left: it may never
// answer what it has got.
//
// What a server remembers with a connection, such as the keys that it watches, takes a link
// that is held: see [Links.Hold].
//
// # What may have happened
//
// An error of [Links.Do] is of one of three kinds. [ErrUnsent]: no command has been
// carried out; it may be sent again. [ErrUncertain]: nobody knows. [*ReplyError]: all
// commands were answered, one before the last with this error.
//
// # Concurrency
//
// Links are for any number of goroutines. Links.mu guards all state and is a leaf;
// nothing waits while it is held. There are no goroutines but those of calls, and of a [Herald] one for each server that it has something to
// tell.
//
// # Files
//
//   - forward.go: Links, what is kept, and who waits
//   - herald.go: commands that are sent to servers, and nobody waits
//   - held.go: links that are one client's for a while
//   - link.go: one connection: greeting, commands, replies
package forward
