package pool

// Tamper makes the pool use a key for c that the node did not give it.
func (c *Chunk) Tamper() {
	b := *c.binding.Load()
	b.key ^= 0x55
	c.binding.Store(&b)
}
