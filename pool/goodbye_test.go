package pool_test

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"

	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
)

// syncBuffer is a buffer that a logger and a test share.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// A client that closes its pool in good order is nothing to warn of.
func TestAGoodbyeIsNoWarning(t *testing.T) {
	for _, m := range attacked {
		t.Run(m.Name(), func(t *testing.T) {
			s := pooltest.TCP
			s.Manager = m
			var log syncBuffer
			cl := pooltest.NewCluster(t, s, memnode.Config{Lend: 1 << 20, ChunkSize: 1 << 16,
				Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
			for range 20 {
				k := cl.Open(pool.Config{})
				c := k.MustAlloc(t)
				if _, err := c.WriteAt([]byte("bye"), 0); err != nil {
					t.Fatal(err)
				}
				if err := k.Close(); err != nil {
					t.Fatal(err)
				}
			}
			pooltest.Eventually(t, "all are gone", func() bool { return cl.Nodes[0].Stats().Clients == 0 })
			if got := log.String(); got != "" {
				t.Errorf("the node warns:\n%s", got)
			}
		})
	}
}
