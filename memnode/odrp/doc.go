// Package odrp has the NIC put pages behind addresses when they are touched (section
// 2.2.3 of the OneSidedMW paper). A client has a translation [Table] of its own, and
// every access of its goes through the chain of a pager ([Pagers], chain.Page), which
// translates, and on the first touch allocates. Who may use which addresses is the
// business of package memnode, which calls Furnish and Withdraw.
//
// It differs from the paper's in one thing. The queue of free pages is the client's
// own, too, and as many pages are moved to it as the client has addresses: a malicious
// client can exhaust nobody's pages but its own, and what a chain was doing when its
// connection broke concerns one client.
//
// # Limbo
//
// A page that is freed while a chain works on its entry may still be read or written,
// for as long as the client likes: it need only not take the answer. Such a page waits
// in limbo until the chain is done with it. An honest client frees nothing that it
// still accesses.
//
// # Concurrency
//
// All of it belongs to one goroutine, a node's control goroutine, but for
// Pagers.Failed and what Table.Open is told to call.
package odrp
