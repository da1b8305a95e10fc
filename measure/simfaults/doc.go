// Package simfaults runs the owner of a named heap, its copies and its log in a simulated cluster in which everything
// that may go wrong does, and checks that nothing is lost.
//
// # What is real
//
// Packages far/copies and far/named run as they ship: placing copies, writing to all of them, closing a segment that
// has a late copy, reading from another copy, repair, drain, spare copies, nodes that join and end, giving chunks
// back; the manifest, epochs, evidence and leases, giving the heap up; the log. Their goroutines are tasks of package
// internal/turns: one runs at a time, in virtual time, in an order that the seed decides.
//
// The rest is a few lines for each part, behind the same interfaces: nodes that lend chunks, connections, the
// register of the manifest (the real register, package holder/witness, has a simulator of its own), a server that
// uses its store as package far and a durable server do, and clients. Segments have 128 KiB, the least that a real
// store may have.
//
// # What goes wrong
//
// Nodes lose their memory, one node or a whole zone, and come back empty; restart with their memory, one or all; stop
// for a while; are slow; are full; are to leave, for some time or for good; join; and give memory that they may drop
// back to their hosts. Servers are killed, stopped, cut off from nodes or from the register (in one direction or
// both), superseded while they live, and give the heap up. Messages are late; messages to and from the register also
// get lost, are repeated, and overtake each other. Clocks drift by up to 2 %. Bytes of copies change, for a while or,
// after the other faults, for good. Memory is lost only as long as each segment keeps a good copy by what the
// manifest and the owner have promised; while a copy is damaged, the other copies stay reachable, since a copy that
// cannot be reached for some seconds counts as lost.
//
// A run with a little of every fault seldom has enough of any. So the seed also decides what a run has much of and
// what it lacks: each kind of fault, how late the register is, how long values stay local, how often clients ask the
// wrong server.
//
// # What is checked
//
// Each answer to a client has at least the newest version that was acknowledged to a client, or shown to one, before
// the client asked. Each value says which key and version it is. Nothing is used, reopened or given back after it has
// been given back. About every second, each copy that counts has all that was written to it, and a server that opened
// the heap then would find all that was acknowledged or shown, whichever copy of each segment it read. No server
// answers in an epoch once the next epoch is served. When the faults are over, there is an owner, clients are
// answered, each segment has its copies in zones of their own, nodes keep nothing else, and a node that is to leave
// gets empty and stays empty. Two runs of a seed have the same checksum over all events.
//
// # Files
//
// cluster (all parts together, and clients), server, node, place (a node as a server reaches it), network, register,
// faults, inspect (what is checked all the time), check (what is checked when the faults are over), run.
package simfaults
