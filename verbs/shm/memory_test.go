package shm

import (
	"errors"
	"runtime"
	"testing"

	"polder/internal/arena"
	"polder/verbs"
)

// A connection carries memory twice, in the order in which it was passed, and no
// more often.
func TestMemoryIsPassedTwice(t *testing.T) {
	p := newPair(t)
	ctx := patient(t)
	client, err := p.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	pd, err := p.Client.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := p.Client.CreateCQ(verbs.CQInit{Depth: 1})
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1})
	if err != nil {
		t.Fatal(err)
	}
	connected := make(chan error, 1)
	go func() {
		_, err := client.Connect(ctx, qp, nil)
		connected <- err
	}()
	req, err := p.Listener.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	server := req.Conn().(*conn)
	for i := range byte(maxMemories) {
		fd := newMemory(t, true)
		m, err := fd.Map(0, 4096, true)
		if err != nil {
			t.Fatal(err)
		}
		m.Bytes()[0] = 1 + i
		m.Close()
		if err := server.PassMemory(fd); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.PassMemory(newMemory(t, true)); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("once more: got %v, want %v", err, verbs.ErrBusy)
	}
	for i := range byte(maxMemories) {
		fd, err := client.(*conn).ReceiveMemory(ctx)
		if err != nil {
			t.Fatal(err)
		}
		m, err := fd.Map(0, 4096, true)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Bytes()[0]; got != 1+i {
			t.Errorf("memory %d begins with %d, want %d", i, got, 1+i)
		}
		m.Close()
		fd.Close()
	}
	if err := req.Reject("that was all"); err != nil {
		t.Fatal(err)
	}
	if err := <-connected; err == nil {
		t.Error("connected, although it was rejected")
	}
}

// Who ends a connection does not wait for memory that somebody has just received.
func TestMemoryIsReceivedWhileTheConnectionEnds(t *testing.T) {
	ctx := patient(t)
	memory := make(chan *arena.Memfd, maxMemories)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 50_000 {
			memory <- new(arena.Memfd)
			dropMemory(memory)
		}
	}()
	for {
		select {
		case <-memory: // as one who receives
			runtime.Gosched()
		case <-ended:
			return
		case <-ctx.Done():
			t.Fatal("what was received is waited for")
		}
	}
}
