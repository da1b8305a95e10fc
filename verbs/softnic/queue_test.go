package softnic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"polder/verbs"
)

// write is a WRITE of 8 bytes to off of the peer's memory.
func (n *node) write(id uint64, off int) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpWrite, SGL: n.at(0, 8),
		RemoteAddr: n.peer.mr.Addr + uint64(off), RKey: n.peer.mr.Key}
}

func TestStates(t *testing.T) {
	client, server := newNodes(t, Config{})
	q, pq := client.newQP(QPConfig{}), server.newQP(QPConfig{})
	want := func(when string, s verbs.State) {
		t.Helper()
		if got := client.state(q); got != s {
			t.Errorf("%s: in %v, want %v", when, got, s)
		}
	}
	want("created", verbs.StateReset)
	if err := client.nic.PostSend(q, []verbs.SendWR{{}}); !errors.Is(err, verbs.ErrBadState) {
		t.Errorf("PostSend before connecting: got %v, want ErrBadState", err)
	}
	client.recv(q, verbs.RecvWR{ID: 1, SGL: client.at(0, 8)})
	want("receive posted", verbs.StateInit)
	if err := client.nic.PostSend(q, []verbs.SendWR{{}}); !errors.Is(err, verbs.ErrBadState) {
		t.Errorf("PostSend in INIT: got %v, want ErrBadState", err)
	}
	client.join(q, pq)
	want("connected", verbs.StateRTS)
	if !client.event(verbs.EventCommEstablish, q) {
		t.Error("no event when connected")
	}
	if err := client.nic.ConnectQP(q, testLink, pq); !errors.Is(err, verbs.ErrBadState) {
		t.Errorf("connecting twice: got %v, want ErrBadState", err)
	}
	server.post(pq, verbs.SendWR{Op: verbs.OpSend, SGL: server.at(0, 8)})
	if got := ids(client.poll(client.rcq)); got != "[1:success]" {
		t.Errorf("the receive posted before connecting: got %s", got)
	}
	client.recv(q, verbs.RecvWR{ID: 2, SGL: client.at(0, 8)})
	if err := server.nic.DestroyQP(pq); err != nil {
		t.Fatal(err)
	}
	server.run()
	want("peer gone", verbs.StateError)
	if !client.event(verbs.EventDisconnected, q) {
		t.Error("no event when the peer is gone")
	}
	if got := ids(client.poll(client.rcq)); got != "[2:work request flushed]" {
		t.Errorf("the receive left over: got %s", got)
	}
	// In the error state everything is taken, and flushed.
	client.post(q, verbs.SendWR{ID: 3}, verbs.SendWR{ID: 4, Op: verbs.OpSend})
	client.recv(q, verbs.RecvWR{ID: 5})
	if got := ids(append(client.poll(client.cq), client.poll(client.rcq)...)); got !=
		"[3:work request flushed 4:work request flushed 5:work request flushed]" {
		t.Errorf("posted in ERR: got %s", got)
	}
	if err := client.nic.DestroyQP(q); err != nil {
		t.Fatal(err)
	}
	if _, err := client.nic.QPState(q); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("state of a destroyed QP: got %v, want ErrInvalid", err)
	}
}

