package manager

// A Verifier is a Session whose chunks the node can take away without an
// operation failing: because they lie in this process's memory.
type Verifier interface {
	// Valid reports whether everything that was accessed before this call
	// was the client's. Once it is not, nothing is any more. It is on the
	// path of every operation.
	Valid() bool
}

// A Mapper is a Verifier that tells where its chunks lie, so that they can be
// accessed without a queue pair.
type Mapper interface {
	Verifier
	// Memory is the chunk that g grants. It stays mapped until Close.
	Memory(g Grant) []byte
}
