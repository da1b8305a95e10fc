package pool_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"polder/memnode"
	"polder/pool"
	"polder/pool/onesided"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
)

// inPlace are the set-ups over every manager whose nodes' memory can be read in place.
func inPlace() (setups []pooltest.Setup) {
	for _, m := range []pool.Manager{onesided.Manager{Native: true}, onesided.Manager{}, rpcmw.Manager{}} {
		s := pooltest.InPlace
		s.Name, s.Manager, s.Groups, s.Pairs = m.Name()+", in place", m, 2, 2
		setups = append(setups, s)
	}
	return setups
}

// reads is how many READs of k's only node were done, in place, and over the fabric.
func reads(k *pooltest.Client) (inPlace, over int64) {
	st := k.Stats().Nodes[0]
	return st.ReadsInPlace, st.Reads - st.ReadsInPlace
}

// TestMemoryOnThisMachineIsReadInPlace: what is written through queue pairs is read from the node's memory, at any place of
// chunks that lie next to each other or do not.
func TestMemoryOnThisMachineIsReadInPlace(t *testing.T) {
	for _, s := range inPlace() {
		t.Run(s.Manager.Name(), func(t *testing.T) {
			k := pooltest.NewCluster(t, s, memnode.Config{Lend: 64 * keptUnit, ChunkSize: keptUnit}).Open(pool.Config{})
			apart := k.MustAlloc(t)
			var chunks []*pool.Chunk
			for i, size := range []int64{keptUnit, 5*keptUnit + 7, 1} {
				c, err := k.Alloc(t.Context(), size)
				if err != nil {
					t.Fatal(err)
				}
				chunks = append(chunks, c)
				if i == 0 {
					if err := apart.Free(t.Context()); err != nil { // so that the next one is in pieces
						t.Fatal(err)
					}
				}
			}
			for round := range 3 {
				for i, c := range chunks {
					want := bytes.Repeat([]byte{byte(1 + i + 10*round)}, int(c.Size()))
					for j := range want {
						want[j] += byte(j / 100)
					}
					if _, err := c.WriteAt(want, 0); err != nil {
						t.Fatal(err)
					}
					before, over := reads(k)
					got := make([]byte, len(want))
					if _, err := c.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
						t.Fatalf("%d bytes are not those that were written: %v", len(got), err)
					}
					from := int64(len(want) / 3)
					if _, err := c.ReadAt(got[from:], from); err != nil || !bytes.Equal(got, want) {
						t.Fatalf("%d bytes from %d on are not those that were written: %v", len(got), from, err)
					}
					if now, still := reads(k); now == before || still != over {
						t.Errorf("%d reads in place and %d over the fabric, want all in place", now-before, still-over)
					}
				}
			}
			c := chunks[0]
			if prev, err := c.FetchAdd(t.Context(), 8, 3); err != nil {
				t.Fatal(err)
			} else if now, swapped, err := c.CompareAndSwap(t.Context(), 8, prev+3, 42); err != nil || !swapped {
				t.Fatalf("the word is %d, %v, want %d", now, err, prev+3)
			}
			var word [8]byte
			if _, err := c.ReadAt(word[:], 8); err != nil || word != [8]byte{42} {
				t.Fatalf("the word is %v, %v, want 42", word, err)
			}
		})
	}
}

// TestABatchIsReadInPlaceUnlessItWrites: what is read behind a write of the same batch takes the same way.
func TestABatchIsReadInPlaceUnlessItWrites(t *testing.T) {
	k := pooltest.NewCluster(t, pooltest.InPlace, memnode.Config{Lend: 1 << 20, ChunkSize: keptUnit}).Open(pool.Config{})
	c := k.MustAlloc(t)
	a, b := make([]byte, 8), make([]byte, 8)
	ops := []pool.Op{
		{Kind: pool.OpRead, Chunk: c, Buf: a}, {Kind: pool.OpWrite, Chunk: c, Buf: []byte("behind..")}, {Kind: pool.OpRead, Chunk: c, Buf: b},
	}
	if err := k.Do(t.Context(), ops); err != nil || string(b) != "behind.." || !bytes.Equal(a, make([]byte, 8)) {
		t.Fatalf("read %q and then %q, %v, want zeros and what was written", a, b, err)
	}
	if in, over := reads(k); in != 1 || over != 1 {
		t.Errorf("%d reads in place and %d over the fabric, want 1 and 1", in, over)
	}
}

// TestAPoolReadsOverTheFabricIfItIsToldSo: then it maps nothing.
func TestAPoolReadsOverTheFabricIfItIsToldSo(t *testing.T) {
	k := pooltest.NewCluster(t, pooltest.InPlace, memnode.Config{Lend: 1 << 20, ChunkSize: keptUnit}).Open(pool.Config{OverFabric: true})
	if _, err := k.MustAlloc(t).ReadAt(make([]byte, 8), 0); err != nil {
		t.Fatal(err)
	}
	if in, over := reads(k); in != 0 || over != 1 {
		t.Errorf("%d reads in place and %d over the fabric, want 0 and 1", in, over)
	}
}

