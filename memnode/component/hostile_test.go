package component_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"polder/memnode/component/wire"
	nodewire "polder/memnode/wire"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/verbs"
)

// raw is a client of components that sends what it likes.
type raw struct {
	t       *testing.T
	qp      verbs.QP
	mr      verbs.MR
	mem     []byte
	replies chan []byte
	failed  chan struct{}

	pd   verbs.PD
	conn verbs.Conn
	cq   verbs.CQ
}

const rawBuffer = 64 << 10

// openRaw connects to n with queue pairs for management and for components.
func openRaw(t *testing.T, c *pooltest.Cluster, n *pooltest.Node) *raw {
	t.Helper()
	dev, err := c.Fabric.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.Fabric.Dial(context.Background(), dev, n.Addr)
	if err != nil {
		t.Fatal(err)
	}
	r := &raw{t: t, mem: make([]byte, 9*rawBuffer), replies: make(chan []byte, 64), failed: make(chan struct{})}
	if r.mr, err = pd.RegMR(r.mem, verbs.AccessLocalWrite); err != nil {
		t.Fatal(err)
	}
	connect := func(kind nodewire.Kind, cq verbs.CQ, event func(verbs.AsyncEvent)) verbs.QP {
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 256, RecvDepth: 8, OnEvent: event})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			if kind == nodewire.KindComponent {
				r.receive(qp, i)
			}
		}
		h := nodewire.Hello{Kind: kind, Manager: "native"}
		if _, err := conn.Connect(context.Background(), qp, h.Append(nil)); err != nil {
			t.Fatal(err)
		}
		return qp
	}
	idle, err := dev.CreateCQ(verbs.CQInit{Depth: 16})
	if err != nil {
		t.Fatal(err)
	}
	connect(nodewire.KindManagement, idle, nil)
	cq, err := dev.CreateCQ(verbs.CQInit{Depth: 512, Handler: func(cq verbs.CQ) {
		var wcs [16]verbs.WC
		for n := cq.Poll(wcs[:]); n > 0; n = cq.Poll(wcs[:]) {
			for _, wc := range wcs[:n] {
				if wc.Status == verbs.StatusSuccess && wc.Op == verbs.OpRecv {
					i := int(wc.ID)
					r.replies <- append([]byte(nil), r.mem[i*rawBuffer:][:wc.ByteLen]...)
				}
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	r.pd, r.conn, r.cq = pd, conn, cq
	r.qp = connect(nodewire.KindComponent, cq, func(e verbs.AsyncEvent) {
		if e.Type != verbs.EventCommEstablish && !ended {
			ended = true
			close(r.failed)
		}
	})
	return r
}

func (r *raw) receive(qp verbs.QP, i int) {
	r.t.Helper()
	if err := qp.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{{
		Addr: r.mr.Addr() + uint64(i*rawBuffer), Length: rawBuffer, LKey: r.mr.LKey(),
	}}}); err != nil {
		r.t.Fatal(err)
	}
}

// send sends b.
func (r *raw) send(b []byte) error {
	copy(r.mem[8*rawBuffer:], b)
	return r.qp.PostSend(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{
		Addr: r.mr.Addr() + 8*rawBuffer, Length: uint32(len(b)), LKey: r.mr.LKey(),
	}}})
}

// answer sends b, and returns the reply.
func (r *raw) answer(i int, b []byte) wire.Reply {
	r.t.Helper()
	if err := r.send(b); err != nil {
		r.t.Fatal(err)
	}
	var reply wire.Reply
	select {
	case got := <-r.replies:
		r.receive(r.qp, i%8)
		if err := reply.Decode(got); err != nil {
			r.t.Fatal(err)
		}
	case <-time.After(pooltest.Patience):
		r.t.Fatal("there was no answer")
	}
	return reply
}

