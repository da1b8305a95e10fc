package keyspace

import (
	"hash/maphash"
	"math/bits"
	"sync"

	"polder/resp/hashes"
)

const numStripes = 1024

// stripe is the lock of the keys that hash to it. It also has the large hashes among these keys, by key.
type stripe struct {
	Mu    sync.RWMutex
	large map[string]*hashes.Large // guarded by Mu; nil while there is none
	_     [64 - 24 - 8]byte        // a stripe fills a cache line
}

func (sp *Space) stripeOf(key []byte) uint32 {
	return uint32(maphash.Bytes(sp.seed, key)) % numStripes
}

// tryLockSpins is how often an event loop tries to take a lock before it blocks. Whoever holds a lock and does not
// wait for far memory gives it back within a microsecond or two.
const tryLockSpins = 100

// lockStripe locks one stripe for a command with these arguments. Before it blocks, it calls OnWait, so that the
// event loop goes on without it.
func (a *Access) lockStripe(st *stripe, write bool, args [][]byte) {
	if a.OnWait != nil {
		for range tryLockSpins {
			if write && st.Mu.TryLock() || !write && st.Mu.TryRLock() {
				return
			}
		}
		a.OnWait(args)
	}
	if write {
		st.Mu.Lock()
	} else {
		st.Mu.RLock()
	}
}

// LockKey takes the lock that a command of a single key needs.
func (a *Access) LockKey(key []byte, write bool, args [][]byte) {
	i := a.Space.stripeOf(key)
	a.held, a.heldWrite = append(a.held[:0], i), write
	a.lockStripe(&a.Space.Stripes[i], write, args)
}

// Want adds the stripe of a key to those that LockWanted takes.
func (a *Access) Want(key []byte) { a.wanted.add(a.Space.stripeOf(key)) }

// WantAll adds all stripes.
func (a *Access) WantAll() { a.wanted.fill() }

// LockWanted takes the locks that were wanted: perhaps none.
func (a *Access) LockWanted(write bool, args [][]byte) {
	a.held, a.heldWrite = a.wanted.take(a.held[:0]), write
	for _, i := range a.held {
		a.lockStripe(&a.Space.Stripes[i], write, args)
	}
}

// Locked reports whether any lock is held.
func (a *Access) Locked() bool { return len(a.held) > 0 }

// Writes reports whether the command has its locks for writing.
func (a *Access) Writes() bool { return a.heldWrite }

// stripeSet is a set of stripes, by number. A command with many keys names most stripes, again and again: one bit for
// each stripe takes less time and memory than a sorted list.
type stripeSet [numStripes / 64]uint64

func (t *stripeSet) add(i uint32) { t[i/64] |= 1 << (i % 64) }

func (t *stripeSet) fill() {
	for i := range t {
		t[i] = ^uint64(0)
	}
}

// take empties the set and appends what was in it to dst, ascending.
func (t *stripeSet) take(dst []uint32) []uint32 {
	for i, w := range t {
		for ; w != 0; w &= w - 1 {
			dst = append(dst, uint32(i*64+bits.TrailingZeros64(w)))
		}
	}
	*t = stripeSet{}
	return dst
}

// Unlock releases the locks. Before, End must have ended what the command has changed.
func (a *Access) Unlock() {
	for _, i := range a.held {
		if a.heldWrite {
			a.Space.Stripes[i].Mu.Unlock()
		} else {
			a.Space.Stripes[i].Mu.RUnlock()
		}
	}
	a.held = a.held[:0]
}
