// Package memnode lends this host's memory to other hosts.
//
// A [Node] maps the memory that it lends once, registers it once, and cuts it into chunks of one size. How a client
// obtains chunks and gives them back is the business of a manager, which Config.Manager names: it works by messages
// on a management queue pair (package wire has their layout), or by requests that the device serves by itself. The
// client reads and writes the chunks with one-sided operations on access queue pairs, which the device executes
// without any code of this package running.
//
// # One-sided management
//
// [OneSided] and [Native] are OneSidedMW: the device takes chunks from a queue and binds their windows. OneSided does
// so by chains of work requests (package chain), Native by a verb of the device's own (verbs.Allocator); both use the
// same table and queue. The control goroutine makes queue pairs and chains when a client connects, and posts nothing
// afterwards. What it still does, and what one must know:
//
//   - A client may have several groups of access queue pairs, each of which opens other chunks. It may have several
//     pairs of chains, each of which has a part of the client's budget and frees the chunks that it has allocated.
//   - When a client comes back, its chunks' windows are bound to its new queue pairs. When a client stays away, the
//     table's owner fields say which chunks to reclaim.
//   - The device zeroes chunks of up to 64 KiB when they are freed; their pages stay populated. It puts larger chunks
//     into a second queue. The control goroutine gives their pages back to the operating system and moves the chunks
//     to the first queue. It looks into the second queue every 50 ms, and when a client finds the first one empty.
//   - A chain that finds the queue empty fails. The client is told that it has failed, and is told again when there
//     is memory. See package chain.
//   - The device keeps every client within its budget: the verb refuses, and a chain waits until the client has freed
//     as much (package chain). Every 50 ms the control goroutine reads the counts that the chains keep. A client that
//     has asked for more than its budget loses the queue pairs that it allocates and frees with.
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
// The node binds and invalidates windows on a queue pair of its own, which is connected to itself, and names the
// client's queue pair in the request. On the client's queue pair these requests would have to wait for a client that
// does not read its responses.
//
// One-sided managers have one more window for every chunk, bound to the queue pair that frees: only the client that
// has this queue pair can free the chunk. Their metadata, too, is registered without remote rights; chains reach it
// through windows of their own queue pairs.
//
// A chunk that comes back is first made inaccessible (by LOCAL_INV of its window, or, when the client's connection is
// gone, by deallocation of the window). Then its pages are given back to the operating system, and only then may it
// be lent again; the next borrower reads zeros.
//
// Clients on the node's own machine (manager MemFD) are kept apart by the kernel:
// each is passed a memfd of its own, which it maps. Package tenancy says why that
// memory can be taken back.
//
// With Config.InPlace, clients on the node's machine that connect over TCP read in place (package inplace). The lent
// memory is then a memfd. A client that has a session, and runs as the node's user or as root, is passed this memfd
// at a Unix socket, opened for reading only, together with a lease. It writes over its queue pairs as any other
// client does, so a kept session can be taken over from it: the node revokes the lease before it closes the queue
// pairs, and the client checks the lease after it has copied something and before it believes the copy. A client can
// see what others have borrowed, as it could by looking at the memory of another process of its own user. The memory
// has huge pages only if the host has them for all shared memory. A page is charged to the control group of the
// process that touches it first, which is the node, since the node's device does the writing.
//
// # Sessions
//
// A client is a session: a number and a secret that the node invents. When the client's connection is gone, its
// chunks stay, inaccessible, for the grace period; a client that shows the secret within this time gets them back,
// under new keys. After the grace period everything is reclaimed. A client that owns nothing is forgotten at once.
//
// A session can be kept (wire.Keep) if the manager's windows serve the queue pairs of one client only ([Native],
// [OneSided], [RPCMW]). Its memory is given back when its client frees it, or when an operator gives it up
// (Node.GiveUp), but never because the client is away. A node has at most Config.MaxKept kept sessions; budgets are
// as for any client. To resume one, a client shows number, secret, and an epoch that is not lower than the last.
// Before the node answers it has closed the queue pairs of the previous connection and deallocated the windows:
// nothing that was sent over them lands any more, which is how a superseded server is kept from writing. The node
// invents the numbers and keeps them with the memory. So a client that asks for a number that the node does not know
// gets a new session, and learns by this that the memory is lost. Components do not outlive the grace period.
//
// # Memory that outlives the process
//
// With Config.Outliving the memory is a memfd in the descriptor store of a service manager or of a keeper. The same
// memfd also holds, before the chunks, the sessions and the owners of chunks (package ledger has the layout). The
// next node resumes them, if its manager can keep sessions. Their clients count as away, as after a lost connection,
// and come back with their secrets. Kept sessions still have their epochs. Windows, keys and queue pairs are the
// device's, and end with the process: nothing that was sent to them lands any more.
//
// A node may be killed at any instant. What counts is a single word, a chunk's owner or the owner number of a
// session's record, which is written before the client is answered. Chunks that nobody owns are zeroed before they
// are lent. Components and their objects end with the process.
//
// # Lending what is idle
//
// With Config.Idle a node lends no more than Node.Yield says. Yield is called again and again with what a [Lending]
// decides from the host's need. If more is lent than that, chunks are dropped where their clients have permitted it
// (wire.OpMayVanish): their pages are given back at once; the chunks still belong to their clients, who are told, and
// free them. If that is not enough, clients are told that the node is leaving, as in a drain, until they have moved
// enough. Meanwhile chunks that nobody has are withheld. No client is told when there is room again: each asks once a
// second, since every answer says how much there is (package pool). The node looks a permission up at the moment when
// it uses it. The chunk must still be the client's then; and it cannot have become another client's, since freed
// chunks wait until the control goroutine has zeroed them. Permissions belong to a connection, and end with it at
// both ends.
//
// # Hostile clients
//
// A client can make the node hold a few queue pairs, 16 KiB of message buffers, as much for every pair of chains, and
// the memory that its budget allows, and no more. It gets as many queue pairs of each kind as it was granted when it
// connected (Config.Group, MaxGroups and MaxPairs). The number of sessions is fixed, and so is the number of a
// client's unanswered requests: a request above that number finds no receive posted and breaks the sender's own queue
// pair. A client that does not take its replies is no longer served. A request to free frees all the chunks that it
// names if they are the client's own, and otherwise none.
//
// # Concurrency
//
// One control goroutine owns the sessions and the chunk table, and holds no lock while it waits for the device. Other
// goroutines reach it through a bounded channel of connection requests, through calls that it runs for them, and
// through a list of clients that it must look at, on which each client is at most once. The only other goroutines are
// accept loops, one for every Serve, and one watcher for every connection; Close ends them all. Stats reads atomic
// counters, and may wait for the control goroutine to bring them up to date.
package memnode
