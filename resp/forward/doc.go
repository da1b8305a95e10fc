// Package forward carries Redis commands from one server of a cluster to another and brings back the reply as raw
// bytes. It serves clients that know nothing of clusters and talk to a server that does not own the key's slot.
//
// # On the wire
//
// A link is a connection to another server, for version 2 or 3 of the protocol. It begins with HELLO 3 (not for
// version 2), AUTH default PASSWORD if there is a password (for version 3 within HELLO), and READONLY, which must be
// answered +OK: from then on the other server answers MOVED where it would otherwise forward. A link belongs to one
// call at a time. The call writes all its commands, then reads as many replies, and passes over pushes between them.
// [proto.Skimmer] finds where a reply ends.
//
// When a call has ended, its link is kept. There are at most Config.Conns links to one server, those in use included.
// Before a link is used, its socket is looked at without waiting, which shows whether the other side has closed it
// meanwhile. A link is closed if anything went wrong on it, or if its call was given up. [Links.Forget] says that a
// server has left, and may never answer what it has got.
//
// A server may remember something with a connection, such as the keys that are watched. That takes a link that is
// held: see [Links.Hold].
//
// # What may have happened
//
// An error of [Links.Do] is of one of three kinds. [ErrUnsent]: no command has been carried out, and all may be sent
// again. [ErrUncertain]: nobody knows which commands have been carried out. [*ReplyError]: all commands were
// answered, and the answer to one before the last was this error.
//
// # Concurrency
//
// Links are for any number of goroutines. Links.mu guards all state and is a leaf; nothing waits while it is held.
// Beside the goroutines of calls, there are only those of a [Herald]: one for each server that it has something to
// tell.
//
// # Files
//
//   - forward.go: Links, which connections are kept, and which calls wait
//   - herald.go: commands that are sent to servers while nobody waits for replies
//   - held.go: links that belong to one client for a while
//   - link.go: one connection: greeting, commands, replies
package forward
