package memnode_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
	"polder/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// overDrivers runs f over every driver.
func overDrivers(t *testing.T, f func(*testing.T, pooltest.Setup)) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		t.Run(s.Name, func(t *testing.T) { f(t, messages(s)) })
	}
}

// messages is s with nodes that understand what raw clients say.
func messages(s pooltest.Setup) pooltest.Setup {
	s.Manager = rpcmw.Manager{}
	return s
}

// raw is a client that speaks plain verbs to a node, and means no good.
type raw struct {
	t      *testing.T
	conn   verbs.Conn
	pd     verbs.PD
	mr     verbs.MR // mem
	mem    []byte   // requests in the first half, replies in the second
	cq     verbs.CQ
	mgmt   verbs.QP
	acq    verbs.CQ
	access verbs.QP
	w      wire.Welcome
	id     uint32
	wcs    [1]verbs.WC
}

// dialRaw connects to n without opening a queue pair.
func dialRaw(t *testing.T, c *pooltest.Cluster, n *pooltest.Node) *raw {
	t.Helper()
	return dialRawAt(t, c, n.Addr)
}

func dialRawAt(t *testing.T, c *pooltest.Cluster, addr string) *raw {
	t.Helper()
	dev, err := c.Fabric.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	r := &raw{t: t, mem: make([]byte, 1<<16)}
	ctx, cancel := context.WithTimeout(t.Context(), pooltest.Patience)
	defer cancel()
	if r.conn, err = c.Fabric.Dial(ctx, dev, addr); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r.pd, err = dev.AllocPD()
	must(err)
	r.mr, err = r.pd.RegMR(r.mem, verbs.AccessLocalWrite)
	must(err)
	r.cq, err = dev.CreateCQ(verbs.CQInit{Depth: 256})
	must(err)
	r.acq, err = dev.CreateCQ(verbs.CQInit{Depth: 256})
	must(err)
	r.mgmt, err = r.pd.CreateQP(verbs.QPInit{SendCQ: r.cq, RecvCQ: r.cq, SendDepth: 128, RecvDepth: 64})
	must(err)
	r.access, err = r.pd.CreateQP(verbs.QPInit{SendCQ: r.acq, RecvCQ: r.acq, SendDepth: 64, RecvDepth: 1})
	must(err)
	return r
}

// openRaw is dialRaw with both queue pairs connected.
func openRaw(t *testing.T, c *pooltest.Cluster, n *pooltest.Node, resume wire.Session) *raw {
	t.Helper()
	return openRawAt(t, c, n.Addr, resume)
}

func openRawAt(t *testing.T, c *pooltest.Cluster, addr string, resume wire.Session) *raw {
	t.Helper()
	r := dialRawAt(t, c, addr)
	private, err := r.hello(r.mgmt, wire.Hello{Kind: wire.KindManagement, Manager: memnode.RPCMW, Session: resume})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.w.Decode(private); err != nil {
		t.Fatal(err)
	}
	if _, err := r.hello(r.access, wire.Hello{Kind: wire.KindAccess, Manager: memnode.RPCMW}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *raw) hello(qp verbs.QP, h wire.Hello) ([]byte, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), pooltest.Patience)
	defer cancel()
	return r.conn.Connect(ctx, qp, h.Append(nil))
}

// completion waits for the next completion of cq.
func (r *raw) completion(cq verbs.CQ) verbs.WC {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), pooltest.Patience)
	defer cancel()
	var wc [1]verbs.WC
	for cq.Poll(wc[:]) == 0 {
		if err := cq.Wait(ctx); err != nil {
			r.t.Fatalf("waiting for a completion: %v", err)
		}
	}
	return wc[0]
}

const recvID = 1000

// send sends msg as a request, with a receive posted for the reply.
func (r *raw) send(msg []byte) {
	r.t.Helper()
	half := uint64(len(r.mem) / 2)
	if err := r.mgmt.PostRecv(verbs.RecvWR{ID: recvID, SGL: []verbs.SGE{{Addr: r.mr.Addr() + half, Length: 2048, LKey: r.mr.LKey()}}}); err != nil {
		r.t.Fatal(err)
	}
	if err := r.sendOnly(msg); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) sendOnly(msg []byte) error {
	n := copy(r.mem, msg)
	return r.mgmt.PostSend(verbs.SendWR{
		ID: 1, Op: verbs.OpSend, Flags: verbs.SendSignaled,
		SGL: []verbs.SGE{{Addr: r.mr.Addr(), Length: uint32(n), LKey: r.mr.LKey()}},
	})
}

// call sends msg and returns the reply.
func (r *raw) call(msg []byte) wire.Reply {
	r.t.Helper()
	r.send(msg)
	var reply wire.Reply
	for seen := 0; seen < 2; seen++ {
		wc := r.completion(r.cq)
		if err := wc.Err(); err != nil {
			r.t.Fatalf("the request failed: %v", err)
		}
		if wc.ID == recvID {
			half := len(r.mem) / 2
			if err := reply.Decode(r.mem[half : half+int(wc.ByteLen)]); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	return reply
}

func (r *raw) alloc(n int) []wire.Grant {
	r.t.Helper()
	r.id++
	reply := r.call(wire.AppendRequest(nil, wire.OpAlloc, r.id, n, 0))
	if reply.Status != wire.StatusOK || reply.ID != r.id {
		r.t.Fatalf("allocating: %v, id %d, want id %d", reply.Status, reply.ID, r.id)
	}
	var grants []wire.Grant
	for i := range reply.N {
		grants = append(grants, reply.Grant(i))
	}
	return grants
}

func (r *raw) free(chunks ...uint32) wire.Status {
	r.t.Helper()
	return r.call(wire.AppendFree(nil, 1, chunks)).Status
}

// addr is where chunk i begins.
func (r *raw) addr(i uint32) uint64 { return r.w.Base + uint64(i)*r.w.ChunkSize }

// access1 runs one one-sided operation of n bytes and returns how it ended. If
// it fails the access queue pair is of no use any more.
func (r *raw) access1(op verbs.Opcode, addr uint64, key verbs.RKey, n uint32) verbs.Status {
	r.t.Helper()
	err := r.access.PostSend(verbs.SendWR{
		Op: op, Flags: verbs.SendSignaled, RemoteAddr: addr, RKey: key,
		SGL: []verbs.SGE{{Addr: r.mr.Addr() + 4096, Length: n, LKey: r.mr.LKey()}},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.completion(r.acq).Status
}
