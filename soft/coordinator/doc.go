// Package coordinator shares a host's idle memory among the soft heaps of its
// processes, and takes it back when somebody needs it.
//
// A client (package soft) connects to a Unix socket and hands over two memfds:
// its segments and the table of their generations. From then on the
// coordinator owns the memory as much as the client does: it grants a segment
// by making its generation even, and revokes one by making it odd and punching
// its pages away. It needs no privilege for that, no kernel module, and nobody's
// help: it works on a client that is stopped, wedged or malicious.
//
// # How memory is taken
//
// While less than the reserve is left on the host, heaps shrink. Cooperatively
// first: a client is told its new budget and empties segments, saving what is
// hot. Directly if it does not meet its deadline, or if less than half of the
// reserve is left: the coordinator takes empty segments, then the coldest by
// the ranks that the client publishes.
//
// # Whom it trusts
//
// Nobody. It maps nothing that a client can truncate, believes no figure that
// a client sends beyond its own account, bounds connections, clients and bytes
// of each user, and checks with fstat how much of each memfd really exists. A
// client that keeps more than it was granted is punched again, and ended (its
// memfd truncated, which faults it) when it persists.
//
// # State
//
// None on disk. A client keeps its memory when the coordinator goes away, and registers it again, with what it holds,
// when there is one. Clients that come back first must not be given the memory of clients that come back later: a
// coordinator grants nothing, and takes nothing from one client for another, until Config.Grace has passed since its
// start. It does not wait for anybody in particular, so a client that never comes back delays nobody. A client's word
// that it has a segment counts only if memory of that segment exists: when memory is short, the coordinator takes
// segments that exist.
//
// # Concurrency
//
// One goroutine accepts, one for each client receives, one decides
// (Coordinator.run) and takes memory. The state is under Coordinator.mu; the
// generations are atomic words that the clients change too. Nothing is sent
// that could block: a client that does not read loses messages, all of which
// only say when to look at its table.
package coordinator