func TestGarbageIsRefusedAndHarmsNobody(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(ample))
		bystander := construct(t, c.Open(pool.Config{}).Pool, table)
		mustWrite(t, bystander, "key", "value")
		raw := openRaw(t, c, c.Nodes[0])
		rnd := rand.New(rand.NewPCG(1, 1))
		n := 0
		ask := func(b []byte) wire.Reply {
			n++
			return raw.answer(n-1, b)
		}
		// Random bytes, of every length.
		for i := range 300 {
			b := make([]byte, 1+rnd.IntN(200))
			for k := range b {
				b[k] = byte(rnd.Uint32())
			}
			if got := ask(b).Status; got != wire.Malformed {
				t.Fatalf("message %d of %d random bytes: got %v, want %v", i, len(b), got, wire.Malformed)
			}
		}
		// Messages that are right, and make no sense.
		guess := wire.Request{Verb: wire.Read, Object: 1<<32 | 1, Key: []byte("key"), Time: time.Second, Room: 1000}
		if got := ask(guess.Append(nil)); got.Status == wire.OK {
			t.Fatalf("another client's object was read: %q", got.Data)
		}
		for _, kind := range []string{table, column, "tame", "wicked"} {
			req := wire.Request{Verb: wire.Construct, Key: []byte(kind), Time: time.Second, Room: 1000}
			made := ask(req.Append(nil))
			if made.Status != wire.OK {
				t.Fatalf("%s: %v: %s", kind, made.Status, made.Data)
			}
			if kind == "tame" || kind == "wicked" {
				continue
			}
			for range 500 {
				q := wire.Request{
					Verb: wire.Verb(3 + rnd.IntN(4)), Object: made.Object, Time: time.Second, Room: rnd.Uint32N(2000),
					Key: make([]byte, rnd.IntN(20)), Data: make([]byte, rnd.IntN(100)),
				}
				if q.Verb == wire.Compute {
					q.Op = uint16(rnd.IntN(8))
				}
				for _, b := range [][]byte{q.Key, q.Data} {
					for k := range b {
						b[k] = byte(rnd.Uint32() >> (rnd.Uint32() % 24))
					}
				}
				if got := ask(q.Append(nil)); got.Status == wire.Panicked || got.Status == wire.Lost {
					t.Fatalf("%s: %v of key %x and data %x: %v: %s", kind, q.Verb, q.Key, q.Data, got.Status, got.Data)
				}
			}
		}
		mustRead(t, bystander, "key", "value")
		st := c.Nodes[0].Stats().Components
		if st.Deaths != 0 || st.Panics != 0 {
			t.Errorf("got %+v, want neither deaths nor panics", st)
		}
	})
}

// TestAConnectionHasOneQueuePairForComponents: a second one would share buffers.
func TestAConnectionHasOneQueuePairForComponents(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.Inproc, node(ample))
	raw := openRaw(t, c, c.Nodes[0])
	second, err := raw.pd.CreateQP(verbs.QPInit{SendCQ: raw.cq, RecvCQ: raw.cq, SendDepth: 1, RecvDepth: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := nodewire.Hello{Kind: nodewire.KindComponent, Manager: "native"}
	if _, err := raw.conn.Connect(t.Context(), second, h.Append(nil)); !errors.As(err, new(*verbs.RejectError)) {
		t.Errorf("a second queue pair: got %v, want a refusal", err)
	}
	if got := raw.answer(0, []byte("nonsense")).Status; got != wire.Malformed {
		t.Errorf("the first queue pair, then: got %v, want %v", got, wire.Malformed)
	}
}

func TestWhoSendsTooMuchBreaksItsOwnQueuePair(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.Inproc, node(ample))
	bystander := construct(t, c.Open(pool.Config{}).Pool, table)
	raw := openRaw(t, c, c.Nodes[0])
	made := raw.answer(0, (&wire.Request{Verb: wire.Construct, Key: []byte("wicked"), Time: time.Second, Room: 100}).Append(nil))
	if made.Status != wire.OK {
		t.Fatal(made.Status)
	}
	wait := wire.Request{Verb: wire.Compute, Op: opWait, Object: made.Object, Time: time.Second, Room: 100}
	for range 100 {
		if raw.send(wait.Append(nil)) != nil {
			break
		}
	}
	select {
	case <-raw.failed:
	case <-time.After(pooltest.Patience):
		t.Fatal("100 requests without an answer were taken")
	}
	mustWrite(t, bystander, "key", "value")
	mustRead(t, bystander, "key", "value")

	large := openRaw(t, c, c.Nodes[0])
	binary.LittleEndian.PutUint32(large.mem, 1)
	if err := large.qp.PostSend(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{
		Addr: large.mr.Addr(), Length: 2 * rawBuffer, LKey: large.mr.LKey(),
	}}}); err != nil && !errors.Is(err, verbs.ErrInvalid) {
		t.Fatal(err)
	}
	select {
	case <-large.failed:
	case <-time.After(pooltest.Patience):
		t.Fatal("a request larger than a message was taken")
	}
	mustRead(t, bystander, "key", "value")
}
