// Package server joins the resource manager and the metadata server into one
// process that serves clients: it knows who they are, logs what must survive,
// and reaps those that die.
//
// # Life of a request
//
// Every connection has one goroutine; requests by mailbox, of clients that are busy, are served by one goroutine for
// all. The goroutine takes s.mu, checks the request, appends a record to the log, applies it, lets go of s.mu, waits
// until the record is committed, and replies. Requests that change nothing that survives append nothing; but a lookup
// waits until the record of what it has found is committed, so that nobody sees a key that a crash could take back.
// Pages are used again, and memory is given back, only after the record that says so is committed.
//
// A record is committed when it is as durable as the memory it is about: memfd, huge pages and tmpfs do not survive
// the loss of power, so their records need only survive the daemon, and are written without waiting for the disk;
// records about keys in files and DAX devices are synced. With Options.Sync, the records about all keys are synced. A
// record about a region alone need not be synced: if the power goes, the region's owner is gone, too; and syncing the
// record of the first key in the region also syncs this earlier record.
//
// A checkpoint makes the log short. It is due when more of the log is dead than alive, or when the disk has no room
// for the log's next segment and the dead part of the log is more than a sixteenth of the live part. The checkpoint's
// own room is reserved beforehand. It is made without holding s.mu, except for some keys at a time. A checkpoint that
// fails is tried again, after pauses that grow to half a minute, and reported once. While the disk is full, requests
// that append are refused, others are served, and as soon as there is room all are served again.
//
// # Sessions
//
// A client is a session, which may have several connections, and which goes on
// over a restart of the daemon: the client presents its token again. A local
// session ends when the client says so, or when its process dies, which a
// pidfd tells at once. If no pidfd can be had, the pid and the start time of
// the process are looked at every second. A remote session ends when it has
// had no connection for the grace period.
//
// After a restart the daemon settles: it uses no page again until every session from before the restart has come back
// and told what it looks at, or is dead. A client that is alive and does not come back within Options.Settle, such as
// a process that is stopped, is named in the log and fenced: see fence.go. Pids from before mean nothing to a daemon
// that is started in another pid namespace, as in a new container; there, clients from before count as alive until
// they are back or fenced.
//
// # Who keeps memory
//
// With a Store, memory survives the daemon, and the daemon's death costs clients a moment. If the process behind the
// Store dies, the daemon reports it, and serves all requests but allocations, which would promise what nobody keeps.
// It hands all memory to the next such process (Server.tendStore) and ends; that process starts another daemon, which
// recovers.
//
// # Concurrency
//
// Server.mu guards all state of both halves. Lock order: Server.mu, then the
// log's and the poller's. No system call that can block on a client is made
// under Server.mu.
package server
