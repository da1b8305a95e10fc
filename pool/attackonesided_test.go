package pool_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"polder/memnode/wire"
	"polder/pool/manager"
	"polder/pool/onesided"
	"polder/pool/pooltest"
	"polder/verbs"
)

// Attacks on what a NIC does by itself.

// oneSided reports whether clients allocate and free without messages.
func (s *scene) oneSided() bool {
	m := s.manager.Name()
	return m == onesided.Name || m == onesided.NativeName
}

func (s *scene) native() bool { return s.manager.Name() == onesided.NativeName }

// A clerk is a client that posts to the queue pairs that it allocates and frees
// with as it likes.
type clerk struct {
	*borrower
	mgmt, alloc, free verbs.QP
	group             []uint32 // its access queue pairs, by their numbers at the node
	table             uint64
}

func (s *scene) clerk() *clerk {
	s.t.Helper()
	b, qps, answers := s.raw()
	c := &clerk{borrower: b, mgmt: qps[0], alloc: qps[len(qps)-1], free: qps[len(qps)-1]}
	if !s.native() {
		c.free = qps[len(qps)-2]
	}
	c.table = binary.LittleEndian.Uint64(answers[len(answers)-1])
	for i, a := range answers {
		if len(a) == 4 {
			c.access = append(c.access, qps[i])
			c.group = append(c.group, binary.LittleEndian.Uint32(a))
		}
	}
	// The answer comes when the node has built what serves the client.
	if !c.ask(c.mgmt, wire.AppendRequest(nil, wire.OpSpace, 1, 1, 0)) {
		s.t.Fatal("the node does not answer")
	}
	return c
}

func (c *clerk) entry(chunk uint32) uint64 { return c.table + uint64(chunk)*verbs.EntrySize }

// ask sends a message and waits for one. It fails if the node hangs up.
func (c *clerk) ask(qp verbs.QP, message []byte) bool {
	c.s.t.Helper()
	n := copy(c.mr.Bytes(), message)
	sge := func(off, n int) []verbs.SGE {
		return []verbs.SGE{{Addr: c.mr.Addr() + uint64(off), Length: uint32(n), LKey: c.mr.LKey()}}
	}
	if qp.PostRecv(verbs.RecvWR{ID: 7, SGL: sge(answerAt, 8192)}) != nil ||
		qp.PostSend(verbs.SendWR{Op: verbs.OpSend, SGL: sge(0, n)}) != nil {
		return false
	}
	return c.waitFor(7)
}

// waitFor waits for the completion of a request, and reports whether it
// succeeded.
func (c *clerk) waitFor(id uint64) bool {
	c.s.t.Helper()
	ctx, cancel := context.WithTimeout(c.s.t.Context(), patience)
	defer cancel()
	for {
		var wc [1]verbs.WC
		for c.cq.Poll(wc[:]) > 0 {
			switch {
			case wc[0].Err() != nil:
				return false
			case wc[0].ID == id:
				return true
			}
		}
		if err := c.cq.Wait(ctx); err != nil {
			c.s.t.Fatalf("waiting: %v", err)
		}
	}
}

const (
	answerOff = 1024
	answerAt  = 1 << 15
)

// take allocates a chunk for the given queue pairs, with the answer to be written
// where addr and key say, and returns its entry's address. It fails if the node
// refuses, or hangs up.
func (c *clerk) take(group []uint32, addr uint64, key verbs.RKey) (entry uint64, ok bool) {
	c.s.t.Helper()
	answer := c.mr.Bytes()[answerOff:]
	clear(answer[:64])
	if c.s.native() {
		err := c.alloc.PostSend(verbs.SendWR{ID: 8, Op: verbs.OpAlloc, Flags: verbs.SendSignaled, SGL: []verbs.SGE{
			{Addr: c.mr.Addr() + answerOff, Length: verbs.AllocAnswerSize, LKey: c.mr.LKey()},
		}})
		if err != nil || !c.waitFor(8) || verbs.AllocStatus(binary.LittleEndian.Uint32(answer)) != verbs.AllocOK {
			return 0, false
		}
		return binary.LittleEndian.Uint64(answer[16:]), true
	}
	var request []byte
	for _, q := range group {
		request = binary.LittleEndian.AppendUint32(request, q)
	}
	request = binary.LittleEndian.AppendUint64(request, addr)
	request = binary.LittleEndian.AppendUint32(request, uint32(key))
	if !c.ask(c.alloc, request) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(answer[8:]), true
}

// mine allocates honestly.
func (c *clerk) mine() (entry uint64, ok bool) {
	return c.take(c.group, c.mr.Addr()+answerOff, c.mr.RKey())
}