// TestFlushOrder: what precedes the failure completes, signaled or not, as it
// should; the failure has its status; what follows is flushed, in order.
func TestFlushOrder(t *testing.T) {
	bad := func(wr verbs.SendWR, spoil func(*verbs.SendWR)) verbs.SendWR {
		spoil(&wr)
		return wr
	}
	for _, c := range []struct {
		name  string
		spoil func(*verbs.SendWR)
		want  verbs.Status
	}{
		{"remote", func(wr *verbs.SendWR) { wr.RKey++ }, verbs.StatusRemAccessErr},
		{"local", func(wr *verbs.SendWR) { wr.SGL = []verbs.SGE{{Addr: 1, Length: 8}} }, verbs.StatusLocProtErr},
		{"opcode", func(wr *verbs.SendWR) { wr.Op, wr.SGL, wr.CQN = verbs.OpWait, nil, 999 }, verbs.StatusLocQPOpErr},
		{"RNR", func(wr *verbs.SendWR) { wr.Op = verbs.OpSend }, verbs.StatusRNRRetryExcErr},
	} {
		for _, budget := range []int{1, 4096} {
			client, server := newNodes(t, Config{RunBudget: budget})
			q, pq := client.pair()
			client.recv(q, verbs.RecvWR{ID: 90}, verbs.RecvWR{ID: 91})
			first := client.write(1, 0)
			first.Flags = verbs.SendSignaled
			client.post(q, first, client.write(2, 8), bad(client.write(3, 16), c.spoil), client.write(4, 24), client.write(5, 32))
			flushed := verbs.StatusWRFlushErr
			want := fmt.Sprintf("[1:success 3:%v 4:%v 5:%v]", c.want, flushed, flushed)
			if got := ids(client.poll(client.cq)); got != want {
				t.Errorf("%s, budget %d: got %s, want %s", c.name, budget, got, want)
			}
			want = fmt.Sprintf("[90:%v 91:%v]", flushed, flushed)
			if got := ids(client.poll(client.rcq)); got != want {
				t.Errorf("%s, budget %d: receives: got %s, want %s", c.name, budget, got, want)
			}
			if !client.event(verbs.EventQPFatal, q) {
				t.Errorf("%s, budget %d: no event", c.name, budget)
			}
			if server.state(pq) != verbs.StateError {
				t.Errorf("%s, budget %d: the peer is in %v", c.name, budget, server.state(pq))
			}
		}
	}
}

func TestLinkDown(t *testing.T) {
	client, server := newNodes(t, Config{})
	q, _ := client.pair()
	idle, _ := client.pair()
	server.full = true // no acknowledgement comes
	client.post(q, client.write(1, 0), client.write(2, 0))
	client.nic.LinkDown(testLink)
	client.run()
	if got, want := ids(client.poll(client.cq)), "[1:transport retry counter exceeded 2:work request flushed]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, q := range []uint32{q, idle} {
		if client.state(q) != verbs.StateError {
			t.Errorf("QP %d is in %v", q, client.state(q))
		}
	}
	var lost []uint32
	for _, e := range client.events {
		if e.Type == verbs.EventDisconnected {
			lost = append(lost, e.QPN)
		}
	}
	if !slices.Equal(lost, []uint32{q, idle}) {
		t.Errorf("disconnected: got %v, want %v", lost, []uint32{q, idle})
	}
	if len(client.nic.links) != 0 {
		t.Errorf("%d links are remembered", len(client.nic.links))
	}
}

// TestSequence: packets out of order, repeated or for others are no good.
func TestSequence(t *testing.T) {
	for _, c := range []struct {
		name string
		p    Packet
		dead bool
	}{
		{"skipped", Packet{Kind: KindWrite, PSN: 2}, true},
		{"repeated", Packet{Kind: KindWrite, PSN: 0}, true},
		{"middle of nothing", Packet{Kind: KindMore, PSN: 1, Payload: []byte("x")}, true},
		{"longer than it says", Packet{Kind: KindWrite, PSN: 1, Payload: []byte("x")}, true},
		{"no progress", Packet{Kind: KindSend, PSN: 1, Length: 5}, true},
		{"too long a message", Packet{Kind: KindRead, PSN: 1, Length: 1<<30 + 1}, true},
		{"answer to nothing", Packet{Kind: KindReadResp}, true},
		{"acknowledgement of nothing", Packet{Kind: KindAck}, true},
		{"refusal of nothing", Packet{Kind: KindNak, Status: verbs.StatusRemOpErr}, true},
		{"unknown kind", Packet{Kind: 99, PSN: 1}, false},
		{"in order", Packet{Kind: KindWrite, PSN: 1}, false},
	} {
		n := newNode(t, Config{})
		q := n.newQP(QPConfig{})
		n.connect(q, testLink, 1)
		n.recv(q, verbs.RecvWR{SGL: n.at(0, 100)})
		n.nic.Receive(testLink, &Packet{Kind: KindWrite, DestQP: q})
		c.p.DestQP = q
		n.nic.Receive(testLink+1, &c.p) // not its link: nothing happens
		c.p.DestQP = q + 1
		n.nic.Receive(testLink, &c.p) // not its number
		if n.state(q) != verbs.StateRTS {
			t.Errorf("%s: a packet of somebody else's took the QP to %v", c.name, n.state(q))
		}
		c.p.DestQP = q
		n.nic.Receive(testLink, &c.p)
		n.run()
		if got := n.state(q) == verbs.StateError; got != c.dead {
			t.Errorf("%s: in %v", c.name, n.state(q))
		}
	}
}

