package keyspace

// KeyList collects keys during a scan.
type KeyList struct {
	buf  []byte
	ends []int
}

func (l *KeyList) Add(key []byte) {
	l.buf = append(l.buf, key...)
	l.ends = append(l.ends, len(l.buf))
}

func (l *KeyList) At(i int) []byte {
	start := 0
	if i > 0 {
		start = l.ends[i-1]
	}
	return l.buf[start:l.ends[i]]
}

// Len is how many keys the list has.
func (l *KeyList) Len() int { return len(l.ends) }

// Cut removes all keys but the first n.
func (l *KeyList) Cut(n int) {
	if n == 0 {
		l.buf, l.ends = l.buf[:0], l.ends[:0]
		return
	}
	l.buf, l.ends = l.buf[:l.ends[n-1]], l.ends[:n]
}

// Size is how many bytes the keys have in all.
func (l *KeyList) Size() int { return len(l.buf) }