// give frees the chunk of an entry, and reports whether the node does.
func (c *clerk) give(entry uint64) bool {
	c.s.t.Helper()
	if c.s.native() {
		return c.free.PostSend(verbs.SendWR{ID: 9, Op: verbs.OpFree, Flags: verbs.SendSignaled, RemoteAddr: entry}) == nil && c.waitFor(9)
	}
	handle := entry / verbs.EntrySize // the rest of the address is the table's
	return c.ask(c.free, []byte{byte(handle), byte(handle >> 8), byte(handle >> 16)})
}

const ownerRule = "the first window of a chunk is the owner's Free QP's, and only that can invalidate it"

// rawFrees frees entries, each over a connection of its own.
func (s *scene) rawFrees(entries func(*clerk) []uint64) outcome {
	s.t.Helper()
	lent := s.cluster.Nodes[0].Stats().Lent
	for i := 0; ; i++ {
		c := s.clerk()
		list := entries(c)
		if i == len(list) {
			c.close()
			break
		}
		freed := c.give(list[i])
		c.close()
		if freed {
			return outcome{got: "it is freed", harm: true}
		}
	}
	if got := s.cluster.Nodes[0].Stats().Lent; got != lent {
		s.t.Errorf("%d chunks are lent, want %d", got, lent)
	}
	return outcome{got: "an error; its connection is cut", rule: ownerRule}
}

func rawFreeTwice(s *scene) outcome {
	c := s.clerk()
	defer c.close()
	entry, ok := c.mine()
	if !ok || !c.give(entry) {
		s.t.Fatal("cannot allocate and free")
	}
	if c.give(entry) {
		return outcome{got: "it is freed twice", harm: true}
	}
	return outcome{got: "an error; its connection is cut", rule: ownerRule}
}

// rawExhaust asks for as much as it can without the client's half of the
// manager, which keeps to the budget of itself.
func rawExhaust(s *scene) outcome {
	c := s.clerk()
	defer c.close()
	n := 0
	for {
		if _, ok := c.mine(); !ok {
			break
		}
		n++
	}
	switch {
	case n != attackBudget:
		return outcome{got: fmt.Sprintf("%d chunks", n), harm: true}
	case s.native():
		return outcome{got: "its budget", rule: "the NIC counts what a client has"}
	}
	pooltest.Eventually(s.t, "it is cut off", func() bool { return s.cluster.Nodes[0].Stats().CutOff == 1 })
	return outcome{
		got:  "its budget; then it is cut off from allocating",
		rule: "an allocation beyond the budget waits, in the NIC, for a free; the node sees that it was asked for",
	}
}

func strangeQueuePairs(s *scene) outcome {
	if !s.oneSided() || s.native() { // nothing to name
		return outcome{none: true}
	}
	victims := s.clerk() // whose numbers are known
	defer victims.close()
	for _, q := range []uint32{0, 1, 2, 1<<24 - 1, 1<<32 - 1, victims.group[0]} {
		c := s.clerk()
		group := make([]uint32, len(c.group))
		for i := range group {
			group[i] = q
		}
		if _, ok := c.take(group, c.mr.Addr()+answerOff, c.mr.RKey()); ok {
			answer := c.mr.Bytes()[answerOff:]
			g := manager.Grant{Addr: binary.LittleEndian.Uint64(answer)}
			g.Keys[0] = verbs.RKey(binary.LittleEndian.Uint32(answer[16:]))
			if _, status := c.read(g, 8); q != 0 && status == verbs.StatusSuccess {
				return outcome{got: "a chunk through another's queue pair", harm: true}
			}
		}
		c.close()
	}
	return outcome{got: "no chunk, or one that it cannot reach", rule: "a window of type 2B serves the queue pair that it was bound to, and of its own protection domain only"}
}

func strangeDestination(s *scene) outcome {
	if !s.oneSided() || s.native() { // the answer comes to where the request was
		return outcome{none: true}
	}
	for _, to := range []struct {
		addr uint64
		key  verbs.RKey
	}{{0, 0}, {s.theirs.Addr, s.theirs.Keys[0]}, {^uint64(0), 1<<32 - 1}} {
		c := s.clerk()
		if _, ok := c.take(c.group, to.addr, to.key); ok {
			return outcome{got: "an answer", harm: true}
		}
		c.close()
	}
	return outcome{got: "an error; its connection is cut", rule: "the answer is written to the client's own memory, by the client's own keys"}
}