// TestBadResponses: a peer that answers wrongly loses the queue pair.
func TestBadResponses(t *testing.T) {
	for _, c := range []struct {
		name string
		ps   []Packet
		want string
	}{
		{"as it should be", []Packet{{Kind: KindReadResp, Payload: make([]byte, 8)}, {Kind: KindAck, PSN: 1}}, "[1:success 2:success]"},
		{"in pieces", []Packet{{Kind: KindReadResp, Payload: make([]byte, 3)}, {Kind: KindReadResp, Payload: make([]byte, 5)}}, "[1:success]"},
		{"too much", []Packet{{Kind: KindReadResp, Payload: make([]byte, 9)}}, "[1:fatal error 2:work request flushed]"},
		{"nothing", []Packet{{Kind: KindReadResp}}, "[1:fatal error 2:work request flushed]"},
		{"a word", []Packet{{Kind: KindAtomicResp}}, "[1:fatal error 2:work request flushed]"},
		{"skipped", []Packet{{Kind: KindAck, PSN: 1}}, "[1:fatal error 2:work request flushed]"},
		{"acknowledged only", []Packet{{Kind: KindAck}}, "[1:fatal error 2:work request flushed]"},
		{"another's", []Packet{{Kind: KindReadResp, PSN: 1, Payload: make([]byte, 8)}}, "[1:fatal error 2:work request flushed]"},
		{"unknown refusal", []Packet{{Kind: KindNak, Status: 77}}, "[1:fatal error 2:work request flushed]"},
		{"twice", []Packet{{Kind: KindReadResp, Payload: make([]byte, 8)}, {Kind: KindReadResp, Payload: make([]byte, 8)}},
			"[1:success 2:fatal error]"},
	} {
		n := newNode(t, Config{})
		q := n.newQP(QPConfig{})
		n.connect(q, testLink, 1)
		n.post(q, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: n.at(0, 8)},
			verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: n.at(0, 8)})
		for _, p := range c.ps {
			p.DestQP = q
			n.nic.Receive(testLink, &p)
		}
		n.run()
		if got := ids(n.poll(n.cq)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// TestReadLimit: a queue pair keeps to MaxRdAtom, and a peer that does not is
// refused.
func TestReadLimit(t *testing.T) {
	client, server := newNodes(t, Config{})
	q, pq := client.newQP(QPConfig{SendDepth: 1024}), server.newQP(QPConfig{})
	client.join(q, pq)
	server.full = true
	wrs := make([]verbs.SendWR, 3*MaxRdAtom)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Op: verbs.OpFetchAdd, SGL: client.at(0, 8), Swap: 1, RemoteAddr: server.mr.Addr, RKey: server.mr.Key}
	}
	client.post(q, wrs...)
	if got := server.word(0); got != MaxRdAtom {
		t.Errorf("%d atomics were executed, want %d", got, MaxRdAtom)
	}
	server.full = false
	server.nic.Resume(testLink)
	server.run()
	if got := server.word(0); got != uint64(len(wrs)) {
		t.Errorf("%d atomics were executed, want %d", got, len(wrs))
	}
	server.full = true
	next := uint32(len(wrs))
	for i := range uint32(MaxRdAtom + 1) {
		server.nic.Receive(testLink, &Packet{Kind: KindRead, DestQP: pq, PSN: next + i})
	}
	if server.state(pq) != verbs.StateError || !server.event(verbs.EventQPReqErr, pq) {
		t.Errorf("with too many READs the QP is in %v", server.state(pq))
	}
}

