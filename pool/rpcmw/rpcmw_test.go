package rpcmw

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/memnode/wire"
	"polder/pool/manager"
	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/softnic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A scripted node answers every connection with welcome, and every request
// with what reply returns, when it returns; nil is no answer.
type scripted struct {
	welcome wire.Welcome
	reply   func(wire.Request) []byte
}

func honestWelcome() wire.Welcome {
	w := wire.Welcome{
		Base: 1 << 20, ChunkSize: 4096, Chunks: 100, Grace: time.Minute, Credits: 4, Batch: wire.MaxBatch,
		Space: wire.Space{Free: 100, Budget: 50},
	}
	w.Session.ID = 1
	return w
}

// attach connects a session to a node that follows a script.
func attach(t *testing.T, n scripted) (manager.Session, error) {
	t.Helper()
	f := inproc.NewFabric()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	server, err := f.NewDevice(softnic.Config{})
	must(err)
	l, err := f.Listen(server, "node")
	must(err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := n.serve(ctx, server, l); err != nil && ctx.Err() == nil {
			t.Errorf("the scripted node: %v", err)
		}
	}()
	client, err := f.NewDevice(softnic.Config{})
	must(err)
	t.Cleanup(func() {
		stop()
		<-done
		client.Close()
		server.Close()
	})
	pd, err := client.AllocPD()
	must(err)
	conn, err := f.Dial(ctx, client, "node")
	must(err)
	cq, err := client.CreateCQ(verbs.CQInit{Depth: 8})
	must(err)
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 4, RecvDepth: 4})
	must(err)
	s, err := Manager{}.Attach(ctx, manager.Link{Device: client, PD: pd, Conn: conn, Access: func() (verbs.QP, error) { return qp, nil }})
	if err == nil {
		t.Cleanup(s.Close)
	}
	return s, err
}

func (n *scripted) serve(ctx context.Context, dev verbs.Device, l verbs.Listener) error {
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	mem := make([]byte, 16*2048)
	mr, err := pd.RegMR(mem, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(verbs.CQInit{Depth: 64})
	if err != nil {
		return err
	}
	sge := func(i, n int) []verbs.SGE {
		return []verbs.SGE{{Addr: mr.Addr() + uint64(i)*2048, Length: uint32(n), LKey: mr.LKey()}}
	}
	var mgmt verbs.QP
	for i := range 2 {
		req, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 16, RecvDepth: 16})
		if err != nil {
			return err
		}
		var private []byte
		if i == 0 {
			mgmt = qp
			for k := range 8 {
				if err := qp.PostRecv(verbs.RecvWR{ID: uint64(k), SGL: sge(k, 2048)}); err != nil {
					return err
				}
			}
			private = n.welcome.Append(nil)
		}
		if err := req.Accept(qp, private); err != nil {
			return err
		}
	}
	for {
		if err := cq.Wait(ctx); err != nil {
			return err
		}
		var wc [1]verbs.WC
		if cq.Poll(wc[:]) == 0 || wc[0].Op != verbs.OpRecv || wc[0].Err() != nil {
			continue
		}
		i := int(wc[0].ID)
		var r wire.Request
		if err := r.Decode(mem[i*2048 : i*2048+int(wc[0].ByteLen)]); err != nil {
			return err
		}
		msg := n.reply(r)
		if msg == nil {
			continue
		}
		k := copy(mem[(8+i)*2048:(9+i)*2048], msg)
		if err := mgmt.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: sge(i, 2048)}); err != nil {
			return err
		}
		if err := mgmt.PostSend(verbs.SendWR{ID: 100, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: sge(8+i, k)}); err != nil {
			return err
		}
	}
}

// grantReply grants the given chunks in answer to r.
func grantReply(r wire.Request, chunks ...uint32) []byte {
	var grants []wire.Grant
	for _, c := range chunks {
		grants = append(grants, wire.Grant{Chunk: c, Key: 7, Addr: 1<<20 + 4096*uint64(c)})
	}
	return wire.AppendReply(nil, &wire.Reply{Op: r.Op, ID: r.ID, Space: wire.Space{Free: 9, Budget: 8}}, grants)
}

func TestANodeThatBreaksTheProtocol(t *testing.T) {
	for name, reply := range map[string]func(wire.Request) []byte{
		"nonsense":                  func(wire.Request) []byte { return []byte("hello, is this the memory node?") },
		"nothing":                   func(wire.Request) []byte { return []byte{0} },
		"more than was asked for":   func(r wire.Request) []byte { return grantReply(r, 1, 2) },
		"no grant at all":           func(r wire.Request) []byte { return grantReply(r) },
		"a chunk that is not there": func(r wire.Request) []byte { return grantReply(r, 100) },
		"another's reply":           func(r wire.Request) []byte { r.ID++; return grantReply(r, 1) },
		"a reply for no slot":       func(r wire.Request) []byte { r.ID |= 0xff; return grantReply(r, 1) },
		"a longer reply than any":   func(r wire.Request) []byte { return make([]byte, 2000) },
	} {
		t.Run(name, func(t *testing.T) {
			s, err := attach(t, scripted{welcome: honestWelcome(), reply: reply})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				n, err := s.Alloc(t.Context(), make([]manager.Grant, 1))
				if err == nil || errors.Is(err, manager.ErrNoMemory) || errors.Is(err, manager.ErrRefused) {
					t.Fatalf("got %d chunks, %v, want the session to be given up", n, err)
				}
			}
		})
	}
}

