package buddy

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestBuffersDoNotOverlapAndComeBack(t *testing.T) {
	var b Buffers
	if err := b.Init(2 * MaxBuf); err != nil {
		t.Fatal(err)
	}
	defer b.Mapping.Close()
	r := rand.New(rand.NewPCG(4, 4))
	held := map[int]Buffer{}
	for i := range 20000 {
		if r.IntN(2) == 0 {
			n := 1 + r.IntN(1<<r.IntN(18))
			p, busy := b.Get(n)
			if (p.B == nil) != (busy != nil) {
				t.Fatalf("get(%d): a buffer: %v, a channel: %v", n, p.B != nil, busy != nil)
			}
			if p.B != nil {
				if len(p.B) != n {
					t.Fatalf("get(%d): got %d bytes", n, len(p.B))
				}
				for j := range p.B {
					p.B[j] = byte(i)
				}
				held[i] = p
			}
			continue
		}
		for j, p := range held {
			if !bytes.Equal(p.B, bytes.Repeat([]byte{byte(j)}, len(p.B))) {
				t.Fatalf("buffer %d was overwritten", j)
			}
			b.Put(p)
			delete(held, j)
			break
		}
	}
	_, busy := b.Get(MaxBuf)
	for _, p := range held {
		b.Put(p)
	}
	if busy != nil {
		<-busy
	}
	if b.InUse() != 0 && busy != nil {
		t.Errorf("%d bytes are in use", b.InUse())
	}
	if busy != nil {
		for range 2 {
			if p, busy := b.Get(MaxBuf); p.B == nil || busy != nil {
				t.Error("the blocks have not grown together again")
			}
		}
	}
}
