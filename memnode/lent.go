package memnode

// lent is the chunks of one session, for components to read (component.Chunks).
type lent struct {
	mem   *memory
	count int                     // the node's chunks
	has   func(chunk uint32) bool // whether it is the session's now; for any goroutine
}

// Read implements component.Chunks. Somebody else may be lent a chunk while it is copied;
// then it is not the session's afterwards, but if it has come back by then, scrubbed, and what
// was copied has to be refused by who knows what should be there.
func (l *lent) Read(chunk uint32, off uint64, b []byte) bool {
	size := uint64(l.mem.size)
	first, n := uint64(chunk)+off/size, uint64(len(b))
	if n == 0 {
		return false
	}
	off %= size
	last := first + (off+n-1)/size
	if last >= uint64(l.count) || !l.all(first, last) {
		return false
	}
	copy(b, l.mem.mem.Bytes()[first*size+off:])
	return l.all(first, last)
}

// all reports whether the chunks from first to last are all the session's.
func (l *lent) all(first, last uint64) bool {
	for i := first; i <= last; i++ {
		if !l.has(uint32(i)) {
			return false
		}
	}
	return true
}
