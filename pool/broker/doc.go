// Package broker is FineMem's allocation service. A broker is a process on every compute node; it alone may change
// the metadata of the memory nodes. The package has both ends of how the compute node's applications ask the broker
// for memory.
//
// A [Broker] has a session of package finemem with every memory node, and with it the key of the metadata. An
// application connects to the broker's socket, gets a ring in shared memory, and asks for blocks. It gets their
// addresses and keys, and accesses them over queue pairs of its own, without the broker. It can do nothing else: it
// has no key of the metadata, and a memory node with a service secret opens its metadata only to clients that know
// the secret.
//
// A pool uses a broker through a [Dialer] and [Manager] (pool.Dial does so for addresses that begin with
// [scheme.Broker]). A program that needs blocks of other sizes than a node's chunk uses a [Client].
//
// # Wire
//
// The socket keeps message boundaries. Over it the application says hello, and the broker answers with the addresses
// of its memory nodes and the memfd of a ring, or with the reason for a refusal (hello.go). After that the
// application sends single bytes, to wake the broker; the broker sends nothing.
//
// The ring (ring.go) is a page of words, and slots, each for one request and its answer (request.go). The application
// writes a request into a slot of its own, and sets the slot's bit in the word of posted requests. The broker takes
// that word as a whole, and writes the answer into the same slot; one word of the slot, a futex, says that the answer
// is there. The broker looks for requests as long as there have been some lately, and then says that it sleeps. So
// there is no system call while both ends are awake. A sleeping broker is woken through the socket and not by a
// futex: with a futex, a thousand idle applications would take a thousand threads.
//
// # Trust
//
// The kernel says who connects (SO_PEERCRED), before the broker reads anything that the application sends. Users that
// are not on the list are refused, and each user may have only so many connections and bytes. A ring belongs to one
// application. Its size and seals are fixed for good. The broker copies a request out before it looks at it, believes
// no index in it, and looks up what it names in its own books: nobody can free what belongs to another application.
// The broker writes an answer and forgets it, so it does not matter whether anybody reads it. An application that
// sends malformed requests, or that asks again and again for what does not belong to it, is disconnected.
// Applications take turns at a memory node, in the order in which they come.
//
// What guards an application's memory against other applications is its keys. A key has 32 bits, of which other
// applications know none; package memnode says what guessing takes.
//
// # Failures
//
// An application has its memory until its process is dead (a pidfd tells) or its socket is closed; then the broker
// frees it. If the application only loses its connection to a memory node, it makes a new one and goes on. If the
// broker loses its connection to a node, it resumes its session, which the node keeps for a while, and nothing is
// lost. What the node has forgotten is lost, and requests for it are refused.
//
// The broker shows every node, every second, that it is alive. If it dies or hangs, the node takes everything back
// after its grace period. Applications see [ErrGone] at once. Their pools' chunks are lost when the pools find
// another broker, or when the grace period is over.
//
// # Concurrency
//
// A broker has two goroutines for every application and one for every node. A Client may be used by any number of
// goroutines. It has one goroutine of its own; waiting callers sleep on their threads.
//
// Lock order: the turn at a node's allocator (finemem.Session.Do), node.mu, Broker.mu; Client.mu is apart. No lock is
// held across an operation on the fabric, except the turn, which is there for that.
package broker

import (
	"errors"
	"fmt"

	"polder/pool/manager"
)

// DefaultSocket is the default path of a broker's socket.
const DefaultSocket = "/run/polder/broker.sock"

var (
	// ErrGone: the connection to the broker is lost, and with it everything that was allocated over it.
	ErrGone = errors.New("broker gone")
	// ErrDenied: the broker refuses to serve this user, or to accept more connections.
	ErrDenied = errors.New("broker refused the connection")
	// ErrNodeDown: the broker cannot reach the memory node now.
	ErrNodeDown = errors.New("the broker cannot reach the memory node")
	// ErrStale: the memory node has forgotten what it lent to the broker before.
	ErrStale = errors.New("the memory node has forgotten the broker's session")
	// ErrNotOwner: the block to be freed does not belong to this application.
	ErrNotOwner = fmt.Errorf("%w: not allocated by this application", manager.ErrRefused)
)
