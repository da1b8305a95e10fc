package softnic

import (
	"encoding/binary"
	"reflect"
	"testing"

	"polder/verbs"
)

// arena is memory of which only parts are registered: the rest are canaries.
type arena struct {
	mem     []byte
	regions [][2]int // registered: from, to
	fixed   [][2]int // of these, what nothing may change
}

const canary = 0xc9

// cut returns the next size bytes, after a canary of as many, 64 at least.
func (a *arena) cut(size int, mutable bool) []byte {
	from := 0
	if k := len(a.regions); k > 0 {
		from = a.regions[k-1][1]
	}
	from += max(64, size)
	r := [2]int{from, from + size}
	a.regions = append(a.regions, r)
	if !mutable {
		a.fixed = append(a.fixed, r)
	}
	return a.mem[r[0]:r[1]:r[1]]
}

// check fails the test if a byte outside the regions, or in a fixed one, is
// not a canary.
func (a *arena) check(t testing.TB) {
	at := 0
	for _, r := range append(a.regions, [2]int{len(a.mem), len(a.mem)}) {
		for i := at; i < r[0]; i++ {
			if a.mem[i] != canary {
				t.Fatalf("byte %d, which is not registered, was changed", i)
			}
		}
		at = r[1]
	}
	for _, r := range a.fixed {
		for i := r[0]; i < r[1]; i++ {
			if a.mem[i] != canary {
				t.Fatalf("byte %d, which is registered without the right to write, was changed", i)
			}
		}
	}
}

// fuzzed is a NIC under attack, and its Output.
type fuzzed struct {
	*node
	arena   arena
	lo      uintptr // address of the arena
	mrs     []MR
	keys    []verbs.RKey // of all kinds
	windows []verbs.RKey // of these, the windows'
	qps     []uint32     // by role
	cqs     []uint32
	rings   [][]byte
	alloc   uint32       // an allocator, for the queue pairs of roles 0 and 2
	lent    []verbs.RKey // windows of its chunks, two of each
	in      []byte       // what is left of the input
}

func (f *fuzzed) Send(l Link, p *Packet) {
	f.node.Send(l, p) // for the trace
	if len(p.Payload) == 0 {
		return
	}
	// What is sent lies in a registered region, in the gather buffer or is
	// the copy of a word.
	at := reflect.ValueOf(p.Payload).Pointer()
	if at >= f.lo && at < f.lo+uintptr(len(f.arena.mem)) {
		from := int(at - f.lo)
		for _, r := range f.arena.regions {
			if from >= r[0] && from+len(p.Payload) <= r[1] {
				return
			}
		}
		f.t.Fatalf("%d bytes at %d, which are not in one region, were sent", len(p.Payload), from)
	}
}

func (f *fuzzed) take(n int) []byte {
	b := make([]byte, n)
	k := copy(b, f.in)
	f.in = f.in[k:]
	return b
}

func (f *fuzzed) byte() byte     { return f.take(1)[0] }
func (f *fuzzed) number() uint64 { return binary.LittleEndian.Uint64(f.take(8)) }

// pick returns one of s, or rarely what the input says.
func pick[T ~uint32](f *fuzzed, s []T) T {
	b := f.byte()
	if b > 250 {
		return T(f.number())
	}
	return s[int(b)%len(s)]
}

// qp returns the number of a queue pair, mostly one that works: those in the
// error state are replaced when the input comes upon them.
func (f *fuzzed) qp() uint32 {
	b := f.byte()
	if b > 250 {
		return uint32(f.number())
	}
	i := int(b) % len(f.qps)
	if s, err := f.nic.QPState(f.qps[i]); (err != nil || s == verbs.StateError) && b&0x80 == 0 {
		f.makeQP(i)
	}
	return f.qps[i]
}

// key returns a key of one of the windows, or what was a key of it.
func (f *fuzzed) key() verbs.RKey {
	k := pick(f, f.windows)
	if f.byte() < 200 {
		if now, err := f.nic.MWKey(k); err == nil {
			return now
		}
	}
	return k + verbs.RKey(f.byte()&3)
}