// TestNotReady: nothing is emitted while the link says no, all goes on from
// where it stopped, and arriving packets are taken all the time.
func TestNotReady(t *testing.T) {
	client, server := newNodes(t, Config{MTU: 64})
	q, pq := client.pair()
	server.recv(pq, verbs.RecvWR{ID: 1, SGL: server.at(4096, 1000)})
	for i := range client.mem {
		client.mem[i] = byte(i * 3)
	}
	client.full, server.full = true, true
	client.post(q, verbs.SendWR{ID: 1, Op: verbs.OpSend, SGL: client.at(0, 1000), Flags: verbs.SendSignaled})
	server.post(pq, verbs.SendWR{ID: 2, Op: verbs.OpWrite, SGL: server.at(0, 8), RemoteAddr: client.mr.Addr + 8000, RKey: client.mr.Key, Flags: verbs.SendSignaled})
	for step := range 1000 {
		if s := client.nic.Counters().PacketsSent + server.nic.Counters().PacketsSent; step == 0 && s != 0 {
			t.Fatalf("%d packets were sent while the links were full", s)
		}
		// Both sides by turns get through one packet.
		n := []*node{client, server}[step%2]
		n.full = false
		n.nic.Resume(testLink)
		n.nic.Run()
		n.full = true
		n.run()
	}
	if got := ids(client.poll(client.cq)) + ids(server.poll(server.cq)) + ids(server.poll(server.rcq)); got != "[1:success][2:success][1:success]" {
		t.Errorf("got %s", got)
	}
	if !bytes.Equal(server.mem[4096:5096], client.mem[:1000]) {
		t.Error("the message is not what was sent")
	}
}

// TestGatherAndScatter sends SGLs of all shapes, in packets of all sizes.
func TestGatherAndScatter(t *testing.T) {
	shapes := [][]int{{}, {0}, {1}, {8}, {64}, {65}, {0, 5, 0}, {1, 2, 3}, {64, 64}, {63, 1, 64, 1}, {300}, {100, 100, 100},
		{7, 0, 0, 200, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}}
	for _, mtu := range []int{64, 100, MaxPayload} {
		client, server := newNodes(t, Config{MTU: mtu})
		q, pq := client.pair()
		for i := range client.mem {
			client.mem[i] = byte(i*31 + i/256)
		}
		sgl := func(n *node, shape []int, at int) (s []verbs.SGE, size int) {
			for _, k := range shape {
				s = append(s, n.mr.sge(at+size+len(s), k)) // a byte is left out between two
				size += k
			}
			return s, size
		}
		pick := func(n *node, s []verbs.SGE) (b []byte) {
			for _, e := range s {
				off := e.Addr - n.mr.Addr
				b = append(b, n.mem[off:off+uint64(e.Length)]...)
			}
			return b
		}
		for _, from := range shapes {
			for _, to := range shapes {
				src, size := sgl(client, from, 0)
				dst, room := sgl(server, to, 8000)
				if size > room {
					continue
				}
				clear(server.mem[8000:])
				server.recv(pq, verbs.RecvWR{SGL: dst})
				if s := client.do(q, verbs.SendWR{Op: verbs.OpSend, SGL: src}); s != verbs.StatusSuccess {
					t.Fatalf("SEND %v to %v: %v", from, to, s)
				}
				if got := server.poll(server.rcq); len(got) != 1 || int(got[0].ByteLen) != size {
					t.Fatalf("SEND %v to %v: got %v, want %d bytes", from, to, got, size)
				}
				if got, want := pick(server, dst)[:size], pick(client, src); !bytes.Equal(got, want) {
					t.Fatalf("SEND %v to %v, MTU %d: got %x, want %x", from, to, mtu, got, want)
				}
			}
			// WRITE from the SGL, READ back into it.
			src, size := sgl(client, from, 0)
			want := pick(client, src)
			aim := verbs.SendWR{Op: verbs.OpWrite, SGL: src, RemoteAddr: server.mr.Addr + 4000, RKey: server.mr.Key}
			if s := client.do(q, aim); s != verbs.StatusSuccess || !bytes.Equal(server.mem[4000:4000+size], want) {
				t.Fatalf("WRITE %v: %v", from, s)
			}
			aim.Op = verbs.OpRead
			aim.SGL, _ = sgl(client, from, 8000)
			if s := client.do(q, aim); s != verbs.StatusSuccess || !bytes.Equal(pick(client, aim.SGL), want) {
				t.Fatalf("READ %v: %v", from, s)
			}
		}
	}
}