func strangeEntries(s *scene) outcome {
	if s.manager.Name() != wire.ODRP {
		return outcome{none: true} // what they free has rows of its own
	}
	dev := s.node.dev
	dev.mu.Lock()
	var addrs []uint64
	for _, r := range dev.regions {
		addrs = append(addrs, r.Addr())
	}
	dev.mu.Unlock()
	var own uint64
	for i := 0; i < len(addrs)+4; i++ {
		b, qps, answers := s.raw()
		own = binary.LittleEndian.Uint64(answers[1])
		c := &clerk{borrower: b, mgmt: qps[0]}
		if !c.ask(c.mgmt, wire.AppendRequest(nil, wire.OpOwned, 1, 1, 0)) {
			s.t.Fatal("the node does not answer")
		}
		var addr uint64
		switch k := i - len(addrs); k {
		case 0:
			addr = own + 4 // half of one and half of the next
		case 1:
			addr = own - 8
		case 2:
			addr = own + 1<<20
		case 3:
			addr = ^uint64(7)
		default:
			addr = addrs[i]
		}
		ok := c.ask(qps[1], binary.LittleEndian.AppendUint64(nil, addr))
		c.close()
		if ok {
			return outcome{got: fmt.Sprintf("a page by the entry at %#x", addr), harm: true}
		}
	}
	return outcome{got: "nothing; its connection is cut", rule: "a chain reads entries through a window on the client's own table, and whole ones only"}
}

// freeUnderway frees a page that a chain has not finished with, so that it might
// be sent when it is another's.
func freeUnderway(s *scene) outcome {
	if s.manager.Name() != wire.ODRP {
		return outcome{none: true}
	}
	proxy := pooltest.NewProxy(s.t, s.cluster.Nodes[0].Addr)
	b, qps, answers := s.rawAt(proxy.Addr())
	c := &clerk{borrower: b, mgmt: qps[0]}
	defer c.close()
	if !c.ask(c.mgmt, wire.AppendRequest(nil, wire.OpAlloc, 1, 1, 0)) {
		s.t.Fatal("the node does not answer")
	}
	var r wire.Reply
	if err := r.Decode(bytes.Clone(c.mr.Bytes()[answerAt:][:wire.ReplyHeader+wire.GrantSize])); err != nil || r.N != 1 {
		s.t.Fatalf("got %+v, %v", r, err)
	}
	entry := binary.LittleEndian.Uint64(answers[1]) + 8*uint64(r.Grant(0).Chunk)
	page := binary.LittleEndian.AppendUint64(nil, entry)
	if !c.ask(qps[1], page) {
		s.t.Fatal("the client's own page does not arrive")
	}
	proxy.FreezeBack()
	sends := s.cluster.Nodes[0].Stats()
	post := func(qp verbs.QP, message []byte, at int) {
		n := copy(c.mr.Bytes()[at:], message)
		recv := verbs.SGE{Addr: c.mr.Addr() + answerAt, Length: 8192, LKey: c.mr.LKey()}
		send := verbs.SGE{Addr: c.mr.Addr() + uint64(at), Length: uint32(n), LKey: c.mr.LKey()}
		if err := qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{recv}}); err != nil {
			s.t.Fatal(err)
		}
		if err := qp.PostSend(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{send}}); err != nil {
			s.t.Fatal(err)
		}
	}
	post(qps[1], page, 256)
	post(c.mgmt, wire.AppendFree(nil, 2, []uint32{r.Grant(0).Chunk}), 512)
	pooltest.Eventually(s.t, "the chunk is free", func() bool { return s.cluster.Nodes[0].Stats().Lent == sends.Lent-1 })
	// Everything is lent to others: what the chain works on is needed, too.
	clients := s.cluster.Nodes[0].Stats().Clients
	taken := 0
	for range 2 {
		e := s.join()
		s.extras = append(s.extras, e)
		for {
			g, err := e.tryAlloc()
			if errors.Is(err, manager.ErrNoMemory) {
				break
			}
			if err != nil {
				s.t.Fatal(err)
			}
			e.write(g, newSecret)
			taken++
		}
	}
	if want := attackChunks - int(sends.Lent) + 1; taken != want {
		s.t.Fatalf("others get %d chunks, want %d", taken, want)
	}
	pooltest.Eventually(s.t, "the attacker is cut", func() bool { return s.cluster.Nodes[0].Stats().Clients < clients+2 })
	proxy.Thaw()
	<-c.conn.Done()
	if bytes.Contains(c.mr.Bytes(), newSecret) {
		return outcome{got: "the next borrower's data", harm: true}
	}
	return outcome{got: "what was its own; its connection is cut when the page is needed", rule: "a page that a chain works on is lent again when the chain is done, or stopped"}
}