// target is some memory and a key for it, which mostly fit together.
type target struct {
	addr uint64
	size uint32
	key  verbs.RKey
}

func (f *fuzzed) target() target {
	b := f.byte()
	i := int(b) % len(f.mrs)
	size := f.arena.regions[i][1] - f.arena.regions[i][0]
	off := int(f.byte()) % size
	if b&0x20 != 0 {
		off &^= 7
	}
	t := target{f.mrs[i].Addr + uint64(off), uint32(f.byte()), f.mrs[i].Key}
	if b&0x40 != 0 {
		t.size = 8
	}
	t.size = min(t.size, uint32(size-off))
	switch spoil := f.byte(); {
	case spoil < 40: // through a window, if there happens to be one
		t.key = f.key()
	case spoil < 44:
		t.addr += uint64(int8(f.byte()))
	case spoil < 48:
		t.size += uint32(f.byte())
	case spoil < 50:
		t.addr = f.number()
	case spoil < 52:
		t.size = uint32(f.number())
	case spoil < 56:
		t.key = pick(f, f.keys)
	}
	return t
}

func (t target) sge() verbs.SGE {
	return verbs.SGE{Addr: t.addr, Length: t.size, LKey: verbs.LKey(t.key)}
}

func newFuzzed(t testing.TB, in []byte) *fuzzed {
	f := &fuzzed{node: &node{t: t}, in: in}
	f.arena.mem = make([]byte, 16384)
	for i := range f.arena.mem {
		f.arena.mem[i] = canary
	}
	f.lo = reflect.ValueOf(f.arena.mem).Pointer()
	var err error
	if f.nic, err = New(Config{MTU: 64, RunBudget: 256, MaxSGE: 4, MaxMsgSize: 4096}, f); err != nil {
		t.Fatal(err)
	}
	if f.pd, err = f.nic.AllocPD(); err != nil {
		t.Fatal(err)
	}
	other := f.otherPD()
	reg := func(pd uint32, size int, access verbs.Access) {
		buf := f.arena.cut(size, access.Has(verbs.AccessLocalWrite))
		mr := f.regIn(pd, buf, access)
		f.mrs, f.keys = append(f.mrs, mr), append(f.keys, mr.Key)
	}
	reg(f.pd, 512, allAccess)
	reg(f.pd, 256, verbs.AccessRemoteRead|verbs.AccessMWBind)
	reg(f.pd, 128, verbs.AccessLocalWrite|verbs.AccessMWBind)
	reg(f.pd, 100, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	reg(other, 256, allAccess)
	for range 4 { // rings
		reg(f.pd, 5*verbs.WQESize, allAccess)
		r := f.arena.regions[len(f.arena.regions)-1]
		ring := f.arena.mem[r[0]:r[1]]
		clear(ring)
		f.rings = append(f.rings, ring)
	}
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType1, verbs.MWType2B, verbs.MWType2B} {
		f.windows = append(f.windows, f.allocMW(f.pd, typ))
	}
	f.keys = append(f.keys, f.windows...)
	f.cq, f.rcq = f.newCQ(16), f.newCQ(5)
	f.cqs = []uint32{f.cq, f.rcq}
	if c, err := f.nic.CreateCQ(2, true); err == nil {
		f.cqs = append(f.cqs, c)
	}
	f.newAllocator()
	f.qps = make([]uint32, roles)
	for i := range roles {
		f.makeQP(i)
	}
	return f
}

// newAllocator makes an allocator whose table and queue the input can spoil.
func (f *fuzzed) newAllocator() {
	table, queue := f.mrs[0], f.mrs[2]
	c := AllocatorConfig{
		Table: table.Key, Entries: table.Addr, Count: lendable, Windows: 2,
		Queue: queue.Key, Head: queue.Addr + 64, Tail: queue.Addr + 72, Ring: queue.Addr, Size: 32,
		Freed: queue.Addr + 72, FreedRing: queue.Addr, Zero: true, Memory: queue.Key, ChunkSize: 16,
		Access: verbs.AccessRemoteRead,
	}
	for range 2 * lendable {
		f.lent = append(f.lent, f.allocMW(f.pd, verbs.MWType2B))
	}
	f.windows = append(f.windows, f.lent...)
	f.mend()
	var err error
	if f.alloc, err = f.nic.CreateAllocator(f.pd, c); err != nil {
		f.t.Fatal(err)
	}
}

