package memfd_test

import (
	"path/filepath"
	"testing"

	"polder/pool"
)

// TestOperationsDoNotAllocate counts allocations of operations in place, alone
// and in a batch.
func TestOperationsDoNotAllocate(t *testing.T) {
	addr := "unix:" + filepath.Join(t.TempDir(), "node.sock")
	_, stop, err := newNode(addr, config)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	p, err := pool.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := p.Alloc(t.Context(), int64(p.ChunkSize()))
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	ctx := t.Context()
	ops := make([]pool.Op, 8)
	for name, f := range map[string]func() error{
		"read":  func() error { _, err := c.ReadAt(buf, 64); return err },
		"write": func() error { _, err := c.WriteAt(buf, 64); return err },
		"swap":  func() error { _, _, err := c.CompareAndSwap(ctx, 0, 1, 2); return err },
		"add":   func() error { _, err := c.FetchAdd(ctx, 8, 1); return err },
		"batch": func() error {
			for i := range ops {
				ops[i] = pool.Op{Kind: pool.OpWrite, Chunk: c, Off: int64(i * 8), Buf: buf[:8]}
			}
			return p.Do(ctx, ops)
		},
	} {
		got := testing.AllocsPerRun(100, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		})
		if got != 0 {
			t.Errorf("%s: got %v allocations, want 0", name, got)
		}
	}
}
