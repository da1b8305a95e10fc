package softnic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"polder/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const allAccess = verbs.AccessLocalWrite | remoteAccess | verbs.AccessMWBind

// node is a NIC with an Output that hands packets to the node at the other
// end of its only link, and remembers what came out.
type node struct {
	t      testing.TB
	nic    *NIC
	peer   *node
	full   bool // Ready says no
	events []verbs.AsyncEvent
	calls  int           // of Completion
	trace  *bytes.Buffer // if set, everything that comes out, in order

	pd  uint32
	cq  uint32 // of send queues
	rcq uint32 // of receive queues
	mem []byte
	mr  MR
}

const testLink Link = 7

func newNode(t testing.TB, cfg Config) *node {
	t.Helper()
	n := &node{t: t, mem: make([]byte, 1<<14)}
	var err error
	if n.nic, err = New(cfg, n); err != nil {
		t.Fatal(err)
	}
	if n.pd, err = n.nic.AllocPD(); err != nil {
		t.Fatal(err)
	}
	n.cq, n.rcq = n.newCQ(1024), n.newCQ(1024)
	n.mr = n.reg(n.mem, allAccess)
	return n
}

// newNodes returns two nodes that are joined by a link.
func newNodes(t testing.TB, cfg Config) (a, b *node) {
	a, b = newNode(t, cfg), newNode(t, cfg)
	a.peer, b.peer = b, a
	return a, b
}

func (n *node) Send(l Link, p *Packet) {
	if n.trace != nil {
		n.trace.Write(p.AppendHeader(nil))
		n.trace.Write(p.Payload)
	}
	if n.peer != nil && l == testLink {
		n.peer.nic.Receive(testLink, p)
	}
}

func (n *node) Ready(Link) bool { return !n.full }

func (n *node) Completion(cqn uint32) {
	n.calls++
	if n.trace != nil {
		fmt.Fprintf(n.trace, "completion %d\n", cqn)
	}
}

func (n *node) Event(e verbs.AsyncEvent) {
	n.events = append(n.events, e)
	if n.trace != nil {
		fmt.Fprintln(n.trace, e)
	}
}

// run runs the node and its peer until neither has anything to do.
func (n *node) run() {
	for range 100_000 {
		more := n.nic.Run()
		if n.peer != nil {
			more = n.peer.nic.Run() || more
			more = more || n.peer.nic.Pending()
		}
		if !more && !n.nic.Pending() {
			return
		}
	}
	n.t.Fatal("the NICs do not come to rest")
}

func (n *node) newCQ(depth int) uint32 {
	n.t.Helper()
	cq, err := n.nic.CreateCQ(depth, false)
	if err != nil {
		n.t.Fatal(err)
	}
	return cq
}

func (n *node) reg(buf []byte, access verbs.Access) MR {
	n.t.Helper()
	return n.regIn(n.pd, buf, access)
}

func (n *node) regIn(pd uint32, buf []byte, access verbs.Access) MR {
	n.t.Helper()
	mr, err := n.nic.RegMR(pd, buf, access)
	if err != nil {
		n.t.Fatal(err)
	}
	return mr
}

func (n *node) newQP(c QPConfig) uint32 {
	n.t.Helper()
	if c.PD == 0 {
		c.PD = n.pd
	}
	if c.SendCQ == 0 {
		c.SendCQ = n.cq
	}
	if c.RecvCQ == 0 {
		c.RecvCQ = n.rcq
	}
	if c.SendDepth == 0 {
		c.SendDepth = 64
	}
	if c.RecvDepth == 0 {
		c.RecvDepth = 64
	}
	q, err := n.nic.CreateQP(c)
	if err != nil {
		n.t.Fatal(err)
	}
	return q
}

func (n *node) connect(q uint32, l Link, remote uint32) {
	n.t.Helper()
	if err := n.nic.ConnectQP(q, l, remote); err != nil {
		n.t.Fatal(err)
	}
}

// join connects a queue pair of n's to one of its peer's.
func (n *node) join(q, pq uint32) {
	n.t.Helper()
	n.connect(q, testLink, pq)
	n.peer.connect(pq, testLink, q)
}

// pair makes a queue pair on both nodes and joins them.
func (n *node) pair() (q, pq uint32) {
	n.t.Helper()
	q, pq = n.newQP(QPConfig{}), n.peer.newQP(QPConfig{})
	n.join(q, pq)
	return q, pq
}

// loopback makes a queue pair that is connected to itself.
func (n *node) loopback(c QPConfig) uint32 {
	n.t.Helper()
	q := n.newQP(c)
	n.connect(q, Loopback, q)
	return q
}

// post posts and runs.
func (n *node) post(q uint32, wrs ...verbs.SendWR) {
	n.t.Helper()
	if err := n.nic.PostSend(q, wrs); err != nil {
		n.t.Fatal(err)
	}
	n.run()
}

func (n *node) recv(q uint32, wrs ...verbs.RecvWR) {
	n.t.Helper()
	if err := n.nic.PostRecv(q, wrs); err != nil {
		n.t.Fatal(err)
	}
	n.run()
}

// poll returns all completions of a CQ.
func (n *node) poll(cq uint32) []verbs.WC {
	wcs := make([]verbs.WC, 4096)
	return wcs[:n.nic.Poll(cq, wcs)]
}

// do posts one signaled request and returns its status; everything else that
// completes is discarded.
func (n *node) do(q uint32, wr verbs.SendWR) verbs.Status {
	n.t.Helper()
	wr.ID = 0xd0
	wr.Flags |= verbs.SendSignaled
	n.post(q, wr)
	var status []verbs.Status
	for _, wc := range n.poll(n.cq) {
		if wc.ID == 0xd0 && wc.QPN == q {
			status = append(status, wc.Status)
		}
	}
	if len(status) != 1 {
		n.t.Fatalf("%v: got %d completions, want 1", wr.Op, len(status))
	}
	return status[0]
}

func (n *node) state(q uint32) verbs.State {
	n.t.Helper()
	s, err := n.nic.QPState(q)
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// at names size bytes at off of the node's memory.
func (n *node) at(off, size int) []verbs.SGE {
	return []verbs.SGE{n.mr.sge(off, size)}
}

func (m MR) sge(off, size int) verbs.SGE {
	return verbs.SGE{Addr: m.Addr + uint64(off), Length: uint32(size), LKey: verbs.LKey(m.Key)}
}

// event reports whether an event was raised, and forgets all.
func (n *node) event(typ verbs.EventType, q uint32) bool {
	ok := slices.ContainsFunc(n.events, func(e verbs.AsyncEvent) bool { return e.Type == typ && e.QPN == q })
	n.events = nil
	return ok
}

func (n *node) word(off int) uint64 { return binary.NativeEndian.Uint64(n.mem[off:]) }

func (n *node) setWord(off int, v uint64) { binary.NativeEndian.PutUint64(n.mem[off:], v) }

// ids are the IDs and statuses of completions, for comparison.
func ids(wcs []verbs.WC) string {
	var s []string
	for _, wc := range wcs {
		s = append(s, fmt.Sprintf("%d:%v", wc.ID, wc.Status))
	}
	return fmt.Sprint(s)
}
