package pool_test

import (
	"testing"

	"polder/pool"
	"polder/pool/baseline"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
)

// What the managers differ in is how often the node's device has to register
// memory while a client allocates and frees.
func TestHowOftenChunksAreRegistered(t *testing.T) {
	const rounds = 50
	for _, c := range []struct {
		manager pool.Manager
		want    int
	}{
		{rpcmw.Manager{}, 0},
		{baseline.RPCMW1{}, 0},
		{baseline.FineMR{}, rounds},
		{baseline.StaticMR{}, 0}, // has done so when the client connected
	} {
		t.Run(c.manager.Name(), func(t *testing.T) {
			s := newScene(t, pooltest.TCP, c.manager)
			before := s.node.registrations()
			for range rounds {
				g := s.attacker.alloc()
				s.attacker.write(g, secret)
				if err := s.attacker.free(g.Chunk); err != nil {
					t.Fatal(err)
				}
			}
			if got := s.node.registrations() - before; got != c.want {
				t.Errorf("%d allocations made %d registrations, want %d", rounds, got, c.want)
			}
		})
	}
}

// registrations is how many the node has made so far.
func (f *nodeFabric) registrations() int {
	f.dev.mu.Lock()
	defer f.dev.mu.Unlock()
	return len(f.dev.regions)
}
