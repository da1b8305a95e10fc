// Package broker is FineMem's allocation service: one process on every compute node
// that alone may change the metadata of the memory nodes, and both ends of how the
// node's applications ask it for memory.
//
// A [Broker] has a session of package finemem's with every memory node, and with it
// the key of the metadata. An application connects to its socket, gets a ring in
// shared memory, and asks for blocks; it is given their addresses and keys, and
// accesses them over queue pairs of its own, which the broker has no part in. It can
// do nothing else: it has no key of the metadata, and a memory node that has a service
// secret opens them to nobody who does not know it.
//
// A pool uses a broker through a [Dialer] and [Manager] (pool.Dial does, for
// addresses that begin with [scheme.Broker]); what needs blocks of other sizes than a node's
// chunk uses a [Client].
//
// # Wire
//
// Over the socket, which keeps message boundaries, the application says hello, and the
// broker answers with the addresses of its memory nodes and the memfd of a ring, or
// with the reason why not (hello.go). After that the application sends single bytes,
// to wake the broker; the broker sends nothing.
//
// The ring (ring.go) is a page of words, and slots for a request and its answer each
// (request.go). The application writes a request into a slot of its own and sets the
// slot's bit in the word of posted requests, which the broker takes as a whole. The
// answer is in the same slot, of which one word says that it is there: a futex.
// The broker looks for requests while there were some of late, and then says that it
// sleeps. So there is no system call while both are awake. A broker that sleeps is
// woken through the socket and not by a futex, since a thousand applications that
// want nothing would then be a thousand threads.
//
// # Trust
//
// The kernel says who connects (SO_PEERCRED), before anything that it sends is read:
// users that are not on the list are turned away, and each has a bounded number of
// connections and bytes. A ring belongs to one application. Its size and seals are
// fixed for good. The broker copies a request out before it looks at it, believes no
// index in it, and finds what it names in its own books: nobody frees what is another's. An
// answer is written and forgotten, so that it does not matter whether somebody reads
// it. An application that sends what makes no sense, or asks again and again for what
// is not its own, is disconnected. Applications take turns with a memory node, in
// the order of their coming.
//
// What guards an application's memory against other applications is its keys, which
// are 32 bits of which the other applications know none; see package memnode on
// guessing.
//
// # Failures
//
// An application has its memory until its process is dead (a pidfd tells) or its
// socket is closed; then the broker frees it. If the application only loses its
// connection to a memory node, it makes a new one and goes on. If the broker loses
// its own, it resumes its session, which the node keeps for a while, and nothing is
// lost; what the node has forgotten is lost, and requests for it are refused.
//
// The broker shows every node, every second, that it is alive. If it dies or hangs
// the node takes back everything after its grace period. Applications see [ErrGone]
// at once, their pools' chunks are lost when they find another broker, or when
// the time is over.
//
// # Concurrency
//
// A broker has two goroutines for every application and one for every node. A Client
// may be used by any number of goroutines; it has one of its own, and waiting callers
// sleep on their threads.
//
// Lock order: the turn at a node's allocator (finemem.Session.Do), node.mu, Broker.mu;
// Client.mu is apart. No lock is held across an operation on the fabric, but for the
// turn, which is there for that.
package broker

import (
	"errors"
	"fmt"

	"polder/pool/manager"
)

// DefaultSocket is where a broker listens if it is not told otherwise.
const DefaultSocket = "/run/polder/broker.sock"

var (
	// ErrGone: the connection to the broker is lost, and with it what it gave.
	ErrGone = errors.New("broker gone")
	// ErrDenied: the broker does not want to serve this user, or not more often.
	ErrDenied = errors.New("broker refused the connection")
	// ErrNodeDown: the broker cannot reach the memory node now.
	ErrNodeDown = errors.New("the broker cannot reach the memory node")
	// ErrStale: the memory node has forgotten what it gave the broker before.
	ErrStale = errors.New("the memory node has forgotten the broker's session")
	// ErrNotOwner: what is to be freed is not this application's.
	ErrNotOwner = fmt.Errorf("%w: not allocated by this application", manager.ErrRefused)
)
