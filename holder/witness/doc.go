// Package witness holds registers at a majority of three or more witnesses, each of which is a
// small daemon with a file: polder witness. As long as a majority of them answers, registers
// are read and changed, linearizably, by any number of clients.
//
// # The protocol
//
// It is CASPaxos (Rystsov, 2018): one instance of Paxos for each register, without a log of
// changes and without a leader. A ballot is a counter and the number of the client that counts.
//
// To change a register, a client first asks all witnesses to promise that they will take part in
// no ballot below its own (prepare). When a majority has, the value that was accepted in the
// highest ballot among their answers is the one to go on from. If it has the version that the
// caller expects, the client proposes the new value with the next version; otherwise it proposes
// what it has found, so that what it reports is decided. A proposal that a majority accepts is
// decided.
//
// A witness that accepts also promises the client its next ballot. So a client that changes a
// register again, with no other between, needs one round trip to a majority.
//
// A read asks what the witnesses have accepted. If a majority accepted in the same ballot, that
// is decided, and nothing has to be written. Otherwise the client makes a round as for a change,
// which changes nothing.
//
// Each version has the ballot in which it was first proposed beside it. By it a client
// recognises its own change after the answer to it was lost.
//
// # Who may vote
//
// A witness draws a random identity when its directory is empty, and keeps it in the same log as
// the promises. The witnesses that vote are a Set: their identities, with a version. A witness
// has no vote until it is told that it belongs to a set, which an operator begins (Change), and
// each request names the identity that it is meant for. So a witness that has lost its file is a
// stranger: it answers, and has no vote, until a majority lets it in.
//
// The next set is decided in a register of the present one. Then witnesses of the present set
// are sealed: they accept nothing more. When a majority is, what they have accepted is copied to
// the witnesses of the next set; when a majority of those has everything, they are told that the
// set is theirs. A ballot's first part is the version of the set, so all ballots of the next set
// are above those of the one before. Whoever finds a change that was begun and left finishes it;
// doing it twice does no harm. The sets before and after need no witness in common.
//
// # Two nodes
//
// A Pair keeps registers at two nodes, where there is no majority: see there.
//
// # What a witness has on disk
//
// A write-ahead log (internal/wal), synced before each answer. When it cannot be written, the
// witness does not answer with what it could not write, and says so. A witness whose file was put
// back to an earlier state, as a snapshot of a virtual machine is, breaks the protocol: nobody
// notices.
//
// # Concurrency
//
// What decides is in three state machines without goroutines and clocks: acceptor, proposer,
// poll. Server and Client drive them, and so does a simulation in the tests. Server, Client
// and Register may be used by any number of goroutines.
package witness