// TestIndirectSGL: a table in memory may be named, and is checked.
func TestIndirectSGL(t *testing.T) {
	for _, c := range []struct {
		name  string
		table func(n *node) verbs.SGE
		want  verbs.Status
	}{
		{"two entries", func(n *node) verbs.SGE { return n.mr.sge(1024, 32) }, verbs.StatusSuccess},
		{"empty", func(n *node) verbs.SGE { return n.mr.sge(1024, 0) }, verbs.StatusSuccess},
		{"half an entry", func(n *node) verbs.SGE { return n.mr.sge(1024, 24) }, verbs.StatusLocQPOpErr},
		{"too many", func(n *node) verbs.SGE { return n.mr.sge(1024, 33*16) }, verbs.StatusLocQPOpErr},
		{"out of bounds", func(n *node) verbs.SGE { return n.mr.sge(len(n.mem)-16, 32) }, verbs.StatusLocProtErr},
		{"another domain", func(n *node) verbs.SGE { return n.regIn(n.otherPD(), n.mem, allAccess).sge(1024, 32) }, verbs.StatusLocProtErr},
	} {
		client, server := newNodes(t, Config{})
		q, _ := client.pair()
		verbs.PutSGE(client.mem[1024:], client.mr.sge(0, 3))
		verbs.PutSGE(client.mem[1040:], client.mr.sge(8, 3))
		copy(client.mem, "abcdefghijklmnop")
		got := client.do(q, verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSGLIndirect, SGL: []verbs.SGE{c.table(client)},
			RemoteAddr: server.mr.Addr, RKey: server.mr.Key})
		if got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		if c.name == "two entries" && string(server.mem[:6]) != "abcijk" {
			t.Errorf("got %q, want %q", server.mem[:6], "abcijk")
		}
	}
}

// TestReceiveTooShort: the receiver has a length error, the sender an invalid
// request.
func TestReceiveTooShort(t *testing.T) {
	client, server := newNodes(t, Config{})
	q, pq := client.pair()
	server.recv(pq, verbs.RecvWR{ID: 4, SGL: server.at(0, 7)})
	if s := client.do(q, verbs.SendWR{Op: verbs.OpSend, SGL: client.at(0, 8)}); s != verbs.StatusRemInvReqErr {
		t.Errorf("sender: got %v, want %v", s, verbs.StatusRemInvReqErr)
	}
	if got := ids(server.poll(server.rcq)); got != "[4:local length error]" {
		t.Errorf("receiver: got %s", got)
	}
}

// TestCQOverrun: one completion too many takes the queue pairs of the CQ to
// the error state; a CQ that may overrun keeps the newest.
func TestCQOverrun(t *testing.T) {
	n := newNode(t, Config{})
	small := n.newCQ(2)
	q, bystander := n.loopback(QPConfig{SendCQ: small}), n.loopback(QPConfig{})
	other := n.newQP(QPConfig{RecvCQ: small})
	nop := func(id uint64) verbs.SendWR { return verbs.SendWR{ID: id, Flags: verbs.SendSignaled} }
	n.post(q, nop(1), nop(2), nop(3), nop(4))
	for _, c := range []struct {
		q    uint32
		want verbs.State
	}{{q, verbs.StateError}, {other, verbs.StateError}, {bystander, verbs.StateRTS}} {
		if got := n.state(c.q); got != c.want {
			t.Errorf("QP %d is in %v, want %v", c.q, got, c.want)
		}
	}
	if !n.event(verbs.EventCQErr, q) {
		t.Error("no event")
	}
	if got := ids(n.poll(small)); got != "[1:success 2:success]" {
		t.Errorf("got %s", got)
	}

	keeps, err := n.nic.CreateCQ(2, true)
	if err != nil {
		t.Fatal(err)
	}
	n.post(n.loopback(QPConfig{SendCQ: keeps}), nop(1), nop(2), nop(3), nop(4))
	if got := ids(n.poll(keeps)); got != "[3:success 4:success]" {
		t.Errorf("got %s", got)
	}
}

