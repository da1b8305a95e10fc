package memcached

import (
	"encoding/binary"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"polder/soft"
)

// item is what is stored under a key: expiry (Unix seconds, 0 for none), time
// of storing (Unix nanoseconds), flags, unique number, state, and the data. The
// expiry is kept here and not by the map because touch changes it and must not
// lose what it touches.
type item struct {
	expiry int64
	stored int64
	flags  uint32
	cas    uint64
	stale  bool // invalidated by md I, until somebody recaches it
	won    bool // somebody has been told to recache it
	data   []byte
}

const itemHeader = 29

func (i *item) encode(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b[:0], uint64(i.expiry))
	b = binary.LittleEndian.AppendUint64(b, uint64(i.stored))
	b = binary.LittleEndian.AppendUint32(b, i.flags)
	b = binary.LittleEndian.AppendUint64(b, i.cas)
	state := byte(0)
	if i.stale {
		state |= 1
	}
	if i.won {
		state |= 2
	}
	return append(append(b, state), i.data...)
}

func decode(b []byte) (i item, ok bool) {
	if len(b) < itemHeader {
		return i, false
	}
	i.expiry = int64(binary.LittleEndian.Uint64(b))
	i.stored = int64(binary.LittleEndian.Uint64(b[8:]))
	i.flags = binary.LittleEndian.Uint32(b[16:])
	i.cas = binary.LittleEndian.Uint64(b[20:])
	i.stale, i.won = b[28]&1 != 0, b[28]&2 != 0
	i.data = b[itemHeader:]
	return i, true
}

var seed = maphash.MakeSeed()

// lock returns the lock of a key.
func (s *Server) lock(key []byte) *sync.Mutex {
	return &s.locks[maphash.Bytes(seed, key)%uint64(len(s.locks))]
}

// maxAnswer is more than any answer has without an item's data.
const maxAnswer = 2 << 10

// lock locks a key, and returns the lock. First it makes room for an answer without data: while a key is locked,
// nothing may be sent, because the client may be slow to read, and clients that use other keys with the same lock wait.
func (c *client) lock(key []byte) *sync.Mutex {
	if c.out.Available() < maxAnswer {
		_ = c.out.Flush() // out keeps the error
	}
	l := c.s.lock(key)
	l.Lock()
	return l
}

// get reads an item; its data is valid until the next one is read.
func (c *client) get(key []byte) (item, bool) {
	stored, ok := c.s.items.Get(key, c.item[:0])
	if !ok {
		return item{}, false
	}
	c.item = stored.Value
	c.hold()
	i, ok := decode(stored.Value)
	if !ok || i.expiry != 0 && i.expiry <= c.now.Unix() || c.s.flush.covers(i.stored, c.now.UnixNano()) {
		return item{}, false
	}
	return i, true
}

// store stores a new item, with a new unique number unless it is given one.
func (c *client) store(key []byte, i *item) {
	i.stored = c.now.UnixNano()
	c.s.uses.forget(key)
	c.keep(key, i, c.misses.Stored(key, c.arrived()))
}

// arrived is when the command came, with those that came together with it.
func (c *client) arrived() time.Duration { return c.now.Sub(c.s.begun) }

// missed notes that the client asked for a key in vain, or was told to recache it: the
// time until it stores the key is what the miss cost it.
func (c *client) missed(key []byte) { c.misses.Missed(key, c.arrived()) }

// put is store for an item that was there already and has only changed. While memory is taken away, the item may not
// be kept; then the old one is not kept either.
func (c *client) put(key []byte, i *item) { c.keep(key, i, 0) }

func (c *client) keep(key []byte, i *item, took time.Duration) {
	if i.cas == 0 {
		i.cas = c.s.cas.Add(1)
	}
	c.code = i.encode(c.code)
	c.hold()
	if c.s.items.Set(key, soft.Item{Value: c.code, Took: took}) != nil {
		c.s.items.Delete(key)
	}
}

// expiry turns a client's exptime into a Unix time. Up to 30 days, exptime is in seconds from now; above that, it is
// a Unix time. 0 stands for never, and a negative one for at once.
func (c *client) expiry(n int64) int64 {
	const month = 60 * 60 * 24 * 30
	switch {
	case n == 0:
		return 0
	case n < 0:
		return 1
	case n <= month:
		return c.now.Add(time.Duration(n) * time.Second).Unix()
	}
	return n
}

// flush is when items were or will be flushed. An item that was stored before
// is not there afterwards.
type flush struct {
	mu      sync.Mutex   // held by those who change it
	past    atomic.Int64 // Unix nanoseconds; 0: never
	pending atomic.Int64
}

// set makes at, which is later than now, the time of the next flush; 0: none is
// to come.
func (f *flush) set(at, now int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pending.Load(); p != 0 && p <= now {
		f.past.Store(p)
	}
	f.pending.Store(at)
}

func (f *flush) covers(stored, now int64) bool {
	at := f.pending.Load()
	return at != 0 && at <= now && stored < at || stored < f.past.Load()
}

// uses remembers when keys were last asked for: a get must not write to the item. Of the keys that share one of its
// places, it knows only the one that was asked for last; so it may not know of a key that was asked for long ago.
type uses [1 << 16]atomic.Uint64 // a part of the key's hash (32) | Unix seconds (32)

func (u *uses) place(key []byte) (*atomic.Uint64, uint64) {
	h := maphash.Bytes(seed, key)
	return &u[h>>8%uint64(len(u))], h >> 32 << 32
}

func (u *uses) note(key []byte, now time.Time) {
	p, name := u.place(key)
	if v := name | uint64(uint32(now.Unix())); p.Load() != v {
		p.Store(v)
	}
}

func (u *uses) forget(key []byte) {
	if p, name := u.place(key); p.Load()>>32<<32 == name {
		p.Store(0)
	}
}

// last returns when a key was last asked for since it was stored, if it was.
func (u *uses) last(key []byte) (unix int64, ok bool) {
	p, name := u.place(key)
	v := p.Load()
	return int64(uint32(v)), v != 0 && v>>32<<32 == name
}

// idle is how many seconds ago an item was last asked for or stored, and
// whether it was asked for.
func (c *client) idle(key []byte, i *item) (seconds int64, used bool) {
	at, used := c.s.uses.last(key)
	if !used {
		at = time.Unix(0, i.stored).Unix()
	}
	return max(c.now.Unix()-at, 0), used
}
