package shm

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"polder/internal/arena"
	"polder/internal/futex"
)

// The layout of a mailbox: a page with a header, and the slots. Of a slot, the
// first 32-bit word is its state and the second the length of its message.
const (
	halfAttended = 0 // header: not 0 while the daemon looks at the slots

	boxHeader = 4096
	slotSize  = 1024

	// Posts is how many requests can be in a mailbox at a time.
	Posts = 8
	// MaxPost is the largest request or answer in bytes.
	MaxPost = slotSize - 8

	boxSize = boxHeader + Posts*slotSize
)

// The states of a slot, and whose the slot is in each.
const (
	slotIdle     = iota // the client's
	slotPosted          // a request that nobody has taken: either side's
	slotTaken           // the daemon's
	slotAwaited         // the daemon's, and the client sleeps
	slotAnswered        // the client's
)

// Mailbox carries requests of one client, and their answers, without a system
// call while both sides are awake.
//
// The daemon makes a mailbox. It attends the mailbox, which is to say looks into it, only while the client is busy. A
// client whose mailbox is attended posts a request in an idle slot and watches the slot. If the daemon no longer
// attends, the client takes the request back and sends it through the socket. A daemon that stops attending first
// says so and then looks at all slots once more. All words are sequentially consistent, so either the daemon takes a
// request or the client retracts it.
//
// Both sides can write all of it at any time. The daemon copies a request out
// before it looks at it, and believes nothing that it finds; an answer is only
// for the client to whom the mailbox belongs.
//
// A slot is for one goroutine of the client at a time. The daemon's methods are for one goroutine, but for Send.
type Mailbox struct {
	mem    *arena.Mapping
	halves []atomic.Uint32
	users  atomic.Int64

	broken atomic.Bool // the client's: nobody will answer
}

// NewMailbox makes a client's mailbox, in the daemon, and the file to send to
// the client, which is the caller's.
func NewMailbox() (*Mailbox, *os.File, error) {
	fd, err := arena.NewMemfd("polder-share-mailbox", boxSize)
	if err != nil {
		return nil, nil, err
	}
	mem, err := fd.Map(0, boxSize, true)
	if err == nil {
		err = fd.SealSize()
	}
	if err != nil {
		fd.Close()
		return nil, nil, err
	}
	b := &Mailbox{mem: mem, halves: halves(mem.Bytes())}
	b.users.Store(1)
	return b, fd.File(), nil
}

// OpenMailbox maps the mailbox that the daemon has sent. The file stays the
// caller's.
func OpenMailbox(f *os.File) (*Mailbox, error) {
	mem, err := mapFile(f, boxSize, true)
	if err != nil {
		return nil, fmt.Errorf("cannot map the mailbox: %w", err)
	}
	b := &Mailbox{mem: mem, halves: halves(mem.Bytes())}
	b.users.Store(1)
	return b, nil
}

// Use counts one more user in, which must Close the mailbox, too. It returns false if the mailbox is unmapped
// already.
func (b *Mailbox) Use() bool {
	for {
		n := b.users.Load()
		if n == 0 {
			return false
		}
		if b.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Close counts a user out. The last one unmaps the mailbox.
func (b *Mailbox) Close() error {
	if b.users.Add(-1) > 0 {
		return nil
	}
	return b.mem.Close()
}

func (b *Mailbox) state(slot int) *atomic.Uint32 {
	return &b.halves[(boxHeader+slot*slotSize)/4]
}

func (b *Mailbox) length(slot int) *atomic.Uint32 {
	return &b.halves[(boxHeader+slot*slotSize)/4+1]
}

func (b *Mailbox) body(slot int) []byte {
	at := boxHeader + slot*slotSize + 8
	return b.mem.Bytes()[at : at+MaxPost : at+MaxPost]
}

// Attended reports whether the daemon looks for requests.
func (b *Mailbox) Attended() bool { return b.halves[halfAttended].Load() != 0 }

// Attend says whether the daemon looks for requests. Having said that it does
// not, it must look once more.
func (b *Mailbox) Attend(yes bool) {
	v := uint32(0)
	if yes {
		v = 1
	}
	b.halves[halfAttended].Store(v)
}

// Post puts a request of at most MaxPost bytes into an idle slot.
func (b *Mailbox) Post(slot int, msg []byte) {
	b.length(slot).Store(uint32(copy(b.body(slot), msg)))
	b.state(slot).Store(slotPosted)
}

// Retract takes a request back; false if the daemon has taken it.
func (b *Mailbox) Retract(slot int) bool {
	return b.state(slot).CompareAndSwap(slotPosted, slotIdle)
}

// Answered reports whether the answer is there.
func (b *Mailbox) Answered(slot int) bool { return b.state(slot).Load() == slotAnswered }

// Taken reports whether the daemon has taken the request, and not answered it.
func (b *Mailbox) Taken(slot int) bool {
	s := b.state(slot).Load()
	return s == slotTaken || s == slotAwaited
}

// Sleep waits for the answer to a request that was taken, for at most d. It
// blocks the thread, and may return for no reason.
func (b *Mailbox) Sleep(slot int, d time.Duration) {
	s := b.state(slot)
	s.CompareAndSwap(slotTaken, slotAwaited)
	if !b.broken.Load() {
		futex.Wait(s, slotAwaited, d)
	}
}

// Answer returns the answer, which is valid until Idle.
func (b *Mailbox) Answer(slot int) []byte {
	n := min(b.length(slot).Load(), MaxPost)
	return b.body(slot)[:n:n]
}

// Idle ends the use of a slot whose answer was read.
func (b *Mailbox) Idle(slot int) { b.state(slot).Store(slotIdle) }

// Break tells the client's goroutines that the daemon is gone. Any goroutine
// may call it.
func (b *Mailbox) Break() {
	b.broken.Store(true)
	for slot := range Posts {
		s := b.state(slot)
		s.CompareAndSwap(slotAwaited, slotTaken)
		futex.Wake(s)
	}
}

// Broken reports whether Break was called.
func (b *Mailbox) Broken() bool { return b.broken.Load() }

// Receive takes the request in a slot, if there is one, and copies it into
// buf, which has room for MaxPost bytes.
func (b *Mailbox) Receive(slot int, buf []byte) ([]byte, bool) {
	s := b.state(slot)
	if s.Load() != slotPosted || !s.CompareAndSwap(slotPosted, slotTaken) { // fast path: nothing
		return nil, false
	}
	n := min(b.length(slot).Load(), MaxPost)
	return buf[:copy(buf, b.body(slot)[:n])], true
}

// Write puts the answer to a request that was received into its slot. The
// client looks for it after Send. It is cut off after MaxPost bytes.
func (b *Mailbox) Write(slot int, msg []byte) {
	b.length(slot).Store(uint32(copy(b.body(slot), msg)))
}

// Send tells the client that the answer is there. Any goroutine may call it.
func (b *Mailbox) Send(slot int) {
	s := b.state(slot)
	if s.Swap(slotAnswered) == slotAwaited {
		futex.Wake(s)
	}
}