// TestWaitCountsSuccesses: a flush does not set off who waits.
func TestWaitCountsSuccesses(t *testing.T) {
	client, server := newNodes(t, Config{})
	q, pq := client.pair()
	waiter := server.loopback(QPConfig{})
	server.recv(pq, verbs.RecvWR{}, verbs.RecvWR{})
	server.post(waiter, verbs.SendWR{Op: verbs.OpWait, CQN: server.rcq, Count: 2}, verbs.SendWR{ID: 1, Flags: verbs.SendSignaled})
	client.post(q, verbs.SendWR{Op: verbs.OpSend})
	if err := client.nic.DestroyQP(q); err != nil {
		t.Fatal(err)
	}
	client.run()
	if got := ids(server.poll(server.rcq)); got != "[0:success 0:work request flushed]" {
		t.Fatalf("got %s", got)
	}
	if got := ids(server.poll(server.cq)); got != "[]" {
		t.Errorf("the WAIT ended after one success and a flush: %s", got)
	}
	q, pq = client.pair()
	server.recv(pq, verbs.RecvWR{})
	client.post(q, verbs.SendWR{Op: verbs.OpSend})
	if got := ids(server.poll(server.cq)); got != "[1:success]" {
		t.Errorf("the WAIT did not end after two successes: %s", got)
	}
}

// TestWaitRules: what WAIT, ENABLE and ENABLE_RECV may name.
func TestWaitRules(t *testing.T) {
	n := newNode(t, Config{})
	managed := n.newQP(QPConfig{ManagedSend: true, ManagedRecv: true})
	plain := n.newQP(QPConfig{})
	foreign := n.newQP(QPConfig{PD: n.otherPD(), ManagedSend: true, ManagedRecv: true})
	for _, c := range []struct {
		name string
		wr   verbs.SendWR
		want verbs.Status
	}{
		{"WAIT for what has been", verbs.SendWR{Op: verbs.OpWait, CQN: n.cq}, verbs.StatusSuccess},
		{"WAIT for no CQ", verbs.SendWR{Op: verbs.OpWait, CQN: 999}, verbs.StatusLocQPOpErr},
		{"ENABLE", verbs.SendWR{Op: verbs.OpEnable, QPN: managed}, verbs.StatusSuccess},
		{"ENABLE_RECV", verbs.SendWR{Op: verbs.OpEnableRecv, QPN: managed}, verbs.StatusSuccess},
		{"ENABLE of no QP", verbs.SendWR{Op: verbs.OpEnable, QPN: 999}, verbs.StatusLocQPOpErr},
		{"ENABLE of another domain's", verbs.SendWR{Op: verbs.OpEnable, QPN: foreign}, verbs.StatusLocQPOpErr},
		{"ENABLE of a plain queue", verbs.SendWR{Op: verbs.OpEnable, QPN: plain}, verbs.StatusLocQPOpErr},
		{"ENABLE_RECV of a plain queue", verbs.SendWR{Op: verbs.OpEnableRecv, QPN: plain}, verbs.StatusLocQPOpErr},
		{"ENABLE of itself, which is plain", verbs.SendWR{Op: verbs.OpEnable}, verbs.StatusLocQPOpErr},
	} {
		if got := n.do(n.loopback(QPConfig{}), c.wr); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if err := n.nic.EnableSend(plain, 1); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("EnableSend of a plain queue: got %v, want ErrInvalid", err)
	}
	if err := n.nic.EnableRecv(plain, 1); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("EnableRecv of a plain queue: got %v, want ErrInvalid", err)
	}
}

