package pool_test

import (
	"bytes"
	"testing"

	"go.uber.org/goleak"

	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSmoke(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.Inproc, memnode.Config{Lend: 8 << 20, ChunkSize: 1 << 20})
	k := c.Open(pool.Config{})
	ch := k.MustAlloc(t)
	want := bytes.Repeat([]byte("polder"), 1000)
	if _, err := ch.WriteAt(want, 100); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := ch.ReadAt(got, 100); err != nil || !bytes.Equal(got, want) {
		t.Fatal(err)
	}
	if p, err := ch.FetchAdd(t.Context(), 8, 5); p != 0 || err != nil {
		t.Fatal(p, err)
	}
	if p, ok, err := ch.CompareAndSwap(t.Context(), 8, 5, 7); p != 5 || !ok || err != nil {
		t.Fatal(p, err)
	}
	if err := ch.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v %+v", k.Stats(), c.Nodes[0].Stats())
}