// lendable is how many chunks the allocator has.
const lendable = 2

// mend writes the allocator's table and queue anew, as they are to be: the input
// spoils them again and again. Chunks whose first window is bound are lent.
func (f *fuzzed) mend() {
	table, queue := f.mrs[0], f.mrs[2]
	if f.nic.keys.get(table.Key) == nil || f.nic.keys.get(queue.Key) == nil {
		return // deregistered
	}
	le := binary.LittleEndian
	mem, ring := f.nic.keys.get(table.Key).mem, f.nic.keys.get(queue.Key).mem
	clear(ring[:32])
	tail := uint64(0)
	for i := range uint64(lendable) {
		entry := mem[i*verbs.EntrySize:]
		free := true
		for j := range uint64(2) {
			key, err := f.nic.MWKey(f.lent[2*i+j])
			if err != nil {
				return // deallocated
			}
			if mw := f.nic.keys.get(key); j == 0 && mw != nil && mw.mr != nil {
				free = false
			}
			slot := entry[verbs.EntrySlots+j*verbs.SlotSize:]
			le.PutUint64(slot, queue.Addr+96+16*i)
			le.PutUint32(slot[8:], uint32(key))
			le.PutUint32(slot[12:], uint32(queue.Key))
		}
		if free {
			le.PutUint64(ring[tail:], table.Addr+i*verbs.EntrySize)
			tail += 8
		}
	}
	le.PutUint64(ring[64:], queue.Addr)
	le.PutUint64(ring[72:], queue.Addr+tail)
}

// borrow sends an ALLOC, or a FREE of what the queue pair has, as a client would
// that keeps to the rules, so that such are reached at all; what the input does
// to the memory in between is another matter.
func (f *fuzzed) borrow() {
	if f.byte()&3 == 0 {
		f.mend()
	}
	if s, err := f.nic.QPState(f.qps[0]); err != nil || s == verbs.StateError {
		f.makeQP(0)
	}
	p := &Packet{Kind: KindAlloc, DestQP: f.qps[0], Length: verbs.AllocAnswerSize}
	q := f.nic.qps.get(p.DestQP)
	if q == nil {
		return
	}
	p.PSN = q.rsp.expPSN
	if f.byte()&1 == 0 {
		for i := range uint64(lendable) {
			if key, err := f.nic.MWKey(f.lent[2*i]); err == nil && f.nic.keys.get(key).owner == q {
				p.Kind, p.Length, p.Addr = KindFree, 0, f.mrs[0].Addr+i*verbs.EntrySize
			}
		}
	}
	f.nic.Receive(testLink, p)
}

// roles is how many queue pairs there are at a time; the last two are a pair.
const roles = 7

// makeQP replaces the queue pair of a role.
func (f *fuzzed) makeQP(role int) {
	_ = f.nic.DestroyQP(f.qps[role]) // if there is one
	add := func(c QPConfig, l Link) {
		c.SendDepth, c.RecvDepth = 5, 5
		q := f.newQP(c)
		f.connect(q, l, q)
		f.qps[role] = q
		if role == 0 || role == 2 {
			_ = f.nic.AttachAllocator(f.alloc, q, 1, 3, 0, []uint32{f.qps[1]})
		}
	}
	ring := func(i int) verbs.RKey {
		if f.nic.keys.get(f.mrs[5+i].Key) == nil {
			return 0 // it was deregistered
		}
		return f.mrs[5+i].Key
	}
	switch role {
	case 0:
		add(QPConfig{}, testLink)
	case 1:
		add(QPConfig{SendCQ: f.cqs[2], RecvCQ: f.cqs[2]}, testLink)
	case 2:
		add(QPConfig{}, Loopback)
	case 3:
		add(QPConfig{ManagedSend: true, SendRing: ring(0), ManagedRecv: true, RecvRing: ring(1)}, Loopback)
	case 4:
		add(QPConfig{SendRing: ring(2), RecvRing: ring(3), SendCQ: f.cqs[2], RecvCQ: f.cqs[2]}, Loopback)
	default:
		_ = f.nic.DestroyQP(f.qps[5])
		_ = f.nic.DestroyQP(f.qps[6])
		a, b := f.newQP(QPConfig{SendDepth: 5}), f.newQP(QPConfig{ManagedRecv: true, RecvDepth: 3})
		f.connect(a, Loopback, b)
		f.connect(b, Loopback, a)
		f.qps[5], f.qps[6] = a, b
	}
}

