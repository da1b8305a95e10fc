package chain

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"polder/internal/invariants"
	"polder/verbs"
	"polder/verbs/softnic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The model: two clients and a memory node with a few chunks. The clients' and
// the node's NICs are the real ones, and so are the chains, the queue, and what the
// node's CPU decides (Account). Every order is tried in which the
// node's queue pairs, its CPU and the clients can take their steps, one packet or
// work request at a time. Steps that neither read nor write what others can change are
// taken at once, since it makes no difference when; those are all but the accesses
// to the queue. States that have been seen are not gone on from again.

const (
	modelClients = 2
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
	clients                   [modelClients]*borrower
	holder                    map[uint32]int // chunk: client, from 1
	cpu                       int            // where the CPU is within an action
	chains                    bool           // what prefetching says of them
	steps                     int            // so far
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

// borrower is a client, and the node's half of it.
type borrower struct {
	id          int
	host        *host
	mem         []byte
	mr          softnic.MR
	cq          uint32
	alloc, free uint32 // its queue pairs
	access      uint32 // at the node
	allocs      *modelDesk
	frees       *modelDesk

	script string // what is left to do: a, f
	state  byte   // i idle, a waits for an answer, f for a confirmation, w for memory
	chunk  uint32
	armed  bool    // it has posted a receive for an answer
	cpu    Account // the node's
	cut    bool    // the node has cut it off
}

func newWorld(t testing.TB, rule prefetching, pick chooser, chunks, budget int, scripts [modelClients]string) *world {
	w := &world{t: t, pick: pick, server: newHost(t, rule.device), chains: rule.chains, holder: make(map[uint32]int)}
	s := w.server
	const rights = verbs.AccessLocalWrite | verbs.AccessMWBind
	w.tableMem, w.queueMem = make([]byte, TableSize(chunks)), make([]byte, QueueSize(chunks, modelClients))
	w.tableMR, w.queueMR = s.reg(w.tableMem, rights), s.reg(w.queueMem, rights)
	w.chunkMR = s.reg(make([]byte, chunks*modelSize), rights)
	var err error
	w.table, err = NewTable(w.tableMem, w.tableMR.Addr, modelWindows)
	s.must(err)
	w.queue = NewQueue(w.queueMem, w.queueMR.Addr, chunks, modelClients)
	cq := s.cq()
	w.binder = s.loopback(softnic.QPConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 8})
	for i := range uint32(chunks) {
		w.table.Describe(i, w.chunkMR.Addr+uint64(i)*modelSize, verbs.LKey(w.chunkMR.Key))
		for j := range modelWindows {
			w.table.SetKey(i, j, w.window())
		}
		w.queue.Push(w.table.Entry(i))
	}
	for i := range w.clients {
		w.clients[i] = w.newBorrower(i+1, budget, scripts[i])
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

func (w *world) newBorrower(id, budget int, script string) *borrower {
	b := &borrower{id: id, host: newHost(w.t, false), mem: make([]byte, 4096), script: script, state: 'i', cpu: Account{Budget: budget}}
	link := softnic.Link(id)
	b.host.peers[link], b.host.at[link] = w.server, link
	w.server.peers[link], w.server.at[link] = b.host, link
	b.mr = b.host.reg(b.mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	b.cq = b.host.cq()
	cq := w.server.cq()
	b.access = w.server.qp(softnic.QPConfig{SendCQ: cq, RecvCQ: cq})
	for _, free := range []bool{true, false} {
		q := b.host.qp(softnic.QPConfig{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 4, RecvDepth: 4})
		d := &modelDesk{mem: make([]byte, 2*RingSize), cq: w.server.cq(), make: Alloc}
		const rights = verbs.AccessLocalWrite | verbs.AccessMWBind
		d.chainMR, d.front = w.server.reg(d.mem[:RingSize], rights), w.server.reg(d.mem[RingSize:], rights)
		SetOwner(d.mem, uint64(id))
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
			if budget < w.queue.Free() {
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
	b.cpu.Resume = func(done, failed uint64) {
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
	for _, b := range w.clients {
		for b != nil && b.host.nic.Pending() {
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
	if inCPU {
		return list
	}
	for _, b := range w.clients {
		if b.state == 'i' && b.script != "" {
			list = append(list, action{fmt.Sprintf("client %d: %c", b.id, b.script[0]), func() { w.request(b) }})
		}
		if w.dead(b) {
			list = append(list, action{fmt.Sprintf("CPU: chain %d", b.id), func() { w.stopped(b) }})
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
	if b.cpu.Owed || b.cut {
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
	for _, b := range w.clients {
		if b.cpu.Told && !b.cpu.Owed && w.queue.Free() > 0 || w.over(b) {
			return true
		}
	}
	return false
}

// over reports whether b has asked for more than its budget.
func (w *world) over(b *borrower) bool {
	return !b.cut && b.cpu.Over(func() uint64 { return Received(b.frees.mem) })
}

// stopped is the CPU's answer to the event that b's chain has failed.
func (w *world) stopped(b *borrower) {
	d := b.allocs
	w.destroy(d)
	if cause, entry := b.cpu.Stopped(w.queue); cause != QueueEmpty {
		w.t.Fatalf("client %d's chain failed with the entry %#x, cause %d", b.id, entry, cause)
	}
	w.queue.Settle()
	w.tell(b)
}

func (w *world) destroy(d *modelDesk) {
	w.server.must(w.server.nic.DestroyQP(d.chain))
	d.chain = w.binder // of no queue pair that fails
}

func (w *world) tick() {
	w.queue.Settle()
	for _, b := range w.clients {
		b.cpu.Tick(w.queue)
		if w.over(b) {
			w.destroy(b.allocs)
			b.cpu.Close(w.queue)
			b.cut = true
		}
		w.tell(b)
	}
}

// tell sends b a notice that is due.
func (w *world) tell(b *borrower) {
	if !b.cpu.Due {
		return
	}
	b.cpu.Due = false
	if b.cpu.Empty(w.queue) {
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
	if b.state == 'f' {
		if w.holder[b.chunk] != b.id {
			w.t.Fatalf("client %d frees chunk %d, which %d has", b.id, b.chunk, w.holder[b.chunk])
		}
		delete(w.holder, b.chunk)
		h := Handle(w.table.Entry(b.chunk))
		post(b.free, copy(b.mem, h[:]))
		return
	}
	m := binary.LittleEndian.AppendUint32(b.mem[:0], b.access)
	m = binary.LittleEndian.AppendUint64(m, b.mr.Addr+64)
	m = binary.LittleEndian.AppendUint32(m, uint32(b.mr.Key))
	post(b.alloc, len(m))
}

// arrived takes what b's NIC has received.
func (w *world) arrived(b *borrower) {
	var wcs [4]verbs.WC
	for _, wc := range wcs[:b.host.nic.Poll(b.cq, wcs[:])] {
		if wc.Status != verbs.StatusSuccess {
			w.t.Fatalf("client %d: %v", b.id, wc.Status)
		}
		if wc.Op != verbs.OpRecv {
			continue
		}
		if b.state == 'a' {
			chunk, ok := w.table.Chunk(binary.LittleEndian.Uint64(b.mem[64+8:]))
			if !ok || w.holder[chunk] != 0 {
				w.t.Fatalf("client %d is granted chunk %d (%t), which %d has", b.id, chunk, ok, w.holder[chunk])
			}
			w.holder[chunk] = b.id
			if n := w.held(b); n > b.cpu.Budget {
				w.t.Fatalf("client %d has %d chunks, and a budget of %d", b.id, n, b.cpu.Budget)
			}
			b.chunk, b.armed = chunk, false
		}
		b.state, b.script = 'i', b.script[1:]
	}
}

// held is how many chunks b has.
func (w *world) held(b *borrower) (n int) {
	for _, id := range w.holder {
		if id == b.id {
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
	for again := true; again; {
		again = false
		w.runClients()
		for _, q := range nic.Runnable() {
			if !w.shared(q) {
				w.count()
				nic.RunOne(q)
				again = true
			}
		}
	}
	for _, b := range w.clients {
		w.arrived(b)
	}
}

// shared reports whether the next step of a queue pair is an access to the queue.
func (w *world) shared(qp uint32) bool {
	next, responses := w.server.nic.Position(qp)
	for _, b := range w.clients {
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
		w.step(list[i])
	}
	held := len(w.holder)
	total := len(w.tableMem) / verbs.EntrySize
	for _, b := range w.clients {
		greedy := b.script != "" && b.script[0] == 'a' && w.held(b) == b.cpu.Budget && b.cpu.Budget < total
		if b.cut != greedy {
			w.t.Fatalf("client %d, with %d chunks of %d and %q left, is cut off: %t", b.id, w.held(b), b.cpu.Budget, b.script, b.cut)
		}
		if b.script != "" && !greedy && !(b.script[0] == 'a' && held == total) {
			w.t.Fatalf("client %d waits for ever: %q is left, state %c, failed %d, owed %t, told %t; %d chunks are held, %d free",
				b.id, b.script, b.state, b.cpu.Failed, b.cpu.Owed, b.cpu.Told, held, w.queue.Free())
		}
	}
	if free := w.queue.Free(); held+free != total {
		w.t.Fatalf("%d chunks are held and %d free, of %d", held, free, total)
	}
}

// hash identifies the state.
func (w *world) hash() [32]byte {
	b := append(append([]byte(nil), w.tableMem...), w.queueMem...)
	b = w.server.nic.AppendState(b)
	for _, k := range w.clients {
		b = append(b, k.allocs.mem...)
		b = append(b, k.frees.mem...)
		b = append(b, k.state, byte(k.chunk), byte(k.cpu.Failed))
		b = fmt.Append(b, k.script, k.cpu.Owed, k.cpu.Told, k.cut)
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

func TestEveryInterleaving(t *testing.T) {
	for _, c := range []struct {
		chunks  int
		budget  int
		scripts [modelClients]string
	}{
		{1, 1, [modelClients]string{"afa", "a"}},
		{1, 1, [modelClients]string{"af", "af"}},
		{2, 1, [modelClients]string{"af", "af"}},
		{2, 1, [modelClients]string{"aa", "af"}}, // greedy
		{2, 2, [modelClients]string{"aa", "a"}},
		{1, 1, [modelClients]string{"afaf", "af"}},
		{1, 1, [modelClients]string{"afaf", "afaf"}},
		{2, 1, [modelClients]string{"afaf", "afaf"}},
		{2, 1, [modelClients]string{"afaa", "afa"}},
	} {
		if invariants.Enabled && len(c.scripts[0])+len(c.scripts[1]) > 6 {
			continue // the race detector makes it take long, and has nothing to find
		}
		for _, rule := range []prefetching{{false, false}, {true, true}} {
			states, runs := explore(t, rule, c.chunks, c.budget, c.scripts)
			t.Logf("%+v, %d chunks, budget %d, scripts %q: %d states in %d runs", rule, c.chunks, c.budget, c.scripts, states, runs)
		}
	}
}

// explore tries every order.
func explore(t testing.TB, rule prefetching, chunks, budget int, scripts [modelClients]string) (states, runs int) {
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
	explore(v, prefetching{device: true}, 1, 1, [modelClients]string{"af", "af"})
}
