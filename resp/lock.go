package resp

import (
	"hash/maphash"
	"slices"
	"sync"
)

const numStripes = 1024

// stripe is the lock of the keys that hash to it, and the large hashes among
// them, by key.
type stripe struct {
	mu    sync.RWMutex
	large map[string]*largeHash // guarded by mu; nil while there is none
	_     [64 - 24 - 8]byte     // a stripe is a cache line
}

func (s *Server) stripeOf(key []byte) uint32 {
	return uint32(maphash.Bytes(s.seed, key)) % numStripes
}

// tryLockSpins is how often an event loop tries for a lock that is taken. Who
// holds one without waiting for far memory has it for a microsecond or two.
const tryLockSpins = 100

// lockStripe locks one stripe. Before it blocks, an event loop moves on.
func (s *session) lockStripe(st *stripe, write bool) {
	if s.onWait != nil {
		for range tryLockSpins {
			if write && st.mu.TryLock() || !write && st.mu.TryRLock() {
				return
			}
		}
		s.onWait()
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
		s.lockStripe(&s.srv.stripes[i], s.heldWrite)
		return
	default:
		s.addStripes(cmd, args)
	}
	slices.Sort(s.held)
	s.held = slices.Compact(s.held)
	for _, i := range s.held {
		s.lockStripe(&s.srv.stripes[i], s.heldWrite)
	}
}

// addStripes adds the stripes of a command's keys to held.
func (s *session) addStripes(cmd *command, args [][]byte) {
	for key := range cmd.keys(args) {
		s.held = append(s.held, s.srv.stripeOf(key))
	}
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
