//go:build ibverbs

package windows

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"polder/verbs"
	"polder/verbs/ibv"
)

// patience is how long a test waits for what must happen. It is far below the
// 51 seconds for which rdma_rxe blocks when a queue pair with a bound window
// is destroyed.
const patience = 20 * time.Second

var secret = []byte("a neighbour's secret data")

const windowSize = 4096

// node is a memory node: a domain with memory of which it lends windows. Its
// clients are queue pairs of the same device, each in a domain of its own.
type node struct {
	t   testing.TB
	dev verbs.Device
	pd  verbs.PD
	cq  verbs.CQ
	mem verbs.MR
}

func newNode(t testing.TB) *node {
	t.Helper()
	dev, err := ibv.Open(os.Getenv("POLDER_RDMA_DEVICE"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	n := &node{t: t, dev: dev}
	n.pd, n.cq = n.domain()
	n.mem = n.register(n.pd, verbs.AccessLocalWrite|verbs.AccessMWBind)
	copy(n.mem.Bytes(), secret)
	return n
}

func (n *node) domain() (verbs.PD, verbs.CQ) {
	n.t.Helper()
	pd, err := n.dev.AllocPD()
	if err != nil {
		n.t.Fatal(err)
	}
	cq, err := n.dev.CreateCQ(verbs.CQInit{Depth: 64})
	if err != nil {
		n.t.Fatal(err)
	}
	return pd, cq
}

func (n *node) register(pd verbs.PD, access verbs.Access) verbs.MR {
	n.t.Helper()
	mr, err := pd.RegMR(make([]byte, windowSize), access)
	if err != nil {
		n.t.Fatal(err)
	}
	return mr
}

func (n *node) queuePair(pd verbs.PD, cq verbs.CQ) verbs.QP {
	n.t.Helper()
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 8, RecvDepth: 8})
	if err != nil {
		n.t.Fatal(err)
	}
	return qp
}