// packet makes a packet from the input, mostly one that is in sequence.
func (f *fuzzed) packet() *Packet {
	p := &Packet{Kind: Kind(f.byte() % (uint8(numKinds) + 1)), DestQP: f.qp()}
	if p.Kind == KindDown && f.byte() > 10 {
		p.Kind = KindReadResp
	}
	q := f.nic.qps.get(p.DestQP)
	if q != nil {
		p.PSN = q.rsp.expPSN
		if p.Kind >= KindReadResp && p.Kind <= KindNak {
			p.PSN = q.req.una
			if q.req.reads.len() > 0 && p.Kind < KindAck {
				p.PSN = q.req.reads.front().psn
			}
		}
	}
	if f.byte() < 8 {
		p.PSN = uint32(f.number()) & psnMask
	}
	t := f.target()
	p.Status = verbs.Status(f.byte() % 16)
	p.Addr, p.Length, p.RKey = t.addr, t.size, t.key
	p.Swap, p.Compare = uint64(f.byte()), uint64(f.byte())
	switch p.Kind {
	case KindAlloc:
		p.Length = uint32(f.byte()) % (verbs.AllocAnswerSize + 2)
	case KindFree:
		p.Addr = f.mrs[0].Addr + uint64(f.byte()&3)*verbs.EntrySize
	case KindSend, KindWrite:
		size := t.size
		if f.byte() < 80 {
			size = min(size, uint32(f.byte()))
		}
		p.Payload = f.take(int(min(size, MaxPayload)))
	case KindMore:
		if q != nil && f.byte() < 250 {
			p.Payload = f.take(min(int(q.rsp.msg.left), 1+int(f.byte())))
		}
	case KindReadResp:
		if q != nil && q.req.reads.len() > 0 {
			p.Payload = f.take(min(int(q.req.reads.front().left), 1+int(f.byte())))
		}
	}
	if f.byte() < 4 {
		p.Payload = f.take(int(f.byte()))
	}
	return p
}

// forge writes an entry into a ring: raw bytes, or one that is nearly right.
func (f *fuzzed) forge() {
	ring := f.rings[int(f.byte())%len(f.rings)]
	off := int(f.byte()) % 5 * verbs.WQESize
	b := ring[off : off+verbs.WQESize]
	if f.byte() < 8 {
		copy(b, f.take(verbs.WQESize))
		return
	}
	le := binary.LittleEndian
	op := verbs.Opcode(f.byte() % (uint8(verbs.NumOpcodes) + 1))
	local, remote := f.target(), f.target()
	b[verbs.WQEOpcode] = byte(op)
	b[verbs.WQEFlags] = f.byte() & (f.byte() | f.byte()&0x1f) & 0x1f
	b[verbs.WQENumSGE] = f.byte() % 3
	b[verbs.WQEAccess] = f.byte() & byte(remoteAccess)
	le.PutUint32(b[verbs.WQEQPN:], f.qp())
	le.PutUint64(b[verbs.WQEAddr:], remote.addr)
	le.PutUint32(b[verbs.WQERKey:], uint32(remote.key))
	le.PutUint32(b[verbs.WQELKey:], uint32(local.key))
	verbs.PutSGE(b[verbs.WQESGE0:], local.sge())
	verbs.PutSGE(b[verbs.WQESGE1:], f.target().sge())
	switch op {
	case verbs.OpCmpSwap, verbs.OpFetchAdd, verbs.OpMaskedFetchAdd:
		b[verbs.WQENumSGE] = 1
	case verbs.OpWait:
		le.PutUint32(b[verbs.WQEQPN:], pick(f, f.cqs))
		le.PutUint64(b[verbs.WQEAddr:], uint64(f.byte()))
	case verbs.OpEnable, verbs.OpEnableRecv:
		le.PutUint64(b[verbs.WQEAddr:], uint64(f.byte()))
	case verbs.OpBindMW, verbs.OpLocalInv:
		le.PutUint32(b[verbs.WQERKey:], uint32(f.key()))
		le.PutUint64(b[verbs.WQELength:], uint64(remote.size))
		le.PutUint32(b[verbs.WQELKey:], uint32(remote.key))
	}
}

