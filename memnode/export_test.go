package memnode

// Memory is the memory that n lends.
func (n *Node) Memory() []byte { return n.mem.mem.Bytes() }
