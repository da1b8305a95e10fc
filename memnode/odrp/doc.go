// Package odrp lets the NIC put pages behind addresses when they are touched (section 2.2.3 of the OneSidedMW paper).
// A client has a translation [Table] of its own. Each of its accesses goes through the chain of a pager ([Pagers],
// chain.Page), which translates the address, and allocates a page on the first touch. Who may use which addresses is
// the business of package memnode, which calls Furnish and Withdraw.
//
// It differs from the paper's ODRP in one thing: the queue of free pages, too, is the client's own, and it gets as
// many pages as the client has addresses. So a malicious client can exhaust only its own pages, and what a chain was
// doing when its connection broke concerns one client only.
//
// # Limbo
//
// A page that is freed while a chain works on its entry may still be read or written, for as long as the client
// likes: the client need only not take the answer. Such a page waits in limbo until the chain is done with the entry.
// An honest client frees nothing that it still accesses.
//
// # Concurrency
//
// Everything belongs to one goroutine, a node's control goroutine, except Pagers.Failed and the onEvent function that
// Table.Open is given.
package odrp
