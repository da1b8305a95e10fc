package memfd_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

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
	size := int64(p.ChunkSize())
	c, err := p.Alloc(t.Context(), 3*size)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	ctx := t.Context()
	ops := make([]pool.Op, 8)
	for name, f := range map[string]func() error{
		"read":               func() error { _, err := c.ReadAt(buf, 64); return err },
		"write":              func() error { _, err := c.WriteAt(buf, 64); return err },
		"read of two chunks": func() error { _, err := c.ReadAt(buf, size-64); return err },
		"swap":               func() error { _, _, err := c.CompareAndSwap(ctx, 0, 1, 2); return err },
		"add":                func() error { _, err := c.FetchAdd(ctx, 8, 1); return err },
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

// TestOperationsOnSeveralChunksAreInPlace: what crosses from one chunk to the next is
// copied as well, and nothing goes over the fabric.
func TestOperationsOnSeveralChunksAreInPlace(t *testing.T) {
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
	size := int64(p.ChunkSize())
	c, err := p.Alloc(t.Context(), 3*size)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, size+200) // of all three
	for i := range want {
		want[i] = byte(i*7 + i>>8)
	}
	got := make([]byte, len(want))
	if _, err := c.WriteAt(want, size-100); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ReadAt(got, size-100); err != nil || !bytes.Equal(got, want) {
		t.Errorf("what was read is not what was written (%v)", err)
	}
	ops := []pool.Op{{Kind: pool.OpRead, Chunk: c, Off: 2*size - 8, Buf: got[:16]}, {Kind: pool.OpFetchAdd, Chunk: c, Off: 0, New: 1}}
	if err := p.Do(t.Context(), ops); err != nil || !bytes.Equal(got[:16], want[size+92:size+108]) {
		t.Errorf("what a batch has read is not what was written (%v)", err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(pool.NewCollector(p))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	histograms := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if h := m.GetHistogram(); h != nil {
				histograms++
				if n := h.GetSampleCount(); n != 0 {
					t.Errorf("%d operations went over the fabric: %v", n, m.GetLabel())
				}
			}
		}
	}
	if histograms != 3 {
		t.Errorf("found %d histograms of operations over the fabric, want 3", histograms)
	}
}