// TestReadingInPlaceGoesOnAfterALostConnection: the memory is passed again, and what is not in place meanwhile comes over the fabric.
func TestReadingInPlaceGoesOnAfterALostConnection(t *testing.T) {
	for _, s := range inPlace() {
		t.Run(s.Manager.Name(), func(t *testing.T) {
			cluster := pooltest.NewCluster(t, s, memnode.Config{Lend: 16 * keptUnit, ChunkSize: keptUnit})
			k := cluster.Open(pool.Config{})
			c := k.MustAlloc(t)
			want := bytes.Repeat([]byte("mine"), keptUnit/4)
			if _, err := c.WriteAt(want, 0); err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					got := make([]byte, len(want))
					for {
						select {
						case <-stop:
							return
						default:
						}
						if _, err := c.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
							t.Errorf("what was written is not there: %v", err)
							return
						}
					}
				})
			}
			for i := range int64(5) {
				k.Cut(cluster.Nodes[0])
				pooltest.Eventually(t, "the connection is made again", func() bool {
					return k.Stats().Nodes[0].Reconnects == i+1 && stateOf(k, "node0") == "up"
				})
				before, _ := reads(k)
				pooltest.Eventually(t, "reads are in place again", func() bool { in, _ := reads(k); return in > before+10 })
			}
			close(stop)
			wg.Wait()
			pooltest.Eventually(t, "the memory is mapped by the node and by the last connection", func() bool {
				maps, err := os.ReadFile("/proc/self/maps")
				if err != nil {
					t.Fatal(err)
				}
				return bytes.Count(maps, []byte("memfd:polder-lent")) == 2
			})
		})
	}
}

// TestNothingIsBelievedThatWasReadAfterTheLease: it is read again, over a connection that has a lease.
func TestNothingIsBelievedThatWasReadAfterTheLease(t *testing.T) {
	k := pooltest.NewCluster(t, pooltest.InPlace, memnode.Config{Lend: 1 << 20, ChunkSize: keptUnit}).Open(pool.Config{})
	c := k.MustAlloc(t)
	if _, err := c.WriteAt([]byte("mine"), 8); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	for i := range int64(3) {
		c.EndLease()
		if _, err := c.ReadAt(got, 8); err != nil || string(got) != "mine" {
			t.Fatalf("read %q, %v", got, err)
		}
		if n := k.Stats().Nodes[0].Reconnects; n != i+1 {
			t.Fatalf("%d connections were given up, want the %d whose leases had ended", n, i+1)
		}
	}
}

// TestNothingOfABatchIsBelievedThatWasReadAfterTheLease: all of it is read again, over the fabric.
func TestNothingOfABatchIsBelievedThatWasReadAfterTheLease(t *testing.T) {
	k := pooltest.NewCluster(t, pooltest.InPlace, memnode.Config{Lend: 16 * keptUnit, ChunkSize: keptUnit}).Open(pool.Config{})
	chunks := []*pool.Chunk{k.MustAlloc(t), k.MustAlloc(t)}
	var ops []pool.Op
	for i := range 6 {
		c, off := chunks[i/2%2], int64(8*i)
		if _, err := c.WriteAt(fmt.Appendf(nil, "mine-%03d", i), off); err != nil {
			t.Fatal(err)
		}
		ops = append(ops, pool.Op{Kind: pool.OpRead, Chunk: c, Off: off, Buf: make([]byte, 8)})
	}
	for _, ended := range []bool{false, true} {
		if ended {
			chunks[0].EndLease()
		}
		inBefore, overBefore := reads(k)
		if err := k.Do(t.Context(), ops); err != nil {
			t.Fatal(err)
		}
		for i, op := range ops {
			if want := fmt.Sprintf("mine-%03d", i); string(op.Buf) != want {
				t.Errorf("read %d of the batch found %q, want %q", i, op.Buf, want)
			}
			clear(op.Buf)
		}
		in, over := reads(k)
		if in, over = in-inBefore, over-overBefore; ended && (in != 0 || over != 6) || !ended && (in != 6 || over != 0) {
			t.Errorf("with the lease ended %v, %d reads were in place and %d over the fabric", ended, in, over)
		}
	}
	if n := k.Stats().Nodes[0].Reconnects; n != 1 {
		t.Errorf("%d connections were given up, want the one whose lease had ended", n)
	}
}

// TestANodeThatIsGoneIsNotReadInPlace: its memory is there for who has mapped it, and nobody believes it.
func TestANodeThatIsGoneIsNotReadInPlace(t *testing.T) {
	cluster := pooltest.NewCluster(t, pooltest.InPlace, memnode.Config{Lend: 16 * keptUnit, ChunkSize: keptUnit})
	k := cluster.Open(pool.Config{Timeout: pooltest.Patience})
	c := k.MustAlloc(t)
	if _, err := c.WriteAt([]byte("mine"), 0); err != nil {
		t.Fatal(err)
	}
	cluster.Nodes[0].Crash()
	if _, err := c.ReadAt(make([]byte, 4), 0); err == nil {
		t.Error("memory of a node that has ended was read")
	}
	cluster.Nodes[0].Start()
	<-c.Lost()
	fresh := k.MustAlloc(t)
	got := []byte("....")
	if _, err := fresh.ReadAt(got, 0); err != nil || !slices.Equal(got, make([]byte, 4)) {
		t.Errorf("fresh memory reads %q, %v", got, err)
	}
}
