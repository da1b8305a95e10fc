package resp

import (
	"hash/maphash"
	"math/bits"
	"polder/resp/hashes"
	"sync"
)

const numStripes = 1024

// stripe is the lock of the keys that hash to it, and the large hashes among
// them, by key.
type stripe struct {
	mu    sync.RWMutex
	large map[string]*hashes.Large // guarded by mu; nil while there is none
	_     [64 - 24 - 8]byte        // a stripe is a cache line
}

func (s *Server) stripeOf(key []byte) uint32 {
	return uint32(maphash.Bytes(s.seed, key)) % numStripes
}

// tryLockSpins is how often an event loop tries for a lock that is taken. Who
// holds one without waiting for far memory has it for a microsecond or two.
const tryLockSpins = 100

// lockStripe locks one stripe for a command with these arguments. Before it blocks,
// an event loop moves on.
func (s *session) lockStripe(st *stripe, write bool, args [][]byte) {
	if s.onWait != nil {
		for range tryLockSpins {
			if write && st.mu.TryLock() || !write && st.mu.TryRLock() {
				return
			}
		}
		s.onWait(args)
	}
	if write {
		st.mu.Lock()
	} else {
		st.mu.RLock()
	}
}

// lock takes the locks that a command needs for its keys.
func (s *session) lock(cmd *command, args [][]byte) {
	s.heldWrite = cmd.flags&flagWrite != 0
	s.held = s.held[:0]
	switch {
	case cmd.lockAll != nil && cmd.lockAll(s):
		for i := range uint32(numStripes) {
			s.held = append(s.held, i)
		}
		s.heldWrite = true
	case cmd.first == 0:
		if cmd.lockKeys == nil {
			return
		}
		s.heldWrite = cmd.lockKeys(s)
	case cmd.last == cmd.first || len(args) == cmd.first+1:
		// Fast path: one key.
		i := s.srv.stripeOf(args[cmd.first])
		s.held = append(s.held, i)
		s.lockStripe(&s.srv.stripes[i], s.heldWrite, args)
		return
	default:
		s.addStripes(cmd, args)
	}
	s.held = s.wanted.take(s.held)
	for _, i := range s.held {
		s.lockStripe(&s.srv.stripes[i], s.heldWrite, args)
	}
}

// addStripes adds the stripes of a command's keys to those to be locked.
func (s *session) addStripes(cmd *command, args [][]byte) {
	for key := range cmd.keys(args) {
		s.wanted.add(s.srv.stripeOf(key))
	}
}

// stripeSet is a set of stripes, by number. A command with many keys names most
// stripes, again and again: a bit each takes less time and memory than a list
// that is sorted.
type stripeSet [numStripes / 64]uint64

func (t *stripeSet) add(i uint32) { t[i/64] |= 1 << (i % 64) }

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

func (s *session) unlock() {
	for _, i := range s.held {
		if s.heldWrite {
			s.srv.stripes[i].mu.Unlock()
		} else {
			s.srv.stripes[i].mu.RUnlock()
		}
	}
	s.held = s.held[:0]
}
