package pool

import "polder/pool/manager"

// mistrusted is memory whose lease has ended.
type mistrusted struct{ manager.Mapper }

func (mistrusted) Valid() bool { return false }

// EndLease has the lease look ended of what c's link has in this process's memory.
func (c *Chunk) EndLease() {
	l := c.extents[0].binding.Load().group.link
	l.mapped.Lock()
	defer l.mapped.Unlock()
	l.mapper = mistrusted{l.mapper}
}

// Tamper makes the pool use a key for c that the node did not give it.
func (c *Chunk) Tamper() {
	b := *c.extents[0].binding.Load()
	for i := range b.keys {
		b.keys[i] ^= 0x55
	}
	c.extents[0].binding.Store(&b)
}
