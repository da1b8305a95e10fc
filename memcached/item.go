package memcached

import (
	"encoding/binary"
	"hash/maphash"
	"sync"
	"time"

	"polder/soft"
)

// item is what is stored under a key: expiry (Unix seconds, 0 for none),
// flags, unique number, time of the last access, and the data. The expiry is
// kept here and not by the map because touch changes it and must not lose what
// it touches.
type item struct {
	expiry int64
	flags  uint32
	cas    uint64
	stale  bool // invalidated by md I, until somebody recaches it
	data   []byte
}

const itemHeader = 21

func (i *item) encode(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b[:0], uint64(i.expiry))
	b = binary.LittleEndian.AppendUint32(b, i.flags)
	b = binary.LittleEndian.AppendUint64(b, i.cas)
	if i.stale {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	return append(b, i.data...)
}

func decode(b []byte) (i item, ok bool) {
	if len(b) < itemHeader {
		return i, false
	}
	i.expiry = int64(binary.LittleEndian.Uint64(b))
	i.flags = binary.LittleEndian.Uint32(b[8:])
	i.cas = binary.LittleEndian.Uint64(b[12:])
	i.stale = b[20] != 0
	i.data = b[itemHeader:]
	return i, true
}

var lockSeed = maphash.MakeSeed()

// lock is the one of a key.
func (s *Server) lock(key []byte) *sync.Mutex {
	return &s.locks[maphash.Bytes(lockSeed, key)%uint64(len(s.locks))]
}

// get reads an item; its data is valid until the next one is read.
func (c *client) get(key []byte) (item, bool) {
	stored, ok := c.s.items.Get(key, c.item[:0])
	if !ok {
		return item{}, false
	}
	c.item = stored.Value
	i, ok := decode(stored.Value)
	if !ok || i.expiry != 0 && i.expiry <= c.s.clock().Unix() {
		return item{}, false
	}
	return i, true
}

// put stores an item, with a new unique number unless it is given one. While
// memory is taken away, an item may not be kept; the old one is not either.
func (c *client) put(key []byte, i *item) {
	if i.cas == 0 {
		i.cas = c.s.cas.Add(1)
	}
	c.code = i.encode(c.code)
	if c.s.items.Set(key, soft.Item{Value: c.code}) != nil {
		c.s.items.Delete(key)
	}
}

// expiry turns what a client says into a time: seconds from now up to 30
// days, a Unix time beyond, never for 0, at once for what is negative.
func (s *Server) expiry(n int64) int64 {
	const month = 60 * 60 * 24 * 30
	switch {
	case n == 0:
		return 0
	case n < 0:
		return 1
	case n <= month:
		return s.clock().Add(time.Duration(n) * time.Second).Unix()
	}
	return n
}
