// Package memnode lends this host's memory to other hosts.
//
// A [Node] maps the memory that it lends once, registers it once, and cuts it
// into chunks of one size. How a client comes to chunks and gives them back is the
// business of a manager, which Config.Manager names: by messages on a management
// queue pair (package wire has their layout), or by requests that the device
// serves by itself. The client reads and writes them with one-sided operations on
// access queue pairs, which the device executes without any code of this package
// running.
//
// # One-sided management
//
// [OneSided] and [Native] are OneSidedMW: the device takes chunks from a queue and
// binds their windows, by chains of work requests (package chain) or by a verb of
// its own (verbs.Allocator), from the same table and queue. The control goroutine
// makes queue pairs and chains when a client connects, and posts nothing
// afterwards. What it has to do, and to know:
//
//   - A client may have several groups of access queue pairs, each of which opens other
//     chunks, and several pairs of chains, each of which has a part of the client's budget
//     and frees what it has allocated.
//   - When a client comes back its chunks' windows are bound to its new queue
//     pairs; when one stays away, the table's owner fields say what to reclaim.
//   - Chunks of up to 64 KiB are zeroed by the device when they are freed, and stay
//     populated. The device puts larger ones into a second queue; the control
//     goroutine gives their pages back to the operating system and moves them to
//     the first. It looks there every 50 ms, and when a client finds the first
//     queue empty.
//   - A chain that finds the queue empty fails. The client is told so, and when
//     there is memory again. See package chain.
//   - The device keeps every client within its budget: the verb refuses, and a
//     chain waits until as much has been freed (package chain). Every 50 ms the
//     counts that chains keep show who has asked for more than its budget; it loses
//     the queue pairs to allocate and to free with.
//
// # Isolation
//
// Every chunk that is lent has a memory window of type 2B of its own, bound to
// the borrower's access queue pair: no other queue pair can use it, and the
// device checks its bounds on every access. The registration underneath gives
// no remote access of its own. All clients' access queue pairs share one
// protection domain, because a real device pins and maps memory once for every
// domain that it is registered in, and a type 2B window is narrower than a
// domain anyway. Management queue pairs and their message buffers lie in a
// domain apart from it.
//
// The node binds and invalidates windows on a queue pair of its own that is
// connected to itself, naming the client's queue pair: on the client's, they
// would have to wait for a client that does not read its responses.
//
// One-sided managers have one window more for every chunk, on the queue pair that
// frees: only who has it can free the chunk. Their metadata is registered without
// remote rights, too; chains reach it through windows of their own queue pairs.
//
// A chunk that comes back is first made inaccessible (LOCAL_INV of its window,
// or deallocation of it with the client's connection), then its pages are
// given back to the operating system, and only then may it be lent again;
// the next borrower reads zeros.
//
// Clients on the node's own machine (manager MemFD) are kept apart by the kernel:
// each is passed a memfd of its own, which it maps. Package tenancy says why that
// memory can be taken back.
//
// With Config.InPlace clients on the node's machine that connect over TCP read in place (package inplace). The memory is a
// memfd then, and a client of the node's user or of root that has a session is passed it at a Unix socket, opened for reading
// only, with a lease. It writes over its queue pairs as any other client does, and so a kept session can be taken over
// from it: the node revokes the lease before it closes the queue pairs, and the client looks at the lease after it has copied
// something, and before it believes it. A client sees what others have borrowed, as it could by looking at the memory
// of a process of its own user. The memory has huge pages only if the host has them for all shared memory, and pages are
// charged to the control group of who touches them first, which is the node, since it is its device that writes.
//
// # Sessions
//
// A client is a session: a number and a secret that the node invents. When its
// connection is gone its chunks stay, inaccessible, for the grace period;
// whoever shows the secret within it gets them back, under new keys. After it
// everything is reclaimed. A client that owns nothing is forgotten at once.
//
// A session can be kept (wire.Keep), by managers whose windows serve the queue pairs
// of one client alone ([Native], [OneSided], [RPCMW]). Its memory is given back when its
// client frees it, or by an operator's word (Node.GiveUp), and never because the client
// is away. There are Config.MaxKept at most; budgets are as for any client. Who resumes
// one shows number, secret, and an epoch that is not lower than the last. Before the
// node answers it has closed the queue pairs of the connection before, and deallocated
// the windows: nothing that was sent over them lands any more, which is how a server
// that was superseded is kept from writing. The node invents the numbers and keeps them
// with the memory, so whoever asks for one that it does not know learns by the new
// session that the memory is lost. Components do not outlive the grace period.
//
// # Memory that outlives the process
//
// With Config.Outliving the memory is a memfd in a descriptor store, a service manager's or a
// keeper's, and so are the sessions and the owners of chunks, in the same memfd before the
// chunks (package ledger has the layout). The next node resumes them, by the managers that can keep
// sessions; their clients are away, as after a lost connection, and come back with their
// secrets. Sessions that are kept have their epochs still. Windows, keys and queue pairs are
// the device's, and end with the process: nothing that was sent to them lands any more.
//
// A node may be killed at any instant. What counts is a word, a chunk's owner or a session's,
// that is written before the client is answered; what nobody owns is zeroed before it is lent.
// Components and their objects end with the process.
//
// # Lending what is idle
//
// With Config.Idle a node lends no more than Node.Yield says, which is called again and again, by what a [Lending]
// decides of the host's need. What is lent beyond that is dropped where clients have permitted it
// (wire.OpMayVanish): the pages are given back at once, and the chunks stay their owners', who are told, and free
// them. If that is not enough, clients are told that the node is leaving, as by a drain, until they have moved
// enough. Chunks that nobody has are withheld meanwhile. That there is room again no client is told: each asks once a second,
// since every answer says how much there is (package pool). A permission is looked up when it is used: the chunk must be
// the client's still, and chunks that are freed wait for the control goroutine to be zeroed, so that none is
// another's by then. Permissions are a connection's, and end with it at both ends.
//
// # Hostile clients
//
// A client can make the node hold a few queue pairs, 16 KiB of message buffers, as
// much for every pair of chains, and what its budget allows, and no more: of each
// kind of queue pair what it was granted when it connected (Config.Group, MaxGroups
// and MaxPairs), a fixed number of sessions, a fixed number of requests
// unanswered. Requests above that number find no receive posted and break the
// sender's own queue pair; a client that does not take its replies stops being
// served. A free names chunks of the client's own or frees none.
//
// # Concurrency
//
// One control goroutine owns the sessions and the chunk table, and holds no
// lock while it waits for the device. What reaches it from elsewhere goes
// through a bounded channel of connection requests and a list of clients that
// have something to be looked at, each of which is on it at most once. Accept
// loops, one for every Serve, and one watcher for every connection are the
// only other goroutines; Close ends them all. Stats reads atomic counters, and may
// wait for the control goroutine to bring them up to date.
package memnode
