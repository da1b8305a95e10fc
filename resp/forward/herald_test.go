package forward

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// TestWhatWaitsForAServerIsBounded: of one that does not answer, who tells it something waits for nothing, and what is too much is counted.
func TestWhatWaitsForAServerIsBounded(t *testing.T) {
	l := New(Config{Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	defer l.Close()
	var untold atomic.Int64
	h := l.NewHerald(testTimeout, func(n int) { untold.Add(int64(n)) })
	cmd := [][]byte{[]byte("PUBLISH"), []byte("news"), make([]byte, 100_000)}
	told := 3 * mostTidings / len(cmd[2])
	began := time.Now()
	for range told {
		h.Tell([]string{"away"}, cmd)
	}
	if took := time.Since(began); took > testTimeout/2 {
		t.Errorf("to tell it has taken %v", took)
	}
	h.mu.Lock()
	kept, n := h.queues["away"].bytes, len(h.queues["away"].commands)
	h.mu.Unlock()
	if kept > mostTidings || n == 0 || int(untold.Load())+n != told {
		t.Errorf("of %d commands %d wait, with %d bytes, and %d are counted as untold", told, n, kept, untold.Load())
	}
	h.Close()
	h.Tell([]string{"away"}, cmd)
	if int(untold.Load()) != told {
		t.Errorf("%d commands are counted as untold in the end, want %d", untold.Load(), told)
	}
}
