package softnic

import (
	"encoding/binary"
	"fmt"
	"testing"

	"polder/verbs"
)

// The allocation chain of OneSidedMW (figure 5): a client's SEND lets the
// memory node's NIC take a chunk from the queue of free ones, bind its group
// of windows to the client's queue pairs and write their keys to the client,
// and then make itself ready for the next request. No CPU posts anything.

const (
	chunks    = 8
	chunkSize = 512
	groupSize = 3              // windows per chunk: for the Free QP and two Access QPs
	entrySize = groupSize * 12 // an entry of the MWTable: address and rkey, for each
)

// allocator is the memory node's side of the chain.
type allocator struct {
	n *node

	ring      MR // the chain's send queue
	ringMem   []byte
	allocRing MR // the Alloc QP's, with the WRITE to the client
	data      MR // queue of free entries, its head, the MWTable, scratch
	dataMem   []byte
	chunkMem  []byte
	chunkMR   MR

	chain, alloc            uint32 // QPs: in loopback; to the client
	recvCQ, sendCQ, chainCQ uint32
	posted                  int // requests in the chain so far
	wrs                     []verbs.SendWR
}

// Offsets in the allocator's data.
const (
	headOff  = 0
	zeroOff  = 8
	trashOff = 16
	queueOff = 64
	tableOff = queueOff + 8*(chunks+1)
)

// field is an SGE for a field of the chain's request of an index.
func (a *allocator) field(index, off, size int) verbs.SGE {
	return a.ring.sge(index*verbs.WQESize+off, size)
}

// add appends a request to the chain and returns its index.
func (a *allocator) add(wr verbs.SendWR) int {
	a.wrs = append(a.wrs, wr)
	return len(a.wrs) - 1
}

// bump appends a FETCH_ADD to a count in the chain.
func (a *allocator) bump(index int, by uint64) {
	f := a.field(index, verbs.WQEAddr, 8)
	a.add(verbs.SendWR{Op: verbs.OpFetchAdd, RemoteAddr: f.Addr, RKey: a.ring.Key, Swap: by,
		SGL: []verbs.SGE{a.data.sge(trashOff, 8)}})
}

func newAllocator(n *node) *allocator {
	a := &allocator{n: n}
	a.ringMem, a.dataMem = make([]byte, 64*verbs.WQESize), make([]byte, 4096)
	a.chunkMem = make([]byte, chunks*chunkSize)
	a.ring, a.data = n.reg(a.ringMem, allAccess), n.reg(a.dataMem, allAccess)
	a.allocRing = n.reg(make([]byte, verbs.WQESize), allAccess)
	a.chunkMR = n.reg(a.chunkMem, verbs.AccessLocalWrite|verbs.AccessMWBind)
	for _, cq := range []*uint32{&a.recvCQ, &a.sendCQ, &a.chainCQ} {
		var err error
		if *cq, err = n.nic.CreateCQ(4, true); err != nil {
			n.t.Fatal(err)
		}
	}
	le := binary.LittleEndian
	le.PutUint64(a.dataMem[headOff:], a.data.Addr+queueOff)
	for i := range chunks {
		entry := tableOff + i*entrySize
		le.PutUint64(a.dataMem[queueOff+8*i:], a.data.Addr+uint64(entry))
		for j := range groupSize {
			le.PutUint64(a.dataMem[entry+12*j:], a.chunkMR.Addr+uint64(i*chunkSize))
			le.PutUint32(a.dataMem[entry+12*j+8:], uint32(n.allocMW(n.pd, verbs.MWType2B)|0x11))
		}
	}
	return a
}