// TestWrap: a managed queue runs its entries again and again, of any depth.
func TestWrap(t *testing.T) {
	for _, depth := range []int{1, 2, 3, 7, 8} {
		n := newNode(t, Config{})
		q := n.newQP(QPConfig{SendDepth: depth, RecvDepth: depth, ManagedSend: true, ManagedRecv: true})
		n.connect(q, Loopback, q)
		var sends []verbs.SendWR
		var recvs []verbs.RecvWR
		for i := range depth {
			sends = append(sends, verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: n.at(0, 8)})
			recvs = append(recvs, verbs.RecvWR{ID: uint64(i), SGL: n.at(64, 8)})
		}
		n.post(q, sends...)
		n.recv(q, recvs...)
		if got := n.poll(n.cq); len(got) != 0 {
			t.Fatalf("depth %d: %v without being enabled", depth, got)
		}
		if err := n.nic.PostSend(q, sends[:1]); !errors.Is(err, verbs.ErrQueueFull) {
			t.Errorf("depth %d: got %v, want ErrQueueFull", depth, err)
		}
		for i := range uint64(5 * depth) {
			if err := n.nic.EnableRecv(q, i+1); err != nil {
				t.Fatal(err)
			}
			if err := n.nic.EnableSend(q, i+1); err != nil {
				t.Fatal(err)
			}
			n.run()
			want := fmt.Sprintf("[%d:success]", i%uint64(depth))
			if got := ids(n.poll(n.cq)); got != want {
				t.Fatalf("depth %d: SEND %d: got %s, want %s", depth, i, got, want)
			}
			if got := ids(n.poll(n.rcq)); got != want {
				t.Fatalf("depth %d: RECV %d: got %s, want %s", depth, i, got, want)
			}
		}
		if err := n.nic.EnableSend(q, 1); err != nil { // lowering changes nothing
			t.Fatal(err)
		}
		n.run()
		if got := n.poll(n.cq); len(got) != 0 || n.state(q) != verbs.StateRTS {
			t.Errorf("depth %d: enabled backwards: %v, %v", depth, got, n.state(q))
		}
	}
}

// TestFence: a request with a fence sees what READs before it brought.
func TestFence(t *testing.T) {
	client, server := newNodes(t, Config{})
	q, _ := client.pair()
	server.setWord(0, 42)
	server.full = true
	client.post(q,
		verbs.SendWR{Op: verbs.OpRead, SGL: client.at(0, 8), RemoteAddr: server.mr.Addr, RKey: server.mr.Key},
		verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendFence, SGL: client.at(0, 8), RemoteAddr: server.mr.Addr + 8, RKey: server.mr.Key})
	if got := server.word(8); got != 0 {
		t.Fatalf("the WRITE did not wait: %d", got)
	}
	server.full = false
	server.nic.Resume(testLink)
	server.run()
	if got := server.word(8); got != 42 {
		t.Errorf("got %d, want 42", got)
	}
}

// TestAcknowledgementsCoalesce: one Run, one Ack.
func TestAcknowledgementsCoalesce(t *testing.T) {
	client, server := newNodes(t, Config{})
	q, pq := client.pair()
	_ = q
	for i := range uint32(50) {
		server.nic.Receive(testLink, &Packet{Kind: KindWrite, DestQP: pq, PSN: i})
	}
	before := server.nic.Counters().PacketsSent
	server.peer = nil
	server.nic.Run()
	if got := server.nic.Counters().PacketsSent - before; got != 1 {
		t.Errorf("got %d packets for 50 WRITEs, want 1", got)
	}
}

// TestSequenceNumbersWrap runs past 24 bits.
func TestSequenceNumbersWrap(t *testing.T) {
	client, server := newNodes(t, Config{})
	q, pq := client.pair()
	a, b := client.nic.qps.get(q), server.nic.qps.get(pq)
	a.req.nextPSN, a.req.una, b.rsp.expPSN = psnMask-2, psnMask-2, psnMask-2
	for i := range 10 {
		wrs := []verbs.SendWR{client.write(1, 0),
			{ID: 2, Op: verbs.OpFetchAdd, SGL: client.at(0, 8), Swap: 1, RemoteAddr: server.mr.Addr + 64, RKey: server.mr.Key, Flags: verbs.SendSignaled}}
		client.post(q, wrs...)
		if got := ids(client.poll(client.cq)); got != "[2:success]" || server.word(64) != uint64(i+1) {
			t.Fatalf("round %d: got %s and %d", i, got, server.word(64))
		}
	}
}

