package remote

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"polder/far"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/pool/pooltest"
)

// On one machine the node is not asked: objects are in this process, in memory
// that counts at the node.
func TestObjectsAreInThisProcessOnOneMachine(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.SHM, memnode.Config{
		Lend: 64 << 20, ChunkSize: 1 << 20, Grace: time.Minute,
		Components: component.Config{Memory: 48 << 20, ClientMemory: 32 << 20},
	})
	k := c.Open(pool.Config{})
	d := NewDevice(k.Pool)
	table, err := far.NewRemoteTable(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	column, err := far.NewRemoteVector[int64](t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		key := fmt.Append(nil, i)
		if err := table.Put(t.Context(), key, key); err != nil {
			t.Fatal(err)
		}
		if err := column.Write(t.Context(), i, []int64{int64(i)}); err != nil {
			t.Fatal(err)
		}
		k.Cut(c.Nodes[0]) // objects outlive the connection
		if got, err := table.Get(t.Context(), key, nil); err != nil || string(got) != string(key) {
			t.Fatalf("got %q, %v, want %q", got, err, key)
		}
	}
	if s, err := column.Aggregate(t.Context(), far.Where[int64]{}); err != nil || s.SumInt != 10 {
		t.Fatalf("got %+v, %v, want a sum of 10", s, err)
	}
	if st := c.Nodes[0].Stats().Components; st.Workers != 0 || st.Requests != 0 || st.Reserved != 32<<20 {
		t.Errorf("got %+v, want no process, no request, and one client's memory", st)
	}

	// There is no memory for a second client, which is told so.
	other := c.Open(pool.Config{})
	if _, err := far.NewRemoteTable(t.Context(), NewDevice(other.Pool)); !errors.Is(err, far.ErrRefused) {
		t.Errorf("a second client: got %v, want %v", err, far.ErrRefused)
	}

	// The memory has an end, and what is given back can be had again.
	for i := 0; err == nil; i++ {
		if i > 32<<10 {
			t.Fatal("a table has more than 32 MiB")
		}
		err = table.Put(t.Context(), fmt.Append(nil, "fill", i), make([]byte, 10<<10))
	}
	if !errors.Is(err, far.ErrStoreFull) {
		t.Fatalf("got %v, want %v", err, far.ErrStoreFull)
	}
	if err := table.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := table.Put(t.Context(), []byte("k"), make([]byte, 10<<10)); err != nil {
		t.Fatal(err)
	}

	c.Nodes[0].Crash()
	c.Nodes[0].Start()
	pooltest.Eventually(t, "the table is lost with its node", func() bool {
		_, err := table.Get(t.Context(), []byte("k"), nil)
		var lost *far.LostError
		return errors.As(err, &lost)
	})
	again, err := far.NewRemoteTable(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Get(t.Context(), []byte("k"), nil); !errors.Is(err, far.ErrNotFound) {
		t.Fatalf("a new table: got %v, want %v", err, far.ErrNotFound)
	}
}

// A client that could not be reached for longer than the grace period finds its
// objects lost, not empty.
func TestNothingIsBelievedAfterTheGracePeriod(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.SHM, memnode.Config{
		Lend: 64 << 20, ChunkSize: 1 << 20, Grace: 50 * time.Millisecond,
		Components: component.Config{Memory: 48 << 20, ClientMemory: 24 << 20},
	})
	k := c.Open(pool.Config{})
	table, err := far.NewRemoteTable(t.Context(), NewDevice(k.Pool))
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Put(t.Context(), []byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	k.Unreachable(c.Nodes[0], true)
	k.Cut(c.Nodes[0])
	pooltest.Eventually(t, "the node has taken the memory back", func() bool {
		return c.Nodes[0].Stats().Components.Reserved == 0
	})
	k.Unreachable(c.Nodes[0], false)
	pooltest.Eventually(t, "the table is lost", func() bool {
		got, err := table.Get(t.Context(), []byte("k"), nil)
		if err == nil || errors.Is(err, far.ErrNotFound) {
			t.Fatalf("got %q, %v after the memory was taken back", got, err)
		}
		var lost *far.LostError
		return errors.As(err, &lost)
	})
}
