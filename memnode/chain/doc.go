// Package chain is the heart of OneSidedMW: the table of memory windows, the queue of free table entries, and the
// chains of work requests by which a memory node's NIC hands chunks out and takes them back (sections 3 and 4 of the
// paper, figure 5). The node's CPU posts the chains once; they recycle themselves.
//
// # Memory
//
// The table (MWTable) has an entry of 256 bytes for every chunk; verbs.Allocator describes it. An entry's owner is 0
// while nobody has the chunk. The free MW queue is a ring of addresses of entries. Its head and tail are words that
// hold addresses of ring elements, so that the result of a masked FETCH_ADD can be put into a later request's address
// as it is; the mask makes them wrap. A second ring of the same form takes freed chunks that the CPU must zero before
// they are lent again.
//
// # Allocation
//
// A request has the numbers of the access queue pairs and where to write the
// answer: an address and a key. The chain
//
//	WAIT      for the request, which the receive scatters into the fields below
//	WAIT      for the budget: for a free for each chunk taken beyond it
//	FETCH_ADD on the queue's head, into the next READ
//	READ      the element
//	READ      the entry, into the BIND_MWs' address, key and lkey
//	WRITE     zero into the element
//	BIND_MW   the first window to the Free QP, the others to the access QPs
//	WRITE     the owner into the entry
//	ENABLE    the WRITE of the answer and a SEND that wakes the client
//	...       restores its own counts, and enables itself
//
// It differs from the figure in two things. First, the second WAIT is ours. It waits for completions of the client's
// free chain, and begins to count below 0, by the budget. So the NIC itself never lets a client have more, whereas
// the paper's node finds out afterwards. The request is counted before that WAIT, so that the node sees who has tried
// to exceed its budget. A client that may have all chunks has a chain without this WAIT. Second, the element is
// zeroed after the entry has been read and not before. When the queue is empty the element is zero, the READ at
// address 0 violates protection, and the chain stops without having written. If it wrote the zero first, as in the
// figure, it could overwrite an entry that a free chain puts there in between, and a chunk would be lost: the model
// checker finds that within a second.
//
// # Freeing
//
// A request has a handle of 3 bytes, which says which entry. The receive puts it into the second to fourth byte of
// the READ's address; the other bytes are the table's. So a request can name only the beginning of an entry or a
// place outside of the table. The chain
//
//	WAIT      for the request
//	READ      the entry, into the LOCAL_INVs' keys and the addresses below
//	ENABLE    LOCAL_INV of the first window, on the Free QP, which fails unless the
//	          window is bound to that QP; and of the others, whatever QP they are bound to
//	FETCH_ADD on the low 8 bits of every key in the entry: the next owner gets
//	          another
//	WRITE     zeros over the chunk, if it is small
//	WRITE     0 into the owner
//	FETCH_ADD on the queue's tail, into the next WRITE
//	WRITE     the entry's address into the element; its completion is a credit
//	ENABLE    a SEND that tells the client
//
// # Devices that read ahead
//
// An RNIC may read a queue entry as soon as it is enabled. If a chain were enabled as a whole, such a device would
// execute entries as they were before the chain rewrote them. For it (verbs.DeviceAttr.Prefetches) chains are divided
// into sections. A section ends where the next one has been rewritten, with a FETCH_ADD, whose answer says that the
// WRITEs before it have been executed, and an ENABLE of the next section that waits for this answer. An allocation
// has four sections: up to the FETCH_ADD on the head, up to the READ of the element, up to the READ of the entry, and
// the rest. So has a free: up to the WAIT for the request, up to the READ of the entry, up to the FETCH_ADD on the
// tail, and the rest. The model checker tries all orders on a device that reads each entry when it is enabled, which
// is the worst that a device may do. It finds what is wrong with a chain that is enabled as a whole, and with a chain
// in which any two sections are made one.
//
// # Rights
//
// Clients' queue pairs and the chains must be in one protection domain, since a window can only be bound to a queue
// pair of its own domain. So the metadata is registered without remote rights, and a chain reaches it through windows
// of type 2B that are bound to the chain's own queue pair: a client that guesses their keys gets nothing.
//
// # An empty queue
//
// A chain that found the queue empty has moved the head past an element that is yet to be filled. That element is
// owed to the node: [Account.Stopped]. As soon as it is filled, [Queue.Settle] takes the entry out of it and puts the
// entry at the tail. A failed chain is not armed again before that, so at most as many elements are owed as there are
// chains. Elements owed because of chains that are gone are given back, by moving the head back. The ring is larger
// than the number of chunks by more than the number of chains, so nothing is ever overtaken.
//
// # Concurrency
//
// A Queue belongs to one goroutine, except for Free and Freed. Words that a NIC
// and the CPU share are accessed atomically by both.
package chain
