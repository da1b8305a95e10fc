package broker

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"polder/internal/arena"
	"polder/internal/futex"
)

// The ring's memfd, in bytes:
//
//	   0  u32  posted: bit i is set when there is a request in slot i
//	  64  u32  1 while the broker sleeps
//	4096       the slots, of a page each:
//	             0  u32  state, a futex
//	            64       the request
//	           128       the answer
//
// Words are in the host's byte order. Either end may write any of these bytes at any time.
const (
	slots    = 16
	slotSize = 4096
	ringHead = 4096
	ringSize = ringHead + slots*slotSize

	offAsleep  = 64
	offRequest = 64
	offAnswer  = 128
)

// The states of a slot.
const (
	slotWaiting  = 0
	slotAnswered = 1
	slotAsleep   = 2 // waiting, and the application sleeps
)

// ring is the mapped memfd.
type ring struct {
	mem    *arena.Mapping
	posted *atomic.Uint32
	asleep *atomic.Uint32
	states [slots]*atomic.Uint32
}

// newRing makes a ring. The caller owns the memfd, and passes it on.
func newRing() (*ring, *arena.Memfd, error) {
	fd, err := arena.NewMemfd("polder-broker", ringSize)
	if err != nil {
		return nil, nil, err
	}
	if err := fd.SealForGood(); err != nil {
		fd.Close()
		return nil, nil, err
	}
	r, err := mapRing(fd)
	if err != nil {
		fd.Close()
		return nil, nil, err
	}
	return r, fd, nil
}

// openRing maps a ring that was passed, and takes over the file.
func openRing(f *os.File) (*ring, error) {
	fd, err := arena.OpenMemfd(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	defer fd.Close()
	if err := fd.CheckShrinkSealed(); err != nil {
		return nil, fmt.Errorf("cannot use the broker's memory: %w", err)
	}
	if fd.Size() != ringSize {
		return nil, malformed("ring of %d bytes, want %d", fd.Size(), ringSize)
	}
	return mapRing(fd)
}

func mapRing(fd *arena.Memfd) (*ring, error) {
	mem, err := fd.Map(0, ringSize, true)
	if err != nil {
		return nil, err
	}
	b := mem.Bytes()
	r := &ring{mem: mem, posted: arena.Word32(b), asleep: arena.Word32(b[offAsleep:])}
	for i := range r.states {
		r.states[i] = arena.Word32(b[ringHead+i*slotSize:])
	}
	return r, nil
}

func (r *ring) request(i int) []byte {
	return r.mem.Bytes()[ringHead+i*slotSize+offRequest:][:requestSize]
}

func (r *ring) answer(i int) []byte {
	return r.mem.Bytes()[ringHead+i*slotSize+offAnswer:][:slotSize-offAnswer]
}

// post announces the request in slot i, and reports whether the broker must be woken. The application calls it.
func (r *ring) post(i int) (asleep bool) {
	r.states[i].Store(slotWaiting)
	r.posted.Or(1 << i)
	return r.asleep.Load() != 0 && r.asleep.Swap(0) != 0
}

// answered reports whether the answer is in slot i. The application calls it.
func (r *ring) answered(i int) bool { return r.states[i].Load() == slotAnswered }

// maxSleep bounds a sleep, since the broker may write to the word, too.
const maxSleep = 500 * time.Millisecond

// sleep waits for the answer in slot i, or for rouse, unless over returns true. It may return without a reason. The
// application calls it.
func (r *ring) sleep(i int, over func() bool) {
	s := r.states[i]
	if s.Load() != slotAsleep && !s.CompareAndSwap(slotWaiting, slotAsleep) {
		return
	}
	// A rouse from here on changes the word; over knows of earlier ones.
	if !over() {
		futex.Wait(s, slotAsleep, maxSleep)
	}
}

// rouse wakes whoever sleeps for slot i, to look again. The application calls it.
func (r *ring) rouse(i int) {
	r.states[i].CompareAndSwap(slotAsleep, slotWaiting)
	futex.Wake(r.states[i])
}

// take takes the word of posted requests. The broker calls it.
func (r *ring) take() uint32 {
	if r.posted.Load() == 0 { // fast path: nothing
		return 0
	}
	return r.posted.Swap(0) & (1<<slots - 1)
}

// send tells the application that the answer is in slot i. The broker calls it.
func (r *ring) send(i int) {
	if r.states[i].Swap(slotAnswered) == slotAsleep {
		futex.Wake(r.states[i])
	}
}

func (r *ring) close() { r.mem.Close() }
