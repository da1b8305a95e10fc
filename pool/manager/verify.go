package manager

// A Verifier is a Session of which the chunks lie in this process's memory, so that the node can take them away
// without an operation failing.
type Verifier interface {
	// Valid reports whether everything that was accessed before this call belonged to the client. Once it has
	// returned false, nothing belongs to the client any more. Every operation calls it.
	Valid() bool
}

// A Mapper is a Verifier that tells where its chunks lie, so that they can be accessed without a queue pair.
type Mapper interface {
	Verifier
	// Memory is the memory that g grants. It stays mapped until Close.
	Memory(g Grant) []byte
}
