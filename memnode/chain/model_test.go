package chain

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"polder/internal/invariants"
	"polder/verbs"
	"polder/verbs/softnic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The model: a few clients and a memory node with a few chunks. A client has one pair of
// queue pairs, to allocate and to free with, or several, which go on beside each other, and
// it may die at any moment. The clients' and
// the node's NICs are the real ones, and so are the chains, the queue, and what the
// node's CPU decides (Account). Every order is tried in which the
// node's queue pairs, its CPU and the clients can take their steps, one packet or
// work request at a time. Steps that neither read nor write what others can change are
// taken at once, since it makes no difference when; those are all but the accesses
// to the queue. States that have been seen are not gone on from again.

const (
	modelPairs   = 3 // at most, of all clients
	modelWindows = 2
	modelSize    = 512
)

// A chooser says which of n possibilities comes next.
type chooser interface {
	choose(w *world, n int) int
}

// world is the model's state.
type world struct {
	t      testing.TB
	pick   chooser
	server *host
	binder uint32
	table  *Table
	queue  *Queue

	tableMR, queueMR, chunkMR softnic.MR
	tableMem, queueMem        []byte
	clients                   []*modelClient
	pairs                     []*borrower          // of all clients
	holder                    map[uint32]*borrower // of chunks: who knows that it has them
	cpu                       int                  // where the CPU is within an action
	cutting                   *modelClient         // whom the CPU is cutting off
	seen                      bool                 // it has been seen how it goes on
	chains                    bool                 // what prefetching says of them
	steps                     int                  // so far
}

// host is a NIC and its ends of links.
type host struct {
	t     testing.TB
	nic   *softnic.NIC
	pd    uint32
	peers map[softnic.Link]*host
	at    map[softnic.Link]softnic.Link
}

func (h *host) Send(l softnic.Link, p *softnic.Packet) { h.peers[l].nic.Receive(h.at[l], p) }
func (h *host) Ready(softnic.Link) bool                { return true }
func (h *host) Completion(uint32)                      {}
func (h *host) Event(verbs.AsyncEvent)                 {}

func newHost(t testing.TB, prefetches bool) *host {
	h := &host{t: t, peers: make(map[softnic.Link]*host), at: make(map[softnic.Link]softnic.Link)}
	var err error
	if h.nic, err = softnic.New(softnic.Config{Prefetch: prefetches}, h); err == nil {
		h.pd, err = h.nic.AllocPD()
	}
	h.must(err)
	return h
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) cq() uint32 {
	cq, err := h.nic.CreateCQ(64, true)
	h.must(err)
	return cq
}

func (h *host) reg(mem []byte, access verbs.Access) softnic.MR {
	mr, err := h.nic.RegMR(h.pd, mem, access)
	h.must(err)
	return mr
}

func (h *host) qp(c softnic.QPConfig) uint32 {
	c.PD = h.pd
	q, err := h.nic.CreateQP(c)
	h.must(err)
	return q
}

func (h *host) loopback(c softnic.QPConfig) uint32 {
	q := h.qp(c)
	h.must(h.nic.ConnectQP(q, softnic.Loopback, q))
	return q
}

// modelDesk is what package memnode calls a desk.
type modelDesk struct {
	mem            []byte // the chain's ring, the front's ring
	chainMR, front softnic.MR
	frontQP, chain uint32
	cq             uint32
	make           func(*Config) *Program
	cfg            Config
	program        *Program
}

// modelClient is what the node knows of a client.
type modelClient struct {
	id     int
	budget int
	access uint32 // a queue pair of the node's
	pairs  []*borrower
	cut    bool // the node has cut it off
	life   life
}

// life says how far a client's end has come.
type life byte

const (
	alive  life = iota
	dying       // one of its pairs does not answer any more
	parted      // the node has given the connection up
	gone        // the node has taken back what it had
)

// borrower is a pair of queue pairs of a client's, and the node's half of it.
type borrower struct {
	id          int // from 1
	client      *modelClient
	host        *host
	mem         []byte
	mr          softnic.MR
	cq          uint32
	alloc, free uint32 // its queue pairs
	allocs      *modelDesk
	frees       *modelDesk

	script string // what is left to do: a, f; with ! behind that, it dies before it is done with it
	state  byte   // i idle, a waits for an answer, f for a confirmation, w for memory, x out of work
	chunk  uint32
	armed  bool    // it has posted a receive for an answer
	cpu    Account // the node's
	stands bool    // its allocation chain has been armed and not destroyed since
}

