package softnic

import (
	"encoding/binary"
	"fmt"
	"testing"

	"polder/verbs"
)

// The chains of OneSidedMW (section 4.3, figure 5). A client's SEND lets the
// memory node's NIC take a chunk from the queue of free ones, bind its group
// of windows to the client's queue pairs and write their keys to the client;
// another SEND has it invalidate the windows and queue the chunk again. Each
// chain then makes itself ready for the next request. No CPU posts anything.

const (
	chunks    = 8
	chunkSize = 512
	groupSize = 3              // windows per chunk: for the Free QP and two Access QPs
	entrySize = groupSize * 12 // an entry of the MWTable: address and rkey, for each
)

// Offsets in the memory node's data.
const (
	headOff  = 0 // address of the next element to take
	tailOff  = 8 // address of the next element to fill
	zeroOff  = 16
	trashOff = 24
	queueOff = 64
	tableOff = queueOff + 8*(chunks+4)
)

// chain is what a managed queue in loopback executes over and over. Its ring
// is memory that its own requests can reach.
type chain struct {
	n     *node
	ring  MR
	trash verbs.SGE // takes what nobody needs
	wrs   []verbs.SendWR
}

func newChain(n *node, trash verbs.SGE) *chain {
	return &chain{n: n, ring: n.reg(make([]byte, 64*verbs.WQESize), allAccess), trash: trash}
}

// field is an SGE for a field of the request of an index.
func (c *chain) field(index, off, size int) verbs.SGE {
	return c.ring.sge(index*verbs.WQESize+off, size)
}

// add appends a request and returns its index.
func (c *chain) add(wr verbs.SendWR) int {
	c.wrs = append(c.wrs, wr)
	return len(c.wrs) - 1
}

// bump appends a FETCH_ADD to the count of the request of an index.
func (c *chain) bump(index int, by uint64) {
	c.add(verbs.SendWR{Op: verbs.OpFetchAdd, RemoteAddr: c.field(index, verbs.WQEAddr, 8).Addr, RKey: c.ring.Key,
		Swap: by, SGL: []verbs.SGE{c.trash}})
}

// start appends what makes the chain run again, and has it run up to its first
// WAIT.
func (c *chain) start() (qp uint32) {
	again := len(c.wrs) + 1
	length := uint64(again + 1)
	c.bump(again, length)
	c.add(verbs.SendWR{Op: verbs.OpEnable, Flags: verbs.SendFence, Count: length}) // of itself
	qp = c.n.newQP(QPConfig{SendDepth: len(c.wrs), ManagedSend: true, SendRing: c.ring.Key})
	c.n.connect(qp, Loopback, qp)
	c.n.post(qp, c.wrs...)
	if err := c.n.nic.EnableSend(qp, length); err != nil {
		c.n.t.Fatal(err)
	}
	c.n.run()
	return qp
}

// lender is a memory node that runs the chains.
type lender struct {
	*node
	data     MR // head and tail, the queue of free entries, the MWTable
	dataMem  []byte
	chunk    MR
	chunkMem []byte
}

func newLender(n *node) *lender {
	a := &lender{node: n, dataMem: make([]byte, 4096), chunkMem: make([]byte, chunks*chunkSize)}
	a.data = n.reg(a.dataMem, allAccess)
	a.chunk = n.reg(a.chunkMem, verbs.AccessLocalWrite|verbs.AccessMWBind)
	le := binary.LittleEndian
	le.PutUint64(a.dataMem[headOff:], a.data.Addr+queueOff)
	le.PutUint64(a.dataMem[tailOff:], a.data.Addr+queueOff+8*chunks)
	for i := range chunks {
		entry := tableOff + i*entrySize
		le.PutUint64(a.dataMem[queueOff+8*i:], a.data.Addr+uint64(entry))
		for j := range groupSize {
			le.PutUint64(a.dataMem[entry+12*j:], a.chunk.Addr+uint64(i*chunkSize))
			le.PutUint32(a.dataMem[entry+12*j+8:], uint32(n.allocMW(n.pd, verbs.MWType2B)|0x11))
		}
	}
	return a
}

// counter makes a CQ that only WAITs look at.
func (a *lender) counter() uint32 {
	cq, err := a.nic.CreateCQ(4, true)
	if err != nil {
		a.t.Fatal(err)
	}
	return cq
}

