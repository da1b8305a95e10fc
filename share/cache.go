package share

import (
	"hash/maphash"
	"sync"
)

// place is where a key lies, as the daemon has said. It is the key's as long
// as the word of its page in the table is still the same.
type place struct {
	m       *mapping
	offset  int64
	length  int64
	page    uint32
	word    uint64
	expires int64 // Unix milliseconds, 0 for never
}

// bytes returns the memory of the place.
func (p place) bytes() []byte {
	return p.m.mem.Bytes()[p.offset : p.offset+p.length : p.offset+p.length]
}

// cache remembers the places of keys. What is found in it is a guess: whoever
// uses it looks at the page's word.
type cache struct {
	limit  int // of one shard
	shards [16]cacheShard
}

type cacheShard struct {
	mu     sync.RWMutex // guards places
	places map[string]place
	_      [64]byte // one cache line apart from the next
}

func (c *cache) init(keys int) {
	c.limit = max(0, (keys+len(c.shards)-1)/len(c.shards))
	for i := range c.shards {
		c.shards[i].places = map[string]place{}
	}
}

func (c *cache) shard(seed maphash.Seed, key string) *cacheShard {
	return &c.shards[maphash.String(seed, key)%uint64(len(c.shards))]
}

func (c *cache) get(seed maphash.Seed, key string) (place, bool) {
	s := c.shard(seed, key)
	s.mu.RLock()
	p, ok := s.places[key]
	s.mu.RUnlock()
	return p, ok
}

func (c *cache) put(seed maphash.Seed, key string, p place) {
	if c.limit == 0 {
		return
	}
	s := c.shard(seed, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.places) >= c.limit {
		for old := range s.places { // any will do
			delete(s.places, old)
			break
		}
	}
	s.places[key] = p
}

func (c *cache) drop(seed maphash.Seed, key string) {
	s := c.shard(seed, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.places, key)
}

// clear forgets all places.
func (c *cache) clear() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		clear(s.places)
		s.mu.Unlock()
	}
}