// A crowd is what clients do: the scripts of their pairs.
type crowd [][]string

func newWorld(t testing.TB, rule prefetching, pick chooser, chunks, budget int, scripts crowd) *world {
	w := &world{t: t, pick: pick, server: newHost(t, rule.device), chains: rule.chains, holder: make(map[uint32]*borrower)}
	s := w.server
	const rights = verbs.AccessLocalWrite | verbs.AccessMWBind
	w.tableMem, w.queueMem = make([]byte, TableSize(chunks)), make([]byte, QueueSize(chunks, modelPairs))
	w.tableMR, w.queueMR = s.reg(w.tableMem, rights), s.reg(w.queueMem, rights)
	w.chunkMR = s.reg(make([]byte, chunks*modelSize), rights)
	var err error
	w.table, err = NewTable(w.tableMem, w.tableMR.Addr, modelWindows)
	s.must(err)
	w.queue = NewQueue(w.queueMem, w.queueMR.Addr, chunks, modelPairs)
	cq := s.cq()
	w.binder = s.loopback(softnic.QPConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 8})
	for i := range uint32(chunks) {
		w.table.Describe(i, w.chunkMR.Addr+uint64(i)*modelSize, verbs.LKey(w.chunkMR.Key))
		for j := range modelWindows {
			w.table.SetKey(i, j, w.window())
		}
		w.queue.Push(w.table.Entry(i))
	}
	for i, pairs := range scripts {
		cq := s.cq()
		c := &modelClient{id: i + 1, budget: budget, access: s.qp(softnic.QPConfig{SendCQ: cq, RecvCQ: cq})}
		w.clients = append(w.clients, c)
		for k, script := range pairs {
			b := w.newBorrower(c, Part(budget, k, len(pairs)), script)
			c.pairs = append(c.pairs, b)
		}
	}
	w.private()
	w.queue.between = w.interrupted
	return w
}

// window makes a window and returns its next key.
func (w *world) window() verbs.RKey {
	key, err := w.server.nic.AllocMW(w.server.pd, verbs.MWType2B)
	w.server.must(err)
	return key | 1
}