// do posts a request and returns its completion's status.
func do(t testing.TB, qp verbs.QP, cq verbs.CQ, wr verbs.SendWR) verbs.Status {
	t.Helper()
	wr.Flags |= verbs.SendSignaled
	if err := qp.PostSend(wr); err != nil {
		t.Fatalf("cannot post %v: %v", wr.Op, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for wcs := make([]verbs.WC, 1); ; {
		if cq.Poll(wcs) == 1 {
			return wcs[0].Status
		}
		if err := cq.Wait(ctx); err != nil {
			t.Fatalf("no completion of %v: %v", wr.Op, err)
		}
	}
}

// client is somebody who borrows from a node.
type client struct {
	*node
	pd   verbs.PD
	cq   verbs.CQ
	mr   verbs.MR
	qp   verbs.QP // the client's
	peer verbs.QP // the node's end of it
}

func (n *node) newClient() *client {
	n.t.Helper()
	c := &client{node: n}
	c.pd, c.cq = n.domain()
	c.mr = n.register(c.pd, verbs.AccessLocalWrite)
	c.connect()
	return c
}

// connect gives the client a new connection, as somebody who has broken the
// old one would make.
func (c *client) connect() {
	c.t.Helper()
	for _, qp := range []verbs.QP{c.qp, c.peer} {
		if qp != nil {
			if err := qp.Close(); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	c.qp, c.peer = c.queuePair(c.pd, c.cq), c.queuePair(c.node.pd, c.node.cq)
	if err := c.dev.ConnectLoopback(c.qp, c.peer); err != nil {
		c.t.Fatal(err)
	}
}

// read reads the node's memory with a key, and connects again if that breaks
// the connection.
func (c *client) read(key verbs.RKey) ([]byte, verbs.Status) {
	c.t.Helper()
	clear(c.mr.Bytes())
	status := do(c.t, c.qp, c.cq, verbs.SendWR{
		Op: verbs.OpRead, RemoteAddr: c.mem.Addr(), RKey: key,
		SGL: []verbs.SGE{{Addr: c.mr.Addr(), Length: uint32(len(secret)), LKey: c.mr.LKey()}},
	})
	if status != verbs.StatusSuccess {
		c.connect()
	}
	return c.mr.Bytes()[:len(secret)], status
}

func (c *client) wantSecret(what string, key verbs.RKey) {
	c.t.Helper()
	if got, status := c.read(key); status != verbs.StatusSuccess || !bytes.Equal(got, secret) {
		c.t.Fatalf("%s: got %v and %q, want the secret", what, status, got)
	}
}

func (c *client) wantRefused(what string, key verbs.RKey) {
	c.t.Helper()
	got, status := c.read(key)
	if status != verbs.StatusRemAccessErr {
		c.t.Fatalf("%s: got %v, want %v", what, status, verbs.StatusRemAccessErr)
	}
	if bytes.Contains(got, secret[:8]) {
		c.t.Fatalf("%s: it was refused, and yet read %q", what, got)
	}
}

// lend binds a window over the node's memory for a client, with a new key.
func (n *node) lend(w verbs.MW, to *client) verbs.RKey {
	n.t.Helper()
	old := w.RKey()
	wr := verbs.SendWR{
		Op: verbs.OpBindMW, RKey: verbs.MakeRKey(uint32(old)>>8, uint8(old)+1),
		BindLKey: n.mem.LKey(), RemoteAddr: n.mem.Addr(), BindLength: windowSize, BindAccess: verbs.AccessRemoteRead,
	}
	if status := do(n.t, to.peer, n.cq, wr); status != verbs.StatusSuccess {
		n.t.Fatalf("cannot bind a window of %v: %v", w.Type(), status)
	}
	return w.RKey()
}

func (n *node) window(typ verbs.MWType) verbs.MW {
	n.t.Helper()
	w, err := n.pd.AllocMW(typ)
	if err != nil {
		n.t.Fatal(err)
	}
	return w
}

// enumerate tries all 256 keys that a window can have, and returns those with
// which it has read the secret.
func (c *client) enumerate(known verbs.RKey) (worked []uint8) {
	c.t.Helper()
	for key := range 256 {
		if got, status := c.read(verbs.MakeRKey(uint32(known)>>8, uint8(key))); status == verbs.StatusSuccess && bytes.Equal(got, secret) {
			worked = append(worked, uint8(key))
		}
	}
	return worked
}

// Who has a window of type 1's key can use it, whoever it was lent to.
func TestType1ServesAStolenKey(t *testing.T) {
	n := newNode(t)
	victim, thief := n.newClient(), n.newClient()
	key := n.lend(n.window(verbs.MWType1), victim)
	victim.wantSecret("the borrower", key)
	thief.wantSecret("another with the borrower's key, through its own queue pair", key)
}

// Who once had a window of type 1 finds its new key by trying: there are 256.
func TestType1ServesAKeyThatWasGuessed(t *testing.T) {
	n := newNode(t)
	w := n.window(verbs.MWType1)
	former, next := n.newClient(), n.newClient()
	old := n.lend(w, former)
	former.wantSecret("the first borrower", old)
	key := n.lend(w, next)
	if key == old || uint32(key)>>8 != uint32(old)>>8 {
		t.Fatalf("binding again changed the key from %v to %v, want the same index and other low bits", old, key)
	}
	former.wantRefused("the first borrower with its old key", old)
	worked := former.enumerate(old)
	if len(worked) != 1 || worked[0] != uint8(key) {
		t.Fatalf("of 256 keys, %#x worked, want %#x", worked, uint8(key))
	}
	t.Logf("the first borrower's key was %v; after the window was lent to another, trying 256 keys gave %v, which reads what is now the other's", old, key)
}

// A window of type 2B serves one queue pair: neither a stolen key nor all 256
// help another.
func TestType2ServesItsBorrowerOnly(t *testing.T) {
	n := newNode(t)
	w := n.window(verbs.MWType2B)
	victim, thief := n.newClient(), n.newClient()
	key := n.lend(w, victim)
	victim.wantSecret("the borrower", key)
	thief.wantRefused("another with the borrower's key", key)
	if worked := thief.enumerate(key); len(worked) != 0 {
		t.Fatalf("another found that %#x of 256 keys work, want none", worked)
	}
	victim.wantSecret("the borrower, after all that", key)

	// Taken back, it serves nobody.
	if status := do(t, victim.peer, n.cq, verbs.SendWR{Op: verbs.OpLocalInv, RKey: key}); status != verbs.StatusSuccess {
		t.Fatalf("cannot invalidate the window: %v", status)
	}
	victim.wantRefused("the borrower, after the window was taken back", key)
	t.Logf("another queue pair was refused with the borrower's key and with all 256 that there are")
}

// A queue pair that windows are bound to can be destroyed: rdma_rxe would
// block for 51 seconds if the driver did not take them away first.
func TestAQueuePairWithBoundWindowsIsTornDown(t *testing.T) {
	n := newNode(t)
	c := n.newClient()
	var keys []verbs.RKey
	for range 4 {
		keys = append(keys, n.lend(n.window(verbs.MWType2B), c))
	}
	c.wantSecret("the borrower", keys[0])
	closed := make(chan error, 1)
	began := time.Now()
	go func() { closed <- c.peer.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("a queue pair with %d bound windows was destroyed in %v", len(keys), time.Since(began).Round(time.Microsecond))
	case <-time.After(patience):
		t.Fatalf("destroying a queue pair with bound windows has taken %v", patience)
	}
	c.peer = nil
	c.connect()
	c.wantRefused("the borrower on a new connection", keys[0])
}
