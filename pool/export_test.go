package pool

// Tamper makes the pool use a key for c that the node did not give it.
func (c *Chunk) Tamper() {
	b := *c.extents[0].binding.Load()
	for i := range b.keys {
		b.keys[i] ^= 0x55
	}
	c.extents[0].binding.Store(&b)
}