func (f *fuzzed) sgl() (sgl []verbs.SGE) {
	for range f.byte() % 6 {
		sgl = append(sgl, f.target().sge())
	}
	return sgl
}

// post posts a request, mostly a good one.
func (f *fuzzed) post() {
	t := f.target()
	wr := verbs.SendWR{Op: verbs.Opcode(f.byte() % uint8(verbs.NumOpcodes)),
		Flags:      verbs.SendFlags(f.byte() & 0x1f &^ byte(verbs.SendSGLIndirect)),
		RemoteAddr: t.addr, RKey: t.key, Swap: uint64(f.byte()), Count: uint64(f.byte() & 7)}
	switch wr.Op {
	case verbs.OpSend, verbs.OpWrite, verbs.OpRead:
		wr.SGL = f.sgl()
	case verbs.OpAlloc:
		s := f.target().sge()
		s.Length = min(s.Length, verbs.AllocAnswerSize)
		wr.SGL = []verbs.SGE{s}
	case verbs.OpFree:
		wr.RemoteAddr = f.mrs[0].Addr + uint64(f.byte()&3)*verbs.EntrySize
	case verbs.OpCmpSwap, verbs.OpFetchAdd, verbs.OpMaskedFetchAdd:
		s := f.target().sge()
		s.Length = 8
		wr.SGL = []verbs.SGE{s}
	case verbs.OpBindMW:
		wr.RKey, wr.QPN = f.key(), f.qp()
		wr.BindLKey, wr.BindLength = verbs.LKey(t.key), uint64(t.size)
		wr.BindAccess = verbs.Access(f.byte()) & remoteAccess
	case verbs.OpLocalInv:
		wr.RKey = f.key()
	case verbs.OpWait:
		wr.CQN = pick(f, f.cqs)
	default:
		wr.QPN = f.qp()
	}
	_ = f.nic.PostSend(f.qp(), []verbs.SendWR{wr})
}

// step does one thing to the NIC. Errors are as good as successes.
func (f *fuzzed) step() {
	n := f.nic
	switch f.byte() % 18 {
	case 16, 17:
		f.borrow()
	case 0, 1, 2, 3:
		n.Receive(testLink, f.packet())
	case 4: // as a driver does it
		var p Packet
		if p.Decode(f.take(int(f.byte()))) == nil {
			n.Receive(testLink, &p)
		}
	case 5, 6:
		f.forge()
	case 7:
		_ = n.EnableSend(f.qp(), uint64(f.byte()))
		_ = n.EnableRecv(f.qp(), uint64(f.byte()))
	case 8, 9:
		f.post()
	case 10:
		_ = n.PostRecv(f.qp(), []verbs.RecvWR{{SGL: f.sgl()}})
	case 11:
		f.full = !f.full
		n.Resume(testLink)
	case 12:
		n.Poll(pick(f, f.cqs), make([]verbs.WC, 8))
	case 13:
		switch f.byte() {
		case 0:
			_ = n.DeregMR(pick(f, f.keys))
		case 1:
			_ = n.DeallocMW(f.key())
		case 2:
			_ = n.DestroyQP(f.qp())
		case 3:
			n.LinkDown(testLink)
		}
	default:
		before := n.Counters()
		n.Run()
		after := n.Counters()
		if did := after.WorkRequests + after.PacketsSent - before.WorkRequests - before.PacketsSent; did > 3*256 {
			f.t.Fatalf("one Run did %d things with a budget of 256", did)
		}
	}
}