// TestPostErrors: what PostSend and PostRecv refuse, and that they then post
// nothing.
func TestPostErrors(t *testing.T) {
	n := newNode(t, Config{})
	q := n.loopback(QPConfig{SendDepth: 4, RecvDepth: 4})
	good := verbs.SendWR{Flags: verbs.SendSignaled}
	for name, wr := range map[string]verbs.SendWR{
		"RECV":                  {Op: verbs.OpRecv},
		"opcode":                {Op: 77},
		"flags":                 {Flags: 0x80},
		"SGEs":                  {Op: verbs.OpWrite, SGL: make([]verbs.SGE, 33)},
		"SGE of a NOP":          {SGL: n.at(0, 8)},
		"two SGEs of an atomic": {Op: verbs.OpFetchAdd, SGL: append(n.at(0, 4), n.at(0, 4)...)},
		"4 bytes of an atomic":  {Op: verbs.OpCmpSwap, SGL: n.at(0, 4)},
		"two tables":            {Op: verbs.OpRead, Flags: verbs.SendSGLIndirect, SGL: make([]verbs.SGE, 2)},
	} {
		if err := n.nic.PostSend(q, []verbs.SendWR{good, wr}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	if err := n.nic.PostSend(q, make([]verbs.SendWR, 5)); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("got %v, want ErrQueueFull", err)
	}
	if err := n.nic.PostRecv(q, make([]verbs.RecvWR, 5)); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("got %v, want ErrQueueFull", err)
	}
	if err := n.nic.PostRecv(q, []verbs.RecvWR{{SGL: make([]verbs.SGE, 33)}}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	n.run()
	if got := n.poll(n.cq); len(got) != 0 {
		t.Errorf("a refused batch was executed: %v", got)
	}
}

// TestForgedEntries: a work-queue entry that was never posted through the
// checks fails by itself.
func TestForgedEntries(t *testing.T) {
	for name, forge := range map[string]func(b []byte){
		"opcode":       func(b []byte) { b[verbs.WQEOpcode] = 99 },
		"RECV to send": func(b []byte) { b[verbs.WQEOpcode] = byte(verbs.OpRecv) },
		"flags":        func(b []byte) { b[verbs.WQEFlags] = 0x80 },
		"flags, READ":  func(b []byte) { b[verbs.WQEOpcode], b[verbs.WQEFlags] = byte(verbs.OpRead), 0x80 },
		"flags, WRITE": func(b []byte) { b[verbs.WQEOpcode], b[verbs.WQEFlags] = byte(verbs.OpWrite), 0x80 },
		"three SGEs":   func(b []byte) { b[verbs.WQEOpcode], b[verbs.WQENumSGE] = byte(verbs.OpWrite), 3 },
		"SGE-less":     func(b []byte) { b[verbs.WQEOpcode] = byte(verbs.OpFetchAdd) },
		"indirect atomic": func(b []byte) {
			b[verbs.WQEOpcode], b[verbs.WQEFlags], b[verbs.WQENumSGE] = byte(verbs.OpFetchAdd), byte(verbs.SendSGLIndirect), 1
		},
	} {
		n := newNode(t, Config{})
		mem := make([]byte, verbs.WQESize)
		q := n.newQP(QPConfig{SendDepth: 1, ManagedSend: true, SendRing: n.reg(mem, 0).Key})
		n.connect(q, Loopback, q)
		binary.LittleEndian.PutUint64(mem[verbs.WQEID:], 5)
		forge(mem)
		if err := n.nic.EnableSend(q, 1); err != nil {
			t.Fatal(err)
		}
		n.run()
		if got := ids(n.poll(n.cq)); got != "[5:local QP operation error]" {
			t.Errorf("%s: got %s", name, got)
		}
	}
}