func (w *world) newBorrower(c *modelClient, budget int, script string) *borrower {
	b := &borrower{id: len(w.pairs) + 1, client: c, host: newHost(w.t, false), mem: make([]byte, 4096), script: script, state: 'i', cpu: Account{Budget: budget}}
	w.pairs = append(w.pairs, b)
	link := softnic.Link(b.id)
	b.host.peers[link], b.host.at[link] = w.server, link
	w.server.peers[link], w.server.at[link] = b.host, link
	b.mr = b.host.reg(b.mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	b.cq = b.host.cq()
	for _, free := range []bool{true, false} {
		q := b.host.qp(softnic.QPConfig{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 4, RecvDepth: 4})
		d := &modelDesk{mem: make([]byte, 2*RingSize), cq: w.server.cq(), make: Alloc}
		const rights = verbs.AccessLocalWrite | verbs.AccessMWBind
		d.chainMR, d.front = w.server.reg(d.mem[:RingSize], rights), w.server.reg(d.mem[RingSize:], rights)
		SetOwner(d.mem, uint64(c.id))
		d.cfg = Config{
			Table: w.table, Queue: w.queue, RecvCQ: w.server.cq(), SentCQ: w.server.cq(),
			Chain:      Region{Addr: d.chainMR.Addr, LKey: verbs.LKey(d.chainMR.Key)},
			Front:      Region{Addr: d.front.Addr, LKey: verbs.LKey(d.front.Key)},
			Prefetched: w.chains,
			ChunkSize:  modelSize, Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite, To: w.queue.Tail(),
		}
		if free {
			d.make, b.free, b.frees = Free, q, d
		} else {
			b.alloc, b.allocs = q, d
			d.cfg.FreeQP = b.frees.frontQP
			if budget < w.total() {
				d.cfg.FreedCQ, d.cfg.Budget = b.frees.cq, b.cpu.Spare()
			}
		}
		p := d.make(&d.cfg)
		d.frontQP = w.server.qp(softnic.QPConfig{SendCQ: d.cfg.SentCQ, RecvCQ: d.cfg.RecvCQ, SendDepth: len(p.Front),
			RecvDepth: 2, ManagedSend: true, ManagedRecv: true, SendRing: d.front.Key})
		d.cfg.FrontQP = d.frontQP
		w.server.must(w.server.nic.ConnectQP(d.frontQP, link, q))
		w.server.must(b.host.nic.ConnectQP(q, link, d.frontQP))
		w.arm(d)
		w.server.must(w.server.nic.PostSend(d.frontQP, d.program.Front))
		recv := verbs.RecvWR{SGL: d.program.Recv}
		w.server.must(w.server.nic.PostRecv(d.frontQP, []verbs.RecvWR{recv, recv}))
		w.server.must(w.server.nic.EnableRecv(d.frontQP, 1))
	}
	d := b.allocs
	b.cpu.Open(d.program, d.mem)
	b.stands = true
	b.cpu.Resume = func(done, failed uint64) {
		if b.client.life == gone {
			w.t.Fatalf("the chain of pair %d, which is out of work, is armed anew", b.id)
		}
		b.stands = true
		d.cfg.Done, d.cfg.Failed = done, failed
		w.arm(d)
		w.server.must(w.server.nic.EnableRecv(d.frontQP, done+failed+1))
	}
	return b
}

// arm has a new queue pair run a desk's chain.
func (w *world) arm(d *modelDesk) {
	s := w.server
	depth := len(d.make(&d.cfg).Chain)
	d.chain = s.loopback(softnic.QPConfig{SendCQ: d.cq, RecvCQ: d.cq, SendDepth: depth, ManagedSend: true, SendRing: d.chainMR.Key})
	for _, x := range []struct {
		mr   softnic.MR
		size int
		key  *verbs.RKey
	}{
		{w.tableMR, len(w.tableMem), &d.cfg.TableKey},
		{w.queueMR, len(w.queueMem), &d.cfg.QueueKey},
		{d.chainMR, RingSize, &d.cfg.Chain.RKey},
	} {
		*x.key = w.window()
		s.must(s.nic.PostSend(w.binder, []verbs.SendWR{{
			Op: verbs.OpBindMW, RKey: *x.key, BindLKey: verbs.LKey(x.mr.Key), RemoteAddr: x.mr.Addr,
			BindLength: uint64(x.size), QPN: d.chain,
			BindAccess: verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic,
		}}))
		for slices.Contains(s.nic.Runnable(), w.binder) {
			s.nic.RunOne(w.binder)
		}
	}
	d.program = d.make(&d.cfg)
	s.must(s.nic.PostSend(d.chain, d.program.Chain))
	s.must(s.nic.EnableSend(d.chain, uint64(d.program.First)))
}

// runClients lets the clients' NICs do what there is to do: nobody else sees it.
func (w *world) runClients() {
	for _, b := range w.pairs {
		for b.host.nic.Pending() {
			b.host.nic.Run()
		}
	}
}

// An action is something that can happen next.
type action struct {
	name string
	do   func()
}

// actions lists what can happen next. Within an action of the CPU's, only NICs
// go on.
func (w *world) actions(inCPU bool) []action {
	w.private() // what the CPU has armed
	var list []action
	nums := w.server.nic.Runnable()
	slices.Sort(nums)
	for _, q := range nums {
		list = append(list, action{fmt.Sprintf("QP %d", q), func() { w.server.nic.RunOne(q) }})
	}
	for _, b := range w.pairs {
		if b.state == 'i' && b.script != "" && b.script[0] != '!' && (!inCPU || b.client == w.cutting) {
			list = append(list, action{fmt.Sprintf("pair %d: %c", b.id, b.script[0]), func() { w.request(b) }})
		}
	}
	if inCPU {
		return list
	}
	for _, b := range w.pairs {
		list = append(list, w.fate(b)...)
		if w.dead(b) {
			list = append(list, action{fmt.Sprintf("CPU: chain %d", b.id), func() { w.stopped(b) }})
		}
	}
	for _, c := range w.clients {
		if c.life == parted && !w.busy(c) {
			list = append(list, action{fmt.Sprintf("CPU: client %d is gone", c.id), func() { w.reclaim(c) }})
		}
	}
	if w.useful() {
		list = append(list, action{"CPU: tick", func() {
			before := w.hash()
			if w.tick(); w.hash() == before {
				w.t.Fatal("a tick that was due changes nothing: somebody is never told")
			}
		}})
	}
	return list
}

// dead reports whether b's allocation chain has failed and the CPU has not
// looked at it.
func (w *world) dead(b *borrower) bool {
	if !b.stands {
		return false
	}
	s, err := w.server.nic.QPState(b.allocs.chain)
	w.server.must(err)
	return s == verbs.StateError
}

// useful reports whether a tick of the CPU's would change anything.
func (w *world) useful() bool {
	for _, o := range w.queue.owed {
		if *w.queue.element(o.slot) != 0 {
			return true
		}
	}
	for _, b := range w.pairs {
		if b.client.life != gone && (b.cpu.Told && !b.cpu.Owed && w.queue.Free() > 0 || w.over(b)) {
			return true
		}
	}
	return false
}

// over reports whether b has asked for more than its budget.
func (w *world) over(b *borrower) bool {
	return !b.client.cut && b.client.life == alive && b.cpu.Over(func() uint64 { return Received(b.frees.mem) })
}

// stopped is the CPU's answer to the event that b's chain has failed.
func (w *world) stopped(b *borrower) {
	w.retire(b)
	w.tell(b)
}

// retire notes what b's chain leaves behind, if it has failed.
func (w *world) retire(b *borrower) {
	if !w.dead(b) {
		return
	}
	w.destroy(b)
	switch cause, entry := b.cpu.Stopped(w.queue); {
	case cause == QueueEmpty:
		w.queue.Settle()
	case b.client.life == alive && b.state != 'x':
		w.t.Fatalf("pair %d's chain failed with the entry %#x, cause %d", b.id, entry, cause)
	case cause == BadRequest:
		if i, _ := w.table.Chunk(entry); w.table.Owner(i) != uint64(b.client.id) {
			w.takeBack(i)
		}
	}
}

// destroy destroys the queue pair of b's allocation chain.
func (w *world) destroy(b *borrower) {
	w.server.must(w.server.nic.DestroyQP(b.allocs.chain))
	b.stands = false
}

func (w *world) tick() {
	w.queue.Settle()
	for _, b := range w.pairs {
		if b.client.life == gone {
			continue
		}
		b.cpu.Tick(w.queue)
		if w.over(b) {
			w.cutOff(b.client)
		}
		w.tell(b)
	}
}

// die has b's queue pairs vanish. The node does not know yet, and the client's other pairs
// go on.
func (w *world) die(b *borrower) {
	b.host.must(b.host.nic.DestroyQP(b.alloc))
	b.host.must(b.host.nic.DestroyQP(b.free))
	b.state, b.script = 'x', ""
	b.client.life = max(b.client.life, dying)
}

// cutOff takes the means to allocate and to free from c.
func (w *world) cutOff(c *modelClient) {
	c.cut = true
	w.fail(c)
	w.cutting = c
	for w.busy(c) {
		w.cpu++
		list := w.actions(true)
		w.step(list[w.pick.choose(w, len(list))])
	}
	w.interrupted() // it destroys chains one after the other
	w.cutting = nil
	for _, b := range c.pairs {
		w.retire(b)
		b.cpu.Close(w.queue)
		w.disarm(b)
	}
}

// part begins to end c's connection.
func (w *world) part(c *modelClient) {
	w.fail(c)
	c.life = parted
}

// fail has the fronts of c's pairs fail, so that no more requests arrive.
func (w *world) fail(c *modelClient) {
	for _, b := range c.pairs {
		w.server.must(w.server.nic.FailQP(b.allocs.frontQP))
		w.server.must(w.server.nic.FailQP(b.frees.frontQP))
		b.script = strings.Trim(b.script, "!")
	}
}

// busy reports whether one of c's chains can go on.
func (w *world) busy(c *modelClient) bool {
	return slices.ContainsFunc(w.server.nic.Runnable(), func(q uint32) bool {
		return slices.ContainsFunc(c.pairs, func(b *borrower) bool { return b.stands && q == b.allocs.chain || q == b.frees.chain })
	})
}

func (w *world) disarm(b *borrower) {
	if b.stands {
		w.destroy(b)
	}
	if b.frees.chain != 0 {
		w.server.must(w.server.nic.DestroyQP(b.frees.chain))
		b.frees.chain = 0
	}
}

// reclaim takes back what c has, whose chains have come to rest.
func (w *world) reclaim(c *modelClient) {
	for _, b := range c.pairs {
		w.retire(b)
	}
	c.life = gone
	for _, b := range c.pairs {
		b.cpu.Close(w.queue)
		w.disarm(b)
		for _, q := range []uint32{b.allocs.frontQP, b.frees.frontQP} {
			w.server.must(w.server.nic.DestroyQP(q))
		}
	}
	for chunk, b := range w.holder {
		if b.client == c {
			delete(w.holder, chunk)
		}
	}
	for _, i := range w.table.Owned(uint64(c.id)) {
		w.takeBack(i)
	}
	w.queue.Settle()
}

// takeBack makes chunk i, which no queue has, free.
func (w *world) takeBack(i uint32) {
	for j := range modelWindows {
		w.table.SetKey(i, j, w.window())
	}
	w.table.SetOwner(i, 0)
	w.queue.Push(w.table.Entry(i))
}

// tell sends b a notice that is due.
func (w *world) tell(b *borrower) {
	if !b.cpu.Due {
		return
	}
	b.cpu.Due = false
	if empty := b.cpu.Empty(w.queue); b.state == 'x' {
		return
	} else if empty {
		b.state = 'w'
	} else if b.state != 'i' {
		b.state = 'i' // it tries again
	}
}

// request has b make the request that its script says.
func (w *world) request(b *borrower) {
	post := func(q uint32, n int) {
		if !b.armed || q != b.alloc {
			b.host.must(b.host.nic.PostRecv(q, []verbs.RecvWR{{}}))
		}
		b.armed = b.armed || q == b.alloc
		b.host.must(b.host.nic.PostSend(q, []verbs.SendWR{{Op: verbs.OpSend,
			SGL: []verbs.SGE{{Addr: b.mr.Addr, Length: uint32(n), LKey: verbs.LKey(b.mr.Key)}}}}))
	}
	b.state = b.script[0]
	q := b.alloc
	if b.state == 'f' {
		q = b.free
	}
	if at, err := b.host.nic.QPState(q); err != nil || at != verbs.StateRTS {
		b.state = 'x' // the node has ended the connection, or cut it off
		return
	}
	if b.state == 'f' {
		if w.holder[b.chunk] != b {
			w.t.Fatalf("pair %d frees chunk %d, which %v has", b.id, b.chunk, w.holder[b.chunk])
		}
		delete(w.holder, b.chunk)
		h := Handle(w.table.Entry(b.chunk))
		post(b.free, copy(b.mem, h[:]))
		return
	}
	m := binary.LittleEndian.AppendUint32(b.mem[:0], b.client.access)
	m = binary.LittleEndian.AppendUint64(m, b.mr.Addr+64)
	m = binary.LittleEndian.AppendUint32(m, uint32(b.mr.Key))
	post(b.alloc, len(m))
}

// arrived takes what b's NIC has received.
func (w *world) arrived(b *borrower) {
	var wcs [4]verbs.WC
	for _, wc := range wcs[:b.host.nic.Poll(b.cq, wcs[:])] {
		if wc.Status != verbs.StatusSuccess && (b.client.cut || b.client.life != alive) {
			b.state = 'x'
		}
		if b.state == 'x' {
			continue
		}
		if wc.Status != verbs.StatusSuccess {
			w.t.Fatalf("pair %d: %v", b.id, wc.Status)
		}
		if wc.Op != verbs.OpRecv {
			continue
		}
		if b.state == 'a' {
			chunk, ok := w.table.Chunk(binary.LittleEndian.Uint64(b.mem[64+8:]))
			if !ok || w.holder[chunk] != nil {
				w.t.Fatalf("pair %d is granted chunk %d (%t), which %v has", b.id, chunk, ok, w.holder[chunk])
			}
			w.holder[chunk] = b
			if n := len(w.table.Owned(uint64(b.client.id))); n > b.client.budget {
				w.t.Fatalf("client %d has %d chunks, and a budget of %d", b.client.id, n, b.client.budget)
			}
			b.chunk, b.armed = chunk, false
		}
		b.state, b.script = 'i', b.script[1:]
	}
}

// held is how many chunks b has.
func (w *world) held(b *borrower) (n int) {
	for _, by := range w.holder {
		if by == b {
			n++
		}
	}
	return n
}

// interrupted is called between the accesses to memory of the CPU's actions:
// NICs may go on.
func (w *world) interrupted() {
	w.cpu++
	for {
		list := w.actions(true)
		i := w.pick.choose(w, len(list)+1)
		if i == len(list) {
			break
		}
		w.step(list[i])
	}
}

// count ends what goes on for ever, as a chain does that does not wait any more.
func (w *world) count() {
	const most = 10_000 // a sound run takes some hundreds
	if w.steps++; w.steps > most {
		w.t.Fatalf("it goes on after %d steps", most)
	}
}

func (w *world) step(a action) {
	w.count()
	a.do()
	w.private()
}

// private takes every step that nobody else can notice.
func (w *world) private() {
	nic := w.server.nic
	for again := true; again && !w.seen; {
		again = false
		w.runClients()
		for _, q := range nic.Runnable() {
			if w.shared(q) {
				continue
			}
			again = true
			if w.fates(q) {
				break
			}
			w.count()
			nic.RunOne(q)
		}
	}
	for _, b := range w.pairs {
		w.arrived(b)
	}
}

// fates has one of the things happen, perhaps, that others notice between any two steps of
// a client's queue pair qp, and reports whether it has, or whether it has been seen how that goes on.
func (w *world) fates(qp uint32) bool {
	var list []action
	for _, b := range w.pairs {
		if !slices.ContainsFunc(b.client.pairs, func(b *borrower) bool { return b.runs(qp) }) {
			continue
		}
		list = append(list, w.fate(b)...)
	}
	if len(list) == 0 {
		return false
	}
	i := w.pick.choose(w, len(list)+1)
	w.seen = i < 0
	if i < 0 || i == len(list) {
		return w.seen
	}
	w.count()
	list[i].do()
	return true
}

// fate is what may happen to b at any moment.
func (w *world) fate(b *borrower) (list []action) {
	if strings.HasSuffix(b.script, "!") && b.state != 'x' {
		list = append(list, action{fmt.Sprintf("pair %d dies", b.id), func() { w.die(b) }})
	}
	if c := b.client; c.life == dying && b == c.pairs[0] {
		list = append(list, action{fmt.Sprintf("CPU: client %d is dead", c.id), func() { w.part(c) }})
	}
	return list
}

// runs reports whether qp is one of b's.
func (b *borrower) runs(qp uint32) bool {
	for _, d := range []*modelDesk{b.allocs, b.frees} {
		if qp == d.frontQP || qp == d.chain {
			return true
		}
	}
	return false
}

// shared reports whether the next step of a queue pair is an access to the queue.
func (w *world) shared(qp uint32) bool {
	next, responses := w.server.nic.Position(qp)
	for _, b := range w.pairs {
		for _, d := range []*modelDesk{b.allocs, b.frees} {
			if d.chain != qp {
				continue
			}
			i := int(next) % len(d.program.Chain)
			wr := &d.program.Chain[i]
			if d == b.allocs && i > d.program.Element && i <= d.program.Entry && responses > 0 {
				return true // a READ reads when it is answered
			}
			return wr.RKey == d.cfg.QueueKey && wr.Op != verbs.OpRead && responses == 0
		}
	}
	return false
}

// run plays until nothing can happen any more, and checks how it ended.
func (w *world) run() {
	for {
		w.cpu = 0
		list := w.actions(false)
		if len(list) == 0 {
			break
		}
		i := w.pick.choose(w, len(list))
		if i < 0 {
			return // it has been seen how that goes on
		}
		if w.step(list[i]); w.seen {
			return
		}
	}
	lent, total := 0, w.total()
	for _, c := range w.clients {
		owned := w.table.Owned(uint64(c.id))
		lent += len(owned)
		if c.life != alive {
			if c.life != gone {
				w.t.Fatalf("client %d is dead, and the node does nothing", c.id)
			}
			continue
		}
		greedy, known := false, 0
		for _, b := range c.pairs {
			known += w.held(b)
			greedy = greedy || b.script != "" && b.script[0] == 'a' && w.held(b) == b.cpu.Budget && b.cpu.Budget < total
		}
		// With what a client that was cut off asked for it may have been late.
		if known != len(owned) && !c.cut {
			w.t.Fatalf("client %d has %v, and knows of %d chunks", c.id, owned, known)
		}
		if c.cut != greedy {
			w.t.Fatalf("client %d, with %d chunks of %d, is cut off: %t", c.id, known, c.budget, c.cut)
		}
	}
	for _, b := range w.pairs {
		if c := b.client; !c.cut && c.life == alive && b.script != "" && !(b.script[0] == 'a' && lent == total) {
			w.t.Fatalf("pair %d waits for ever: %q is left, state %c, failed %d, owed %t, told %t; %d chunks are lent, %d free",
				b.id, b.script, b.state, b.cpu.Failed, b.cpu.Owed, b.cpu.Told, lent, w.queue.Free())
		}
	}
	if free := w.queue.Free(); lent+free != total {
		w.t.Fatalf("%d chunks are lent and %d free, of %d", lent, free, total)
	}
	w.inQueue(total - lent)
}

// inQueue checks that n chunks are in the queue, each once, and nobody's.
func (w *world) inQueue(n int) {
	seen := make(map[uint64]bool)
	for at := Load(w.queueMem[headOff:]); len(seen) < n; at = w.queue.free | (at+8)&(w.queue.size-1) {
		entry := *w.queue.element(at)
		i, ok := w.table.Chunk(entry)
		if !ok || seen[entry] || w.table.Owner(i) != 0 {
			w.t.Fatalf("the queue has the entry %#x (%t) of owner %d at %#x, after %d others", entry, ok, w.table.Owner(i), at, len(seen))
		}
		seen[entry] = true
	}
}

// total is how many chunks there are.
func (w *world) total() int { return len(w.tableMem) / verbs.EntrySize }

// hash identifies the state.
func (w *world) hash() [32]byte {
	b := append(append([]byte(nil), w.tableMem...), w.queueMem...)
	b = w.server.nic.AppendState(b)
	for _, k := range w.pairs {
		b = append(b, k.allocs.mem...)
		b = append(b, k.frees.mem...)
		b = append(b, k.state, byte(k.chunk), byte(k.cpu.Failed))
		b = fmt.Append(b, k.script, k.cpu.Owed, k.cpu.Told, k.stands, k.client.cut, k.client.life)
	}
	b = fmt.Append(b, w.cpu, len(w.queue.owed), len(w.holder))
	for _, o := range w.queue.owed {
		b = binary.LittleEndian.AppendUint64(b, o.slot)
	}
	return sha256.Sum256(b)
}

// explorer tries every order. It plays a prefix of choices again and again, and
// goes on from each state once.
type explorer struct {
	seen   map[[32]byte]bool
	todo   [][]int // prefixes to go on from
	prefix []int
	at     int
}

func (e *explorer) choose(w *world, n int) int {
	if e.at < len(e.prefix) {
		e.at++
		return e.prefix[e.at-1]
	}
	h := w.hash()
	if e.seen[h] {
		// Go on in any way; it will not be looked at. Within an action of
		// the CPU's that is to end it.
		if w.cpu > 0 {
			return n - 1
		}
		return -1
	}
	e.seen[h] = true
	for i := n - 1; i > 0; i-- {
		e.todo = append(e.todo, append(slices.Clone(e.prefix), i))
	}
	e.prefix = append(e.prefix, 0)
	e.at++
	return 0
}

// prefetching says whether the node's device reads entries as soon as they are enabled,
// and whether the chains are made for that.
type prefetching struct{ device, chains bool }

// A play is what is tried in every order.
type play struct {
	chunks  int
	budget  int // of a client
	scripts crowd
}

func TestEveryInterleaving(t *testing.T) {
	for _, p := range []play{
		{1, 1, crowd{{"afa"}, {"a"}}},
		{1, 1, crowd{{"af"}, {"af"}}},
		{2, 1, crowd{{"af"}, {"af"}}},
		{2, 1, crowd{{"aa"}, {"af"}}}, // greedy
		{2, 2, crowd{{"aa"}, {"a"}}},
		{1, 1, crowd{{"afaf"}, {"af"}}},
		{1, 1, crowd{{"afaf"}, {"afaf"}}},
		{2, 1, crowd{{"afaa"}, {"afa"}}},
		// Pairs of one client.
		{1, 2, crowd{{"af", "af"}}},
		{3, 2, crowd{{"aa", "a"}}}, // greedy with one of them
		{3, 2, crowd{{"aa", "af"}}},
		{1, 2, crowd{{"a", "a!"}}},
	} {
		if all := fmt.Sprint(p.scripts); invariants.Enabled && (len(all) > len("[[afa] [afa]]") || strings.Contains(all, "!")) {
			continue // the race detector makes it take long, and has nothing to find
		}
		p.run(t)
	}
}

// TestSoakInterleavings tries all orders of more, if the environment variable TEST_SOAK is
// set, and otherwise of one thing.
func TestSoakInterleavings(t *testing.T) {
	plays := []play{
		{1, 2, crowd{{"a", "!"}}}, // it dies idle
		{2, 1, crowd{{"afaf"}, {"afaf"}}},
		{3, 2, crowd{{"aa", "afaf"}}},
		{2, 2, crowd{{"afaf", "afaf"}}},
		{1, 2, crowd{{"af", "af!"}}},
		{2, 2, crowd{{"af", "af!"}}},
		{1, 2, crowd{{"a", "a!"}, {"a"}}},
		{1, 1, crowd{{"a!"}, {"af"}, {"a"}}},
	}
	if os.Getenv("TEST_SOAK") == "" {
		plays = plays[:1]
	}
	for _, p := range plays {
		p.run(t)
	}
}

// run tries p on devices of both kinds.
func (p *play) run(t *testing.T) {
	for _, rule := range []prefetching{{false, false}, {true, true}} {
		states, runs := explore(t, rule, p.chunks, p.budget, p.scripts)
		t.Logf("%+v, %d chunks, budget %d, scripts %q: %d states in %d runs", rule, p.chunks, p.budget, p.scripts, states, runs)
	}
}

// explore tries every order.
func explore(t testing.TB, rule prefetching, chunks, budget int, scripts crowd) (states, runs int) {
	e := &explorer{seen: make(map[[32]byte]bool), todo: [][]int{nil}}
	for len(e.todo) > 0 {
		e.prefix, e.at = e.todo[len(e.todo)-1], 0
		e.todo = e.todo[:len(e.todo)-1]
		newWorld(t, rule, e, chunks, budget, scripts).run()
		runs++
	}
	return len(e.seen), runs
}

// A verdict is a testing.TB that stops a model that goes wrong by a panic with itself.
type verdict struct {
	testing.TB
	said string
}

func (v *verdict) Fatalf(format string, args ...any) { v.said = fmt.Sprintf(format, args...); panic(v) }
func (v *verdict) Fatal(args ...any)                 { v.said = fmt.Sprint(args...); panic(v) }

// TestAPrefetchingDeviceNeedsItsOwnChains: where entries are read as soon as they are
// enabled, chains that are enabled as a whole execute what they were before they were
// rewritten, and the model says so.
func TestAPrefetchingDeviceNeedsItsOwnChains(t *testing.T) {
	v := &verdict{TB: t}
	defer func() {
		if r := recover(); r != nil && r != v {
			panic(r)
		}
		if v.said == "" {
			t.Error("the model finds nothing wrong with chains that are enabled as a whole")
		}
		t.Log("found:", v.said)
	}()
	explore(v, prefetching{device: true}, 1, 1, crowd{{"af"}, {"af"}})
}
