package shm

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"polder/internal/arena"
	"polder/internal/futex"
	"polder/internal/invariants"
	"polder/verbs"
)

// The rings' memfd, in bytes:
//
//	   0  u64  ring 0 (from the client): tail, bytes produced since the beginning
//	  64  u64  ring 0: head, bytes consumed
//	 128  u32  ring 0: 1 while the producer waits for room
//	 256       ring 1 (from the server): the same
//	 512  u32  the client's bell: 1 while it sleeps
//	 576  u32  the server's bell
//	4096       ring 0
//	4096 + ringSize  ring 1
//
// Words are in the host's byte order; each is on a cache line of its own.
const (
	ringSize   = 256 << 10 // a power of two
	ringWords  = 256       // of one ring
	offHead    = 64
	offStarved = 128
	offBells   = 512
	bellStride = 64
	offRings   = 4096
	regionSize = offRings + 2*ringSize
)

// checkSealed refuses memory from a peer that could shrink, or has another size
// than was said.
func checkSealed(m *arena.Memfd, size uint64) error {
	if err := m.CheckShrinkSealed(); err != nil {
		return fmt.Errorf("cannot use the peer's memory: %w", err)
	}
	if size == 0 || uint64(m.Size()) != size {
		return fmt.Errorf("cannot use the peer's memory: %d bytes where %d were announced: %w", m.Size(), size, verbs.ErrInvalid)
	}
	return nil
}

// region is the mapped memfd as one end sees it.
type region struct {
	mem      *arena.Mapping
	in, out  ring
	own, far bell
}

// newRegion makes the views of mem, of regionSize bytes, for one end.
func newRegion(mem *arena.Mapping, server bool) *region {
	b := mem.Bytes()
	r := &region{mem: mem, in: ringAt(b, 1), out: ringAt(b, 0), own: bellAt(b, 0), far: bellAt(b, 1)}
	if server {
		r.in, r.out, r.own, r.far = r.out, r.in, r.far, r.own
	}
	return r
}

// ring is one direction.
type ring struct {
	tail    *atomic.Uint64
	head    *atomic.Uint64
	starved *atomic.Uint32
	data    []byte
}

func ringAt(b []byte, i int) ring {
	w := b[i*ringWords:]
	return ring{
		tail: arena.Word64(w), head: arena.Word64(w[offHead:]), starved: arena.Word32(w[offStarved:]),
		data: b[offRings+i*ringSize:][:ringSize:ringSize],
	}
}

// put copies p into the ring at position pos.
func (r *ring) put(pos uint64, p []byte) {
	n := copy(r.data[pos&(ringSize-1):], p)
	copy(r.data, p[n:])
}

// get copies what is at position pos into p.
func (r *ring) get(pos uint64, p []byte) {
	n := copy(p, r.data[pos&(ringSize-1):])
	copy(p[n:], r.data)
}

// ends is touched by whoever publishes or takes. The race detector knows nothing
// of words in a mapping; with this it knows that two ends in one process are in
// order.
var ends atomic.Uint64

func inOrder() {
	if invariants.Enabled {
		ends.Add(1)
	}
}

// bell is the futex by which one end sleeps.
type bell struct{ word *atomic.Uint32 }

func bellAt(b []byte, i int) bell { return bell{arena.Word32(b[offBells+i*bellStride:])} }

const (
	awake  = 0
	asleep = 1
)

// An end looks for news so often before it sleeps, some microseconds in all: longer
// than a client that makes one call after the other takes to make the next, since to
// wake who sleeps on an idle processor takes tens of them. It lets other goroutines
// run in between. A goroutine that sleeps on a futex keeps
// its P until the runtime takes it away, which can be long; whom it has woken
// itself must not have to wait for that.
const (
	spins  = 1000
	yields = 32 // looks between two yields
)

// maxSleep bounds a wait: the word is the peer's to write, too.
const maxSleep = 500 * time.Millisecond

// wait returns when news returns true, or for no reason.
func (b bell) wait(news func() bool) {
	for i := range spins {
		if news() {
			return
		}
		if i%yields == yields-1 {
			runtime.Gosched()
		}
	}
	b.word.Store(asleep)
	if !news() {
		futex.Wait(b.word, asleep, maxSleep)
	}
	b.word.Store(awake)
}

// ring wakes the end if it sleeps. What it is to see was stored before.
func (b bell) ring() {
	if b.word.Load() != awake && b.word.Swap(awake) != awake {
		futex.Wake(b.word)
	}
}
