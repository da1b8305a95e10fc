package pool_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
)

// An access that the node refuses takes the queue pair with it. Only the one
// that was refused may fail, and the next connection has the right keys.
func TestAWindowThatIsRevoked(t *testing.T) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		t.Run(s.Name, func(t *testing.T) {
			c := pooltest.NewCluster(t, s, memnode.Config{Lend: 8 << 20})
			k := c.Open(pool.Config{})
			bad, good := k.MustAlloc(t), k.MustAlloc(t)
			want := bytes.Repeat([]byte("good"), 5000)
			for _, ch := range []*pool.Chunk{bad, good} {
				if _, err := ch.WriteAt(want, 0); err != nil {
					t.Fatal(err)
				}
			}
			var wg sync.WaitGroup
			stop := make(chan struct{})
			for range 4 {
				wg.Go(func() {
					got := make([]byte, len(want))
					for {
						if _, err := good.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
							t.Errorf("another chunk: %v", err)
							return
						}
						select {
						case <-stop:
							return
						default:
						}
					}
				})
			}
			for range 3 {
				bad.Tamper()
				got := make([]byte, len(want))
				if _, err := bad.ReadAt(got, 0); !errors.Is(err, pool.ErrRevoked) {
					t.Fatalf("got %v, want %v", err, pool.ErrRevoked)
				}
				if _, err := bad.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("over the next connection: %v", err)
				}
			}
			close(stop)
			wg.Wait()
			if n := c.Nodes[0].Stats().Violations; n != 3 {
				t.Fatalf("the node counts %d violations, want 3", n)
			}
		})
	}
}
