// Package simfaults runs the owner of a named heap, its copies and its log in a simulated cluster in which everything goes wrong that
// may, and checks that nothing is lost.
//
// # What is real
//
// Packages far/copies and far/named run as they ship: where copies are placed, writing to all of them, closing a segment that has a late one,
// reading from another, repair, drain, spare copies, nodes that join and end, giving back; the manifest, epochs, evidence and leases, giving the
// heap up; the log. Their goroutines
// are tasks of package internal/turns: one runs at a time, in virtual time, in an order that the seed decides.
//
// What surrounds them is a few lines each, of the same interfaces: nodes that lend chunks, connections, the register of the
// manifest (whose real one, package holder/witness, has a simulator of its own), a server that does with its store what package far
// and a durable server do, and clients. The segments have the size of real ones, 128 KiB.
//
// # What goes wrong
//
// Nodes lose their memory, alone or a whole zone, and come back empty; restart with their memory, alone or all; stop for a while; are
// slow; are full; are to leave, for some time or for good; join; and give back to their hosts what they may drop. Servers are killed,
// stopped, cut off from nodes or from the register, in one direction or both, superseded while they live, and give the heap up. Messages are late; those to
// the register are lost, repeated, and overtake each other. Clocks drift by up to 2 %. Bytes of copies change for a while. Memory is lost only as
// long as each segment keeps a good copy by what the manifest and the owner have promised; while a copy is damaged the others can be
// reached, since one that cannot be for some seconds counts as lost.
//
// What all runs have a little of is seldom enough of anything. So the seed also decides what a run has much of and what it does not have:
// each kind of fault, how late the register is, for how long values stay local, how often clients ask the wrong server.
//
// # What is checked
//
// Whatever was acknowledged to a client, or shown to one, is what any later answer has, or something newer. Each value says what it
// is. Nothing is used, reopened or given back after it has been given back. About every second each copy that counts has all that was
// written to it, and whoever opened the heap would find all that was acknowledged or shown, whichever copy of each segment it read. Nobody
// answers in an epoch once the next one is served. When the faults are over, there is an owner, clients are
// answered, each segment has its copies, in zones of their own, nodes keep nothing else, and one that is to leave gets empty and stays so.
// Two runs of a seed have the same checksum over all events.
//
// # Files
//
// cluster (what there is, and clients), server, node, place (a node as a server reaches it), network, register, faults, inspect (what is
// looked at all the time), check (and when the faults are over), run.
package simfaults
