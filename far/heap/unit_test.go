package heap

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestBuffersDoNotOverlapAndComeBack(t *testing.T) {
	var b Buffers
	if err := b.init(2 * MaxBuf); err != nil {
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
	if b.InUse != 0 && busy != nil {
		t.Errorf("%d bytes are in use", b.InUse)
	}
	if busy != nil {
		for range 2 {
			if p, busy := b.Get(MaxBuf); p.B == nil || busy != nil {
				t.Error("the blocks have not grown together again")
			}
		}
	}
}

// Who waits for room for what shrinks is refused only after that was tried for
// which something is kept, even if others who wait are told that there is none.
func TestWhoShrinksIsRefusedAfterATryOnly(t *testing.T) {
	var l Logs
	l.round = &round{done: make(chan struct{})}
	other, shrinks := l.join(ForMutator), l.join(ForShrink)
	l.look()
	if l.refuse(errStoreFull, false) {
		t.Error("refused though nothing was tried for what shrinks")
	}
	select {
	case <-shrinks.done:
		t.Fatal("the wait has ended")
	default:
	}
	if !l.refuse(errStoreFull, true) {
		t.Error("not refused after everything was tried")
	}
	for _, r := range []*round{other, shrinks} {
		<-r.done
		if r.err != errStoreFull {
			t.Errorf("got %v, want %v", r.err, errStoreFull)
		}
	}
}
