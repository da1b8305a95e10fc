package chain

import (
	"encoding/binary"

	"polder/verbs"
)

// An Account is what the node's CPU keeps of one client that allocates and frees
// by chains, or of one of its pairs of chains if it has several, and what it decides when a chain has found the queue empty. It does
// not touch a device: whoever has the chains calls it, and does what it says. So
// the model checker plays the very code that a node runs. It belongs to the
// goroutine that has the Queue.
type Account struct {
	Budget int // chunks that the client may have
	Base   int // chunks that it had when it connected
	// Resume arms its allocation chain anew, after so many requests that were
	// served and so many in vain.
	Resume func(done, failed uint64)

	Failed uint64 // requests that found nothing
	Owed   bool   // its allocation chain waits for an element
	Told   bool   // the client knows that there is nothing
	Due    bool   // the client is to be told how things stand

	ring    []byte // of the allocation chain, nil while there is none
	program *Program
}

// Part is the i-th of n nearly equal parts of a number: what each of n chains that count
// by themselves may have of a client's budget. The parts of a smaller number are no larger.
func Part(all, i, n int) int { return (all + n - 1 - i) / n }

// A Cause is why an allocation chain has failed.
type Cause int

const (
	NotBegun   Cause = iota // it has not been given a request, so its device is gone
	QueueEmpty              // there was no entry: an element is owed now
	BadRequest              // it could not bind the windows of the entry that it has taken
)

// Open begins with an allocation chain, which has been posted; ring is its
// memory.
func (a *Account) Open(p *Program, ring []byte) { a.program, a.ring = p, ring }

// Close ends with it: what it has handed out belongs to Base.
func (a *Account) Close(q *Queue) {
	q.forget(a)
	a.Base += int(a.Taken())
	a.ring, a.Owed = nil, false
}

// Spare is how many chunks the client may take beside what it had: the Budget of
// its allocation chain.
func (a *Account) Spare() int { return a.Budget - a.Base }

// Taken is how many chunks its allocation chain has handed out.
func (a *Account) Taken() uint64 {
	if a.ring == nil {
		return 0
	}
	return Load(a.ring[a.program.Sent*verbs.WQESize+verbs.WQEAddr:]) - 1
}

// Over reports whether the client has asked for more than its budget; frees is
// how many requests to free its free chain has begun with. It has asked and no
// more: the allocation chain waits until as many chunks have come back. A client
// that may have all that there is never does.
func (a *Account) Over(frees func() uint64) bool {
	if a.ring == nil {
		return false
	}
	// Read in this order: a client that has been told that a chunk is free may
	// ask for one, and is not to be taken for one that did not wait.
	asked := int64(Received(a.ring) - a.Failed)
	return asked-int64(frees()) > int64(a.Spare())
}

// Stopped notes that the allocation chain has failed. It can have
// done so where it reads an entry, because there was none, or where it binds a
// window, because the client named a queue pair that is none; then it says which
// entry nobody has now.
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

// settled has the chain go on, for what it owed has arrived.
func (a *Account) settled() {
	a.Owed = false
	a.Resume(a.Taken(), a.Failed)
}

// Empty reports whether the client's next allocation would find nothing, which
// it is about to be told.
func (a *Account) Empty(q *Queue) bool {
	a.Told = a.Owed || q.Free() == 0
	return a.Told
}

// Tick notes that a notice is due if there is memory again, which the client does
// not know, and reports whether the client still waits for some.
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