func TestAnEndlessListOfOwnedChunks(t *testing.T) {
	s, err := attach(t, scripted{welcome: honestWelcome(), reply: func(r wire.Request) []byte { return grantReply(r, 1, 2, 3) }})
	if err != nil {
		t.Fatal(err)
	}
	if grants, err := s.Owned(t.Context()); !errors.Is(err, wire.ErrMalformed) {
		t.Fatalf("got %d grants, %v, want %v", len(grants), err, wire.ErrMalformed)
	}
}

func TestRepliesTellTheSpaceThatIsLeft(t *testing.T) {
	s, err := attach(t, scripted{welcome: honestWelcome(), reply: func(r wire.Request) []byte { return grantReply(r, 5) }})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Space(), (wire.Space{Free: 100, Budget: 50}); got != want {
		t.Fatalf("space is %v at first, want %v", got, want)
	}
	var g [3]manager.Grant
	if n, err := s.Alloc(t.Context(), g[:]); n != 1 || err != nil {
		t.Fatalf("got %d chunks, %v, want 1", n, err)
	}
	if want := (manager.Grant{Chunk: 5, Chunks: 1, Addr: 1<<20 + 5*4096, Keys: [manager.MaxPaths]verbs.RKey{7}}); g[0] != want {
		t.Fatalf("got %+v, want %+v", g[0], want)
	}
	if got, want := s.Space(), (wire.Space{Free: 9, Budget: 8}); got != want {
		t.Fatalf("space is %v then, want %v", got, want)
	}
}

// What was granted to a caller that had given up goes back with the next call.
func TestAGrantThatComesTooLate(t *testing.T) {
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	freed := make(chan uint32, 1)
	first := true
	s, err := attach(t, scripted{welcome: honestWelcome(), reply: func(r wire.Request) []byte {
		switch {
		case r.Op == wire.OpFree:
			freed <- r.Chunk(0)
			return wire.AppendReply(nil, &wire.Reply{Op: r.Op, ID: r.ID, N: r.N}, nil)
		case first:
			first = false
			asked <- struct{}{}
			<-answer
			return grantReply(r, 42)
		}
		return grantReply(r, 43)
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := s.Alloc(ctx, make([]manager.Grant, 1))
		failed <- err
	}()
	<-asked
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want %v", err, context.Canceled)
	}
	close(answer)
	var g [1]manager.Grant
	for len(freed) == 0 { // the late reply may not have arrived at the first call
		if _, err := s.Alloc(t.Context(), g[:]); err != nil {
			t.Fatal(err)
		}
		if g[0].Chunk != 43 {
			t.Fatalf("got chunk %d, want 43", g[0].Chunk)
		}
	}
	if got := <-freed; got != 42 {
		t.Fatalf("chunk %d was given back, want 42", got)
	}
}

// As many callers as like may wait for a credit; Close ends them all.
func TestCloseEndsCallsInProgress(t *testing.T) {
	asked := make(chan struct{}, 16)
	s, err := attach(t, scripted{welcome: honestWelcome(), reply: func(wire.Request) []byte {
		asked <- struct{}{}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	for range 8 {
		go func() { failed <- s.Free(t.Context(), []uint32{1}) }()
	}
	for range 4 { // the credits
		<-asked
	}
	s.Close()
	for range 8 {
		if err := <-failed; !errors.Is(err, manager.ErrClosed) {
			t.Fatalf("got %v, want %v", err, manager.ErrClosed)
		}
	}
	if _, err := s.Owned(t.Context()); !errors.Is(err, manager.ErrClosed) {
		t.Fatalf("after Close: got %v, want %v", err, manager.ErrClosed)
	}
}

func TestAWelcomeThatMakesNoSense(t *testing.T) {
	for name, change := range map[string]func(*wire.Welcome){
		"no session":                         func(w *wire.Welcome) { w.Session.ID = 0 },
		"odd chunks":                         func(w *wire.Welcome) { w.ChunkSize = 1000 },
		"no credits":                         func(w *wire.Welcome) { w.Credits = 0 },
		"huge batches":                       func(w *wire.Welcome) { w.Batch = 60000 },
		"two groups where one was asked for": func(w *wire.Welcome) { w.Groups = 2 },
		"more memory than addresses": func(w *wire.Welcome) {
			w.ChunkSize, w.Chunks = 1<<40, 1<<31
		},
	} {
		w := honestWelcome()
		change(&w)
		s, err := attach(t, scripted{welcome: w})
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: got %v, want %v", name, err, wire.ErrMalformed)
		}
	}
}
