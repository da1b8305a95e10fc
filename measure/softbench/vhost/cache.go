package vhost

// cache is an LRU cache over keys 0 to n-1 whose capacity, in bytes, can change.
// Its shadow is the list of the keys that it evicted lately.
type cache struct {
	capacity, used int64
	shadow         int64 // how many bytes the objects in the shadow have together at most
	shadowUsed     int64
	size           []int32
	state          []uint8
	prev, next     []int32 // both lists as rings; entry n is the head of the cached keys, n+1 of the shadow
}

const (
	absent uint8 = iota
	cached
	evicted
)

func newCache(sizes []int32, shadow int64) *cache {
	n := len(sizes)
	c := &cache{shadow: shadow, size: sizes, state: make([]uint8, n), prev: make([]int32, n+2), next: make([]int32, n+2)}
	for _, h := range []int32{int32(n), int32(n + 1)} {
		c.prev[h], c.next[h] = h, h
	}
	return c
}

func (c *cache) unlink(k int32) {
	c.next[c.prev[k]], c.prev[c.next[k]] = c.next[k], c.prev[k]
}

func (c *cache) push(head, k int32) {
	c.prev[k], c.next[k] = head, c.next[head]
	c.prev[c.next[head]], c.next[head] = k, k
}

// access asks for a key and stores it if it is not there and fits. victim says that
// the key was in the shadow.
func (c *cache) access(k int32) (hit, victim bool) {
	live, dead := int32(len(c.size)), int32(len(c.size)+1)
	s := int64(c.size[k])
	switch c.state[k] {
	case cached:
		c.unlink(k)
		c.push(live, k)
		return true, false
	case evicted:
		c.unlink(k)
		c.shadowUsed -= s
		victim = true
	}
	c.state[k] = absent
	if s <= c.capacity {
		c.state[k] = cached
		c.used += s
		c.push(live, k)
	}
	c.trim(live, dead)
	return false, victim
}

func (c *cache) trim(live, dead int32) {
	for c.used > c.capacity {
		k := c.prev[live]
		c.unlink(k)
		c.used -= int64(c.size[k])
		c.state[k] = evicted
		c.shadowUsed += int64(c.size[k])
		c.push(dead, k)
	}
	for c.shadowUsed > c.shadow {
		k := c.prev[dead]
		c.unlink(k)
		c.shadowUsed -= int64(c.size[k])
		c.state[k] = absent
	}
}

func (c *cache) resize(capacity int64) {
	c.capacity = capacity
	c.trim(int32(len(c.size)), int32(len(c.size)+1))
}
