package memnode_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"polder/internal/arena"
	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
)

func TestWrongConfigurationsAreRefused(t *testing.T) {
	dev, err := inproc.NewFabric().NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for want, cfg := range map[string]memnode.Config{
		"0 bytes to lend":             {},
		`the manager is "magic"`:      {Lend: 1 << 20, Manager: "magic"},
		"at least one chunk":          {Lend: 1 << 19},
		"18874368 windows are needed": {Lend: 1 << 30, ChunkSize: 512, Group: 8},
		"groups of 9 queue pairs":     {Lend: 1 << 20, Group: 9},
		"chunk size is 1000":          {Lend: 1 << 20, ChunkSize: 1000},
		"chunk size is 256":           {Lend: 1 << 20, ChunkSize: 256},
		"chunk size is -512":          {Lend: 1 << 20, ChunkSize: -512},
		"use larger chunks":           {Lend: 1 << 40, ChunkSize: 512},
		"the client budget is 5,":     {Lend: 1 << 20, ClientBudget: 5},
		"the client budget is -1,":    {Lend: 1 << 20, ClientBudget: -1},
		"the grace period is -1s":     {Lend: 1 << 20, Grace: -time.Second},
		"at most -1 clients":          {Lend: 1 << 20, MaxClients: -1},
	} {
		n, err := memnode.New(dev, cfg)
		if err == nil {
			n.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got error %v, want one that says %q", cfg, err, want)
		}
	}
}

func TestClosingTwiceAndServingAfterwards(t *testing.T) {
	f := inproc.NewFabric()
	dev, err := f.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	n, err := memnode.New(dev, node(4))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 2)
	for _, name := range []string{"a", "b"} {
		l, err := f.Listen(dev, name)
		if err != nil {
			t.Fatal(err)
		}
		go func() { served <- n.Serve(l) }()
	}
	client, err := f.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 2 {
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := <-served; err != nil {
			t.Fatalf("Serve of a node that was closed: %v", err)
		}
	}
	l, err := f.Listen(dev, "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Serve(l); err != nil {
		t.Fatalf("Serve after Close: %v", err)
	}
	if _, err := f.Dial(t.Context(), client, "a"); err == nil {
		t.Fatal("Serve after Close left the listener open")
	}
	if infos := n.Clients(); infos != nil {
		t.Fatalf("a closed node has clients: %v", infos)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
}

// resident counts the pages of mem that occupy memory.
func resident(t *testing.T, mem []byte) int {
	t.Helper()
	vec := make([]byte, len(mem)/arena.PageSize)
	if err := mincore(mem, vec); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, v := range vec {
		n += int(v & 1)
	}
	return n
}

func TestMemoryIsPopulatedByUseAndGivenBack(t *testing.T) {
	const size, chunks = 1 << 20, 16
	c := pooltest.NewCluster(t, pooltest.TCP, memnode.Config{Lend: chunks * size, ChunkSize: size})
	mem := c.Nodes[0].Memnode().Memory()
	k := c.Open(pool.Config{})
	var held []*pool.Chunk
	for range chunks {
		held = append(held, k.MustAlloc(t))
	}
	if got := resident(t, mem); got != 0 {
		t.Fatalf("%d pages are resident before anything was written", got)
	}
	buf := make([]byte, size)
	for i := range buf {
		buf[i] = byte(i)
	}
	for _, ch := range held {
		if _, err := ch.WriteAt(buf, 0); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := resident(t, mem), chunks*size/arena.PageSize; got != want {
		t.Fatalf("%d pages are resident after everything was written, want %d", got, want)
	}
	for _, ch := range held[1:] {
		if err := ch.Free(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pooltest.Eventually(t, "the pages of free chunks are given back", func() bool {
		return resident(t, mem) == size/arena.PageSize
	})
}

func TestMetrics(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.Inproc, node(8))
	k := c.Open(pool.Config{})
	k.MustAlloc(t)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(memnode.NewCollector(c.Nodes[0].Memnode()), pool.NewCollector(k.Pool))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"polder_node_memory_bytes": 8 * chunk, "polder_node_clients": 1,
		"polder_node_allocs_total": 1, "polder_pool_borrowed_bytes": chunk, "polder_pool_node_up": 1,
		"polder_pool_available_bytes": 7 * chunk, "polder_pool_allocs_total": 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (present: %v), want %v", name, v, ok, want)
		}
	}
}

func TestDataDoesNotWakeTheControlGoroutine(t *testing.T) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		c := pooltest.NewCluster(t, s, node(4))
		k := c.Open(pool.Config{})
		ch := k.MustAlloc(t)
		before := c.Nodes[0].Stats().Wakeups
		ops := make([]pool.Op, 60)
		for round := range 50 {
			for i := range ops {
				ops[i] = pool.Op{Kind: pool.OpKind(1 + i%4), Chunk: ch, Off: int64(i * 8), Buf: make([]byte, 100), New: uint64(round)}
			}
			if err := k.Do(t.Context(), ops); err != nil {
				t.Fatal(err)
			}
		}
		// One may be for the acknowledgement of the last message.
		if got := c.Nodes[0].Stats().Wakeups - before; got > 1 {
			t.Errorf("over %s, 3000 operations woke the control goroutine %d times", s.Name, got)
		}
	}
}
