package chain

import (
	"encoding/binary"

	"polder/verbs"
)

// An Account is what the node's CPU keeps of one client that allocates and frees by chains, or of one of the client's
// pairs of chains. It decides what to do when a chain has found the queue empty. It does not touch a device: whoever
// owns the chains calls it, and does what it says, so the model checker runs the same code as a node. It belongs to
// the goroutine that has the Queue.
type Account struct {
	Budget int // chunks that the client may have
	Base   int // chunks that it had when it connected
	// Resume arms the client's allocation chain again, after the chain has served done requests, and has received
	// failed requests in vain.
	Resume func(done, failed uint64)

	Failed uint64 // requests that found nothing
	Owed   bool   // the allocation chain waits for a queue element to be filled
	Told   bool   // the client has been told that there is no memory
	Due    bool   // the client is to be told how things stand

	ring    []byte // of the allocation chain, nil while there is none
	program *Program
}

// Part is the i-th of n nearly equal parts of all. A client's budget is divided in this way among n pairs of chains,
// which count by themselves. No part grows when all gets smaller.
func Part(all, i, n int) int { return (all + n - 1 - i) / n }

// A Cause is why an allocation chain has failed.
type Cause int

const (
	NotBegun   Cause = iota // the chain has not received a request, so its device is gone
	QueueEmpty              // the queue had no entry: its element is owed now
	BadRequest              // the chain could not bind the windows of the entry that it has taken
)

// Open begins the account of the client's allocation chain, which has been posted. ring is the chain's memory.
func (a *Account) Open(p *Program, ring []byte) { a.program, a.ring = p, ring }

// Close ends the account of the allocation chain: the chunks that it has handed out now count as Base.
func (a *Account) Close(q *Queue) {
	q.forget(a)
	a.Base += int(a.Taken())
	a.ring, a.Owed = nil, false
}

// Spare is how many chunks the client may take in addition to those it had when it connected: the Budget of its
// allocation chain.
func (a *Account) Spare() int { return a.Budget - a.Base }

// Taken is how many chunks the allocation chain has handed out.
func (a *Account) Taken() uint64 {
	if a.ring == nil {
		return 0
	}
	return Load(a.ring[a.program.Sent*verbs.WQESize+verbs.WQEAddr:]) - 1
}

// Over reports whether the client has asked for more than its budget; frees returns how many requests its free chain
// has begun to serve. The client has only asked, not got more: the allocation chain waits until as many chunks have
// come back. Over is never true for a client whose budget is all chunks.
func (a *Account) Over(frees func() uint64) bool {
	if a.ring == nil {
		return false
	}
	// Count requests before frees: a client that has been told that a chunk is free may ask for one at once, and must
	// not be taken for a client that did not wait.
	asked := int64(Received(a.ring) - a.Failed)
	return asked-int64(frees()) > int64(a.Spare())
}

// Stopped notes that the allocation chain has failed, and returns why. The chain fails where it reads an entry if
// there was none (QueueEmpty). It fails where it binds a window if the client named a queue pair that does not exist
// (BadRequest); then nobody has the chunk of the returned entry.
//
// Preconditions: nothing executes the chain any more.
func (a *Account) Stopped(q *Queue) (cause Cause, entry uint64) {
	address := func(i int) uint64 { return binary.LittleEndian.Uint64(a.ring[i*verbs.WQESize+verbs.WQEAddr:]) }
	entry, slot := address(a.program.Entry), address(a.program.Element)
	switch {
	case slot == 0:
		return NotBegun, 0
	case entry != 0:
		return BadRequest, entry
	}
	a.Owed, a.Due = true, true
	a.Failed++
	q.owe(slot, a)
	return QueueEmpty, 0
}

// settled resumes the chain: the element that it waited for has been filled.
func (a *Account) settled() {
	a.Owed = false
	a.Resume(a.Taken(), a.Failed)
}

// Empty reports whether the client's next allocation would find no memory. The caller then tells the client so.
func (a *Account) Empty(q *Queue) bool {
	a.Told = a.Owed || q.Free() == 0
	return a.Told
}

// Tick makes a notice due if the client was told that there is no memory and there is some again. It reports whether
// the client still waits for memory.
//
// Preconditions: the queue has been settled.
func (a *Account) Tick(q *Queue) (waits bool) {
	if !a.Told {
		return false
	}
	if q.Free() == 0 {
		return true
	}
	a.Due = a.Due || !a.Owed
	return false
}
