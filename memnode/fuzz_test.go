package memnode_test

import (
	"context"
	"testing"
	"time"

	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool"
	"polder/pool/pooltest"
)

// FuzzRequests sends arbitrary bytes, as one message after the other, to a
// node that also serves an honest client, and whose host needs all memory afterwards: what the honest client
// has not permitted to vanish stays. Each input is two messages: the first byte says how long the first one is.
func FuzzRequests(f *testing.F) {
	f.Add(append([]byte{wire.RequestHeader}, wire.AppendRequest(wire.AppendRequest(nil, wire.OpAlloc, 1, 3, 0), wire.OpOwned, 2, 5, 1)...))
	f.Add(append([]byte{wire.RequestHeader}, wire.AppendFree(wire.AppendRequest(nil, wire.OpAlloc, 1, 3, 0), 2, []uint32{1, 2, 3})...))
	f.Add(append([]byte{wire.RequestHeader + 4}, wire.AppendFree(wire.AppendFree(nil, 1, []uint32{0}), 2, []uint32{1, 1})...))
	f.Add(append([]byte{wire.RequestHeader}, wire.AppendListed(wire.AppendRequest(nil, wire.OpAlloc, 1, 3, 0), wire.OpMayVanish, 2, []uint32{1, 2})...))
	f.Add(append([]byte{wire.RequestHeader + 4}, wire.AppendListed(wire.AppendListed(nil, wire.OpMayVanish, 1, []uint32{0}), wire.OpMustStay, 2, []uint32{0})...))
	f.Add(append([]byte{wire.RequestHeader}, wire.AppendListed(wire.AppendRequest(nil, wire.OpVanished, 1, 3, 0), wire.OpMustStay, 2, []uint32{7})...))
	f.Add([]byte{0})
	f.Add([]byte{3, 1, 2, 3, 4})
	const chunks, budget, size = 8, 4, 128 << 10
	c := pooltest.NewCluster(f, messages(pooltest.Inproc), memnode.Config{
		Lend: chunks * size, ChunkSize: size, ClientBudget: budget * size, Grace: time.Nanosecond, Idle: true,
	})
	k := c.Open(pool.Config{})
	honest := k.MustAlloc(f)
	if _, err := honest.WriteAt([]byte("honest"), 0); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		first := min(int(b[0]), len(b)-1)
		r := openRaw(t, c, c.Nodes[0], wire.Session{})
		for _, msg := range [][]byte{b[1 : 1+first], b[1+first:]} {
			if len(msg) > wire.MaxMessage || !r.try(msg) {
				break
			}
		}
		if lent := c.Nodes[0].Stats().Lent; lent < 1 || lent > 1+budget {
			t.Fatalf("%d chunks are lent, want 1 to %d", lent, 1+budget)
		}
		for _, most := range []int64{0, chunks * size} {
			if _, err := c.Nodes[0].Memnode().Yield(most); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, 6)
		if _, err := honest.ReadAt(got, 0); err != nil || string(got) != "honest" {
			t.Fatalf("the honest client reads %q, %v", got, err)
		}
		r.conn.Close()
		pooltest.Eventually(t, "the chunks are reclaimed", func() bool { return c.Nodes[0].Stats().Lent == 1 })
	})
}

// try sends msg and reports whether a reply came that makes sense; otherwise
// the node must have closed the connection.
func (r *raw) try(msg []byte) bool {
	r.t.Helper()
	r.send(msg)
	ctx, cancel := context.WithTimeout(r.t.Context(), pooltest.Patience)
	defer cancel()
	wcs := r.wcs[:1]
	for seen := 0; seen < 2; {
		if r.cq.Poll(wcs) == 0 {
			if err := r.cq.Wait(ctx); err != nil {
				r.t.Fatalf("neither a reply nor a refusal: %v", err)
			}
			continue
		}
		if wcs[0].Err() != nil {
			<-r.conn.Done()
			return false
		}
		seen++
		if wcs[0].ID == recvID {
			var reply wire.Reply
			half := len(r.mem) / 2
			if err := reply.Decode(r.mem[half : half+int(wcs[0].ByteLen)]); err != nil {
				r.t.Fatalf("the node's reply: %v", err)
			}
		}
	}
	return true
}
