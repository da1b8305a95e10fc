package memnode

// lent implements component.Chunks: it lets components read the chunks of one session.
type lent struct {
	mem   *memory
	count int                     // how many chunks the node has
	has   func(chunk uint32) bool // whether the session has chunk now; any goroutine may call it
}

// Read implements component.Chunks. A chunk may be lent to another session while Read copies it. Read notices this,
// because the chunk is not this session's afterwards. But if the chunk has been zeroed and lent to this session again
// by then, Read does not notice: the caller, who knows what should be there, must refuse what was copied.
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