// start builds the chain and lets the first request in.
func (a *allocator) start(clientQP, freeQP uint32) {
	n := a.n
	a.alloc = n.newQP(QPConfig{SendCQ: a.sendCQ, RecvCQ: a.recvCQ, SendDepth: 1, RecvDepth: 2,
		ManagedSend: true, ManagedRecv: true, SendRing: a.allocRing.Key})
	n.join(a.alloc, clientQP)

	const fence = verbs.SendFence
	wait := a.add(verbs.SendWR{Op: verbs.OpWait, CQN: a.recvCQ, Count: 1})
	faa := a.add(verbs.SendWR{Op: verbs.OpFetchAdd, RemoteAddr: a.data.Addr + headOff, RKey: a.data.Key, Swap: 8})
	dup := a.add(verbs.SendWR{Op: verbs.OpWrite, Flags: fence, RKey: a.ring.Key})
	element := a.add(verbs.SendWR{Op: verbs.OpRead, RKey: a.data.Key})
	zero := a.add(verbs.SendWR{Op: verbs.OpWrite, Flags: fence, RKey: a.data.Key, SGL: []verbs.SGE{a.data.sge(zeroOff, 8)}})
	entry := a.add(verbs.SendWR{Op: verbs.OpRead, Flags: fence, RKey: a.data.Key})
	binds := len(a.wrs)
	for j := range groupSize {
		wr := verbs.SendWR{Op: verbs.OpBindMW, BindLKey: verbs.LKey(a.chunkMR.Key), BindLength: chunkSize,
			BindAccess: verbs.AccessRemoteRead | verbs.AccessRemoteWrite}
		if j == 0 {
			wr.Flags, wr.QPN = fence, freeQP
		}
		a.add(wr)
	}
	a.wrs[faa].SGL = []verbs.SGE{a.field(element, verbs.WQEAddr, 8)}
	a.wrs[dup].SGL = []verbs.SGE{a.field(element, verbs.WQEAddr, 8)}
	a.wrs[dup].RemoteAddr = a.field(zero, verbs.WQEAddr, 8).Addr
	a.wrs[element].SGL = []verbs.SGE{a.field(entry, verbs.WQEAddr, 8)}
	var group []verbs.SGE // address and rkey of each BIND_MW, which lie side by side
	for j := range groupSize {
		group = append(group, a.field(binds+j, verbs.WQEAddr, 12))
	}
	a.wrs[entry].SGL = group

	enableRecv := a.add(verbs.SendWR{Op: verbs.OpEnableRecv, QPN: a.alloc, Count: 2})
	enable := a.add(verbs.SendWR{Op: verbs.OpEnable, QPN: a.alloc, Count: 1})
	sent := a.add(verbs.SendWR{Op: verbs.OpWait, CQN: a.sendCQ, Count: 1})
	for _, i := range []int{wait, enableRecv, enable, sent} {
		a.bump(i, 1)
	}
	again := len(a.wrs) + 1
	length := uint64(again + 1)
	a.bump(again, length)
	a.add(verbs.SendWR{Op: verbs.OpEnable, Flags: fence, Count: length}) // of itself

	a.chain = n.newQP(QPConfig{SendCQ: a.chainCQ, SendDepth: len(a.wrs), ManagedSend: true, SendRing: a.ring.Key})
	n.connect(a.chain, Loopback, a.chain)
	n.post(a.chain, a.wrs...)

	// The answer: the group, and the entry for the request that frees it.
	n.post(a.alloc, verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled,
		SGL: append(group, a.field(entry, verbs.WQEAddr, 8))})
	// A request: the numbers of two Access QPs, where to write the answer.
	args := verbs.RecvWR{SGL: []verbs.SGE{
		a.field(binds+1, verbs.WQEQPN, 4), a.field(binds+2, verbs.WQEQPN, 4), a.allocRing.sge(verbs.WQEAddr, 12)}}
	n.recv(a.alloc, args, args)
	if err := n.nic.EnableSend(a.chain, length); err != nil {
		n.t.Fatal(err)
	}
	if err := n.nic.EnableRecv(a.alloc, 1); err != nil {
		n.t.Fatal(err)
	}
	n.run()
}

func TestAllocationChain(t *testing.T) {
	for _, budget := range []int{1, 3, 4096} {
		t.Run(fmt.Sprintf("budget %d", budget), func(t *testing.T) { testAllocationChain(t, budget) })
	}
}

