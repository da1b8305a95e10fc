package memnode

// Memory is the memory that n lends.
func (n *Node) Memory() []byte { return n.mem.mem.Bytes() }

// Needs is how many queue pairs, completion queues and keys a node that c describes needs.
func (c Config) Needs() (qps, cqs, keys int) {
	c, err := c.withDefaults()
	if err != nil {
		panic(err)
	}
	each := c.perClient()
	n := int64(c.MaxClients)
	return int(own.qps + n*each.qps), int(own.cqs + n*each.cqs), int(own.keys + n*each.keys + c.windows(c.Lend, int64(c.ChunkSize)))
}
