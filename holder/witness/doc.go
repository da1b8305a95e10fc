// Package witness holds registers at a majority of three or more witnesses, each of which is a
// small daemon with a file: polder witness. As long as a majority of them answers, registers
// are read and changed, linearizably, by any number of clients.
//
// # The protocol
//
// It is CASPaxos (Rystsov, 2018): one instance of Paxos for each register, without a log of changes and without a
// leader. A ballot consists of a counter and the number of the client that counts, after the version of the set (see
// below).
//
// To change a register, a client first asks all witnesses to promise that they will take part in no ballot below its
// own (prepare). When a majority has promised, the client goes on from the value that was accepted in the highest
// ballot among their answers. If this value has the version that the caller expects, the client proposes the new
// value with the next version; otherwise it proposes the value that it has found, so that what it reports is decided.
// A proposal that a majority accepts is decided.
//
// A witness that accepts also promises the client its next ballot. So a client that changes a register again needs
// one round trip to a majority, if no other client has changed it in between.
//
// A read asks what the witnesses have accepted. If a majority has accepted in the same ballot, that value is decided,
// and nothing has to be written. Otherwise the client makes a round as for a change, without changing the value.
//
// With each version is kept the ballot in which it was first proposed. By it a client recognises its own change after
// the answer to it was lost.
//
// # Who may vote
//
// A witness draws a random identity when its directory is empty, and keeps it in the same log as the promises. The
// witnesses that vote are a Set: their identities, with a version. A witness has no vote until it is told that it
// belongs to a set, which an operator arranges (Change), and each request names the identity of the witness that it
// is meant for. So a witness that has lost its file is a stranger: it answers, and has no vote, until a majority lets
// it in.
//
// The next set is decided in a register of the present one. Then witnesses of the present set are sealed: they accept
// nothing more. When a majority is sealed, what they have accepted is copied to the witnesses of the next set; when a
// majority of those has everything, they are told that they are the set. A ballot's first part is the version of the
// set, so all ballots of the next set are above those of the one before. A client that finds a change that was begun
// and not finished finishes it; doing it twice does no harm. Two successive sets need have no witness in common.
//
// # Two nodes
//
// A Pair keeps registers at two nodes, where there can be no majority: see Pair.
//
// # What a witness has on disk
//
// A write-ahead log (internal/wal), synced before each answer. If it cannot be written, the witness does not give the
// answer that depends on it, and reports the error. A witness whose file was put back to an earlier state, as by a
// snapshot of a virtual machine, breaks the protocol, and nobody notices.
//
// # Concurrency
//
// All decisions are made in three state machines without goroutines and clocks: acceptor, proposer, poll. Server and
// Client drive them, and so does a simulation in the tests. Any number of goroutines may use Server, Client and
// Register.
package witness