func testAllocationChain(t *testing.T, budget int) {
	client, server := newNodes(t, Config{RunBudget: budget})
	a := newAllocator(server)
	clientQP := client.newQP(QPConfig{})
	access := [2]uint32{}
	number := [2]uint32{} // their numbers at the memory node
	for i := range access {
		access[i], number[i] = client.pair()
	}
	_, freeQP := client.pair()
	a.start(clientQP, freeQP)

	le := binary.LittleEndian
	const request, answer, page = 0, 64, 1024 // in the client's memory
	ask := func(to int) {
		le.PutUint32(client.mem[request:], number[0])
		le.PutUint32(client.mem[request+4:], number[1])
		le.PutUint64(client.mem[request+8:], client.mr.Addr+uint64(to))
		le.PutUint32(client.mem[request+16:], uint32(client.mr.Key))
		if s := client.do(clientQP, verbs.SendWR{Op: verbs.OpSend, SGL: client.at(request, 20)}); s != verbs.StatusSuccess {
			t.Fatal(s)
		}
	}
	var keys [chunks][groupSize]verbs.RKey
	var addrs [chunks]uint64
	for i := range chunks {
		ask(answer)
		for j := range groupSize {
			addrs[i] = le.Uint64(client.mem[answer+12*j:])
			keys[i][j] = verbs.RKey(le.Uint32(client.mem[answer+12*j+8:]))
			if want := a.chunkMR.Addr + uint64(i*chunkSize); addrs[i] != want {
				t.Fatalf("round %d: window %d is at %#x, want %#x", i, j, addrs[i], want)
			}
		}
		if got, want := le.Uint64(client.mem[answer+entrySize:]), a.data.Addr+tableOff+uint64(i*entrySize); got != want {
			t.Fatalf("round %d: the entry is at %#x, want %#x", i, got, want)
		}
		if got := le.Uint64(a.dataMem[queueOff+8*i:]); got != 0 {
			t.Fatalf("round %d: the queue still has the entry %#x", i, got)
		}
		// Both Access QPs reach the chunk, each through its own window.
		for j := range access {
			client.setWord(page, uint64(100*i+j))
			aim := verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: addrs[i] + uint64(8*j), RKey: keys[i][j+1], SGL: client.at(page, 8)}
			if s := client.do(access[j], aim); s != verbs.StatusSuccess {
				t.Fatalf("round %d: access through QP %d: %v", i, j, s)
			}
			if got := binary.NativeEndian.Uint64(a.chunkMem[i*chunkSize+8*j:]); got != uint64(100*i+j) {
				t.Fatalf("round %d: the chunk has %d, want %d", i, got, 100*i+j)
			}
		}
	}
	if got := server.nic.Counters().Binds; got != chunks*groupSize {
		t.Errorf("got %d binds, want %d", got, chunks*groupSize)
	}
	// The first window of a group is the Free QP's: it alone may give it back.
	if s := server.do(freeQP, verbs.SendWR{Op: verbs.OpLocalInv, RKey: keys[0][0]}); s != verbs.StatusSuccess {
		t.Errorf("invalidation by the Free QP: %v", s)
	}
	for j := range access {
		if s := server.do(freeQP, verbs.SendWR{Op: verbs.OpLocalInv, RKey: keys[0][j+1], Flags: verbs.SendAnyQP}); s != verbs.StatusSuccess {
			t.Errorf("invalidation of window %d by the Free QP: %v", j+1, s)
		}
	}
	// What is given back, or is another QP's, is out of reach.
	aim := verbs.SendWR{Op: verbs.OpRead, SGL: client.at(page, 8)}
	aim.RemoteAddr, aim.RKey = addrs[0], keys[0][1]
	if s := client.do(access[0], aim); s != verbs.StatusRemAccessErr {
		t.Errorf("access to what was given back: got %v", s)
	}
	aim.RemoteAddr, aim.RKey = addrs[1], keys[1][1]
	if s := client.do(access[1], aim); s != verbs.StatusRemAccessErr {
		t.Errorf("access through another QP's window: got %v", s)
	}
	// The queue is empty: the null entry stops the chain, and the CPU hears
	// of it.
	client.setWord(answer, 0xdead)
	server.events = nil
	ask(answer)
	if !server.event(verbs.EventQPAccessErr, a.chain) {
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