// front makes the queue pair that a client's requests arrive at: its requests
// lie in ring and run when the chain enables them.
func (a *lender) front(clientQP uint32, depth int) (qp uint32, ring MR, recvCQ, sendCQ uint32) {
	ring = a.reg(make([]byte, depth*verbs.WQESize), allAccess)
	recvCQ, sendCQ = a.counter(), a.counter()
	qp = a.newQP(QPConfig{SendCQ: sendCQ, RecvCQ: recvCQ, SendDepth: depth, RecvDepth: 2,
		ManagedSend: true, ManagedRecv: true, SendRing: ring.Key})
	a.join(qp, clientQP)
	return qp, ring, recvCQ, sendCQ
}

// finish appends to a chain that it opens the front for the next request, runs
// the front's send queue once and waits for that, and counts on.
func (a *lender) finish(c *chain, wait int, qp uint32, depth uint64, sendCQ uint32) {
	recv := c.add(verbs.SendWR{Op: verbs.OpEnableRecv, QPN: qp, Count: 2})
	send := c.add(verbs.SendWR{Op: verbs.OpEnable, QPN: qp, Count: depth, Flags: verbs.SendFence})
	sent := c.add(verbs.SendWR{Op: verbs.OpWait, CQN: sendCQ, Count: 1})
	for _, i := range []int{wait, recv, sent} {
		c.bump(i, 1)
	}
	c.bump(send, depth)
}

// open lets the first request in, which is scattered over sgl.
func (a *lender) open(qp uint32, sgl ...verbs.SGE) {
	a.recv(qp, verbs.RecvWR{SGL: sgl}, verbs.RecvWR{SGL: sgl})
	if err := a.nic.EnableRecv(qp, 1); err != nil {
		a.t.Fatal(err)
	}
	a.run()
}

// startAlloc builds the allocation chain for a client and returns its queue
// pair.
func (a *lender) startAlloc(clientQP, freeQP uint32) uint32 {
	const fence = verbs.SendFence
	alloc, ring, recvCQ, sendCQ := a.front(clientQP, 1)
	c := newChain(a.node, a.data.sge(trashOff, 8))
	wait := c.add(verbs.SendWR{Op: verbs.OpWait, CQN: recvCQ, Count: 1})
	faa := c.add(verbs.SendWR{Op: verbs.OpFetchAdd, RemoteAddr: a.data.Addr + headOff, RKey: a.data.Key, Swap: 8})
	dup := c.add(verbs.SendWR{Op: verbs.OpWrite, Flags: fence, RKey: c.ring.Key})
	element := c.add(verbs.SendWR{Op: verbs.OpRead, RKey: a.data.Key})
	zero := c.add(verbs.SendWR{Op: verbs.OpWrite, Flags: fence, RKey: a.data.Key, SGL: []verbs.SGE{a.data.sge(zeroOff, 8)}})
	entry := c.add(verbs.SendWR{Op: verbs.OpRead, Flags: fence, RKey: a.data.Key})
	binds := len(c.wrs)
	var group []verbs.SGE // address and rkey of each BIND_MW, which lie side by side
	for j := range groupSize {
		wr := verbs.SendWR{Op: verbs.OpBindMW, BindLKey: verbs.LKey(a.chunk.Key), BindLength: chunkSize,
			BindAccess: verbs.AccessRemoteRead | verbs.AccessRemoteWrite}
		if j == 0 {
			wr.Flags, wr.QPN = fence, freeQP
		}
		group = append(group, c.field(c.add(wr), verbs.WQEAddr, 12))
	}
	c.wrs[faa].SGL = []verbs.SGE{c.field(element, verbs.WQEAddr, 8)}
	c.wrs[dup].SGL = c.wrs[faa].SGL
	c.wrs[dup].RemoteAddr = c.field(zero, verbs.WQEAddr, 8).Addr
	c.wrs[element].SGL = []verbs.SGE{c.field(entry, verbs.WQEAddr, 8)}
	c.wrs[entry].SGL = group
	a.finish(c, wait, alloc, 1, sendCQ)
	qp := c.start()
	// The answer: the group, and the entry for the request that frees it.
	a.post(alloc, verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled,
		SGL: append(group, c.field(entry, verbs.WQEAddr, 8))})
	// A request: the numbers of two Access QPs, where to write the answer.
	a.open(alloc, c.field(binds+1, verbs.WQEQPN, 4), c.field(binds+2, verbs.WQEQPN, 4), ring.sge(verbs.WQEAddr, 12))
	return qp
}

