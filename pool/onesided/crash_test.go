package onesided_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/onesided"
	"polder/pool/pooltest"
)

// TestCrashes: clients that vanish in the middle of whatever they do leave no
// chunk behind that somebody else cannot have.
func TestCrashes(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
			t.Run(s.Name, func(t *testing.T) { crashes(t, setup(s, m)) })
		}
	})
}

func crashes(t *testing.T, s pooltest.Setup) {
	const chunks, size, clients, rounds = 12, 4096, 4, 6
	cl := pooltest.NewCluster(t, s, memnode.Config{Lend: chunks * size, ChunkSize: size, Grace: time.Millisecond})
	for range rounds {
		var wg sync.WaitGroup
		var crowd []*pooltest.Client
		busy := make(chan struct{}, clients)
		for range clients {
			k := cl.Open(pool.Config{})
			crowd = append(crowd, k)
			wg.Go(func() {
				var held []*pool.Chunk
				for i := 0; ; i++ {
					c, err := k.AllocOne(context.Background())
					if err == nil {
						held = append(held, c)
					}
					if k.Stats().Nodes[0].Reconnects > 0 || k.Stats().Nodes[0].State == "closed" {
						return
					}
					if len(held) > 3 || err != nil && len(held) > 0 {
						_ = held[0].Free(context.Background()) // it may be gone with the connection
						held = held[1:]
					}
					if i == 20 {
						busy <- struct{}{}
					}
				}
			})
		}
		for range clients {
			<-busy
		}
		for _, k := range crowd {
			k.Unreachable(cl.Nodes[0], true)
			k.Cut(cl.Nodes[0])
		}
		wg.Wait()
		for _, k := range crowd {
			k.Close()
		}
	}
	pooltest.Eventually(t, "everything is reclaimed", func() bool {
		st := cl.Nodes[0].Stats()
		return st.Lent == 0 && st.Sessions == 0
	})
	k := cl.Open(pool.Config{})
	seen := make(map[string]bool)
	for range chunks {
		c := k.MustAlloc(t)
		if seen[c.Name()] {
			t.Fatalf("%s was handed out twice", c.Name())
		}
		seen[c.Name()] = true
		b := make([]byte, 8)
		if _, err := c.ReadAt(b, 0); err != nil || [8]byte(b) != [8]byte{} {
			t.Fatalf("%s reads as %x (%v)", c.Name(), b, err)
		}
	}
}