// startFree builds the free chain for a client and returns the Free QP.
func (a *lender) startFree(clientQP uint32) uint32 {
	free, ring, recvCQ, sendCQ := a.front(clientQP, groupSize)
	trash := a.data.sge(trashOff, 8)
	c := newChain(a.node, trash)
	wait := c.add(verbs.SendWR{Op: verbs.OpWait, CQN: recvCQ, Count: 1})
	entry := verbs.SendWR{Op: verbs.OpRead, RKey: a.data.Key}
	for j := range groupSize { // the keys go to the LOCAL_INVs, the addresses nowhere
		entry.SGL = append(entry.SGL, trash, ring.sge(j*verbs.WQESize+verbs.WQERKey, 4))
	}
	read := c.add(entry)
	a.finish(c, wait, free, groupSize, sendCQ)
	faa := c.add(verbs.SendWR{Op: verbs.OpFetchAdd, RemoteAddr: a.data.Addr + tailOff, RKey: a.data.Key, Swap: 8})
	put := c.add(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendFence, RKey: a.data.Key,
		SGL: []verbs.SGE{c.field(read, verbs.WQEAddr, 8)}})
	c.wrs[faa].SGL = []verbs.SGE{c.field(put, verbs.WQEAddr, 8)}
	c.start()
	// The Free QP owns the first window: only the owner's chain gets past it.
	var invs [groupSize]verbs.SendWR
	for j := range invs {
		invs[j] = verbs.SendWR{Op: verbs.OpLocalInv, Flags: verbs.SendAnyQP}
	}
	invs[0].Flags = 0
	invs[groupSize-1].Flags |= verbs.SendSignaled
	a.post(free, invs[:]...)
	a.open(free, c.field(read, verbs.WQEAddr, 8)) // a request: the entry's address
	return free
}

func TestAllocationChain(t *testing.T) {
	for _, budget := range []int{1, 3, 4096} {
		t.Run(fmt.Sprintf("budget %d", budget), func(t *testing.T) { testAllocationChain(t, budget) })
	}
}

func testAllocationChain(t *testing.T, budget int) {
	client, server := newNodes(t, Config{RunBudget: budget})
	a := newLender(server)
	allocQP, clientFree := client.newQP(QPConfig{}), client.newQP(QPConfig{})
	access := [2]uint32{}
	number := [2]uint32{} // their numbers at the memory node
	for i := range access {
		access[i], number[i] = client.pair()
	}
	freeQP := a.startFree(clientFree)
	chainQP := a.startAlloc(allocQP, freeQP)

	le := binary.LittleEndian
	const request, answer, page = 0, 64, 1024 // in the client's memory
	send := func(q uint32, size int) {
		t.Helper()
		if s := client.do(q, verbs.SendWR{Op: verbs.OpSend, SGL: client.at(request, size)}); s != verbs.StatusSuccess {
			t.Fatal(s)
		}
	}
	ask := func() {
		t.Helper()
		le.PutUint32(client.mem[request:], number[0])
		le.PutUint32(client.mem[request+4:], number[1])
		le.PutUint64(client.mem[request+8:], client.mr.Addr+answer)
		le.PutUint32(client.mem[request+16:], uint32(client.mr.Key))
		send(allocQP, 20)
	}
	giveBack := func(q uint32, entry uint64) {
		t.Helper()
		le.PutUint64(client.mem[request:], entry)
		send(q, 8)
	}
	entryOf := func(chunk int) uint64 { return a.data.Addr + tableOff + uint64(chunk*entrySize) }
	var keys [chunks][groupSize]verbs.RKey
	addrOf := func(chunk int) uint64 { return a.chunk.Addr + uint64(chunk*chunkSize) }
	// got checks that the answer is this chunk, and that both Access QPs reach
	// it, each through its own window.
	got := func(round, chunk int) {
		t.Helper()
		for j := range groupSize {
			keys[chunk][j] = verbs.RKey(le.Uint32(client.mem[answer+12*j+8:]))
			if addr := le.Uint64(client.mem[answer+12*j:]); addr != addrOf(chunk) {
				t.Fatalf("round %d: window %d is at %#x, want %#x", round, j, addr, addrOf(chunk))
			}
		}
		if entry := le.Uint64(client.mem[answer+entrySize:]); entry != entryOf(chunk) {
			t.Fatalf("round %d: the entry is at %#x, want %#x", round, entry, entryOf(chunk))
		}
		if left := le.Uint64(a.dataMem[queueOff+8*round:]); left != 0 {
			t.Fatalf("round %d: the queue still has the entry %#x", round, left)
		}
		for j := range access {
			client.setWord(page, uint64(100*round+j))
			aim := verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: addrOf(chunk) + uint64(8*j), RKey: keys[chunk][j+1], SGL: client.at(page, 8)}
			if s := client.do(access[j], aim); s != verbs.StatusSuccess {
				t.Fatalf("round %d: access through QP %d: %v", round, j, s)
			}
			if v := binary.NativeEndian.Uint64(a.chunkMem[chunk*chunkSize+8*j:]); v != uint64(100*round+j) {
				t.Fatalf("round %d: the chunk has %d, want %d", round, v, 100*round+j)
			}
		}
	}
	round := 0
	for ; round < chunks; round++ {
		ask()
		got(round, round)
	}
	// What is given back is given out again.
	for _, chunk := range []int{3, 5} {
		giveBack(clientFree, entryOf(chunk))
		if inv := server.nic.Counters().Invalidations; inv != uint64(groupSize*(round-chunks+1)) {
			t.Fatalf("chunk %d: got %d invalidations so far", chunk, inv)
		}
		ask()
		got(round, chunk)
		round++
	}
	// Somebody else cannot give back what is not his: the first window is not
	// his Free QP's.
	thief := client.newQP(QPConfig{})
	thiefQP := a.startFree(thief)
	server.events = nil
	giveBack(thief, entryOf(1))
	if !server.event(verbs.EventQPFatal, thiefQP) || server.state(thiefQP) != verbs.StateError {
		t.Error("a chunk of somebody else's was given back without an event")
	}
	aim := verbs.SendWR{Op: verbs.OpRead, SGL: client.at(page, 8), RemoteAddr: addrOf(1), RKey: keys[1][1]}
	if s := client.do(access[0], aim); s != verbs.StatusSuccess {
		t.Errorf("the owner's access afterwards: %v", s)
	}
	// What is given back, or is another QP's, is out of reach.
	giveBack(clientFree, entryOf(0))
	aim.RemoteAddr, aim.RKey = addrOf(0), keys[0][1]
	if s := client.do(access[0], aim); s != verbs.StatusRemAccessErr {
		t.Errorf("access to what was given back: got %v", s)
	}
	aim.RemoteAddr, aim.RKey = addrOf(1), keys[1][1]
	if s := client.do(access[1], aim); s != verbs.StatusRemAccessErr {
		t.Errorf("access through another QP's window: got %v", s)
	}
	// An empty queue: its null entry stops the chain, and the CPU hears of it.
	le.PutUint64(a.dataMem[queueOff+8*round:], 0)
	client.setWord(answer, 0xdead)
	number = [2]uint32{freeQP, freeQP}
	server.events = nil
	ask()
	if !server.event(verbs.EventQPAccessErr, chainQP) {
		t.Error("an empty queue raised no event")
	}
	if client.word(answer) != 0xdead {
		t.Error("an empty queue was answered")
	}
}

// TestEndlessChain: a chain that never waits cannot hold Run for ever, nor
// keep other queue pairs from running.
func TestEndlessChain(t *testing.T) {
	n := newNode(t, Config{RunBudget: 100})
	mem := make([]byte, 2*verbs.WQESize)
	ring := n.reg(mem, allAccess)
	q := n.newQP(QPConfig{ManagedSend: true, SendDepth: 2, SendRing: ring.Key})
	n.connect(q, Loopback, q)
	if err := n.nic.EnableSend(q, 1<<64-1); err != nil { // zeroed memory: NOPs
		t.Fatal(err)
	}
	for i := range 3 {
		before := n.nic.Counters().WorkRequests
		if !n.nic.Run() {
			t.Fatalf("run %d: nothing left of an endless chain", i)
		}
		if did := n.nic.Counters().WorkRequests - before; did != 100 {
			t.Fatalf("run %d: %d work requests, want 100", i, did)
		}
	}
	other := n.loopback(QPConfig{})
	if err := n.nic.PostSend(other, []verbs.SendWR{{ID: 1, Flags: verbs.SendSignaled}}); err != nil {
		t.Fatal(err)
	}
	n.nic.Run()
	if got := ids(n.poll(n.cq)); got != "[1:success]" {
		t.Errorf("another queue pair: got %s, want [1:success]", got)
	}
	if err := n.nic.DestroyQP(q); err != nil {
		t.Fatal(err)
	}
	if n.nic.Run() {
		t.Error("something is left of a chain whose queue pair is gone")
	}
}
