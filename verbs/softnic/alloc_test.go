package softnic

import (
	"encoding/binary"
	"testing"

	"polder/verbs"
)

func TestMaskedAdd(t *testing.T) {
	for _, c := range []struct{ old, addend, mask, want uint64 }{
		{5, 7, 0, 12},
		{0xff, 1, 1 << 7, 0},             // a byte wraps
		{0x12_ff, 1, 1 << 7, 0x12_00},    // and leaves its neighbour alone
		{0x12_00, 0xff, 1 << 7, 0x12_ff}, // counting down
		{1<<64 - 1, 1, 1 << 63, 0},       // the whole word
		{0x40_38, 8, 1 << 5, 0x40_00},    // a ring of 64 bytes
		{0x7f_ff_ff, 0x01_01_01, 1<<7 | 1<<15, 0x80_00_00},
		{0xff_ff, 0x01_01, 1<<7 | 1<<15, 0},
	} {
		w := c.old
		if was := maskedAdd(&w, c.addend, c.mask); was != c.old || w != c.want {
			t.Errorf("%#x + %#x in fields of %#x: got %#x, was %#x, want %#x", c.old, c.addend, c.mask, w, was, c.want)
		}
	}
}

func TestMaskedFetchAddOverTheWire(t *testing.T) {
	client, server := newNodes(t, Config{})
	q, _ := client.pair()
	server.setWord(64, 0xabff)
	s := client.do(q, verbs.SendWR{Op: verbs.OpMaskedFetchAdd, RemoteAddr: server.mr.Addr + 64, RKey: server.mr.Key,
		Swap: 1, Compare: 1 << 7, SGL: client.at(0, 8)})
	if s != verbs.StatusSuccess || client.word(0) != 0xabff || server.word(64) != 0xab00 {
		t.Errorf("got %v, %#x, now %#x, want 0xabff and 0xab00", s, client.word(0), server.word(64))
	}
}

// pantry is a server with an allocator, and a client of it.
type pantry struct {
	t              *testing.T
	client, server *node
	num            uint32
	q, sq          uint32 // that allocates
	access         [2]uint32
	table, queue   []byte
	memory         []byte
	tableMR, mr    MR
}

const (
	pantryChunks = 4
	pantryChunk  = 512
	pantryRing   = 64
)

func newPantry(t *testing.T, budget uint64) *pantry {
	p := &pantry{t: t, table: make([]byte, pantryChunks*verbs.EntrySize), queue: make([]byte, 4096), memory: make([]byte, pantryChunks*pantryChunk)}
	p.client, p.server = newNodes(t, Config{})
	s, le := p.server, binary.LittleEndian
	const rights = verbs.AccessLocalWrite | verbs.AccessMWBind
	p.tableMR, p.mr = s.reg(p.table, rights), s.reg(p.memory, rights)
	queue := s.reg(p.queue, rights)
	head, tail := queue.Addr+1024, queue.Addr+1032
	le.PutUint64(p.queue[1024:], queue.Addr)
	le.PutUint64(p.queue[1032:], queue.Addr+8*pantryChunks)
	for i := range pantryChunks {
		entry := p.table[i*verbs.EntrySize:]
		for j := range 3 {
			slot := entry[verbs.EntrySlots+j*verbs.SlotSize:]
			le.PutUint64(slot, p.mr.Addr+uint64(i*pantryChunk))
			le.PutUint32(slot[8:], uint32(s.allocMW(s.pd, verbs.MWType2B)|0xfe))
			le.PutUint32(slot[12:], uint32(p.mr.Key))
		}
		le.PutUint64(p.queue[8*i:], p.tableMR.Addr+uint64(i*verbs.EntrySize))
	}
	var err error
	p.num, err = s.nic.CreateAllocator(s.pd, AllocatorConfig{
		Table: p.tableMR.Key, Entries: p.tableMR.Addr, Count: pantryChunks, Windows: 3,
		Queue: queue.Key, Head: head, Tail: tail, Ring: queue.Addr, Size: pantryRing, Freed: tail, FreedRing: queue.Addr,
		Zero: true, Memory: p.mr.Key, ChunkSize: pantryChunk, Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite,
	})
	if err != nil {
		t.Fatal(err)
	}
	p.q, p.sq, p.access = p.attach(budget, 7)
	return p
}

// attach connects another queue pair that allocates for two access queue pairs.
func (p *pantry) attach(budget, owner uint64) (q, sq uint32, access [2]uint32) {
	p.t.Helper()
	q, sq = p.client.pair()
	var group []uint32
	for i := range access {
		a, sa := p.client.pair()
		access[i], group = a, append(group, sa)
	}
	if err := p.server.nic.AttachAllocator(p.num, sq, owner, budget, 0, group); err != nil {
		p.t.Fatal(err)
	}
	return q, sq, access
}

type pantryAnswer struct {
	status verbs.AllocStatus
	addr   uint64
	handle uint64
	keys   [2]verbs.RKey
}

func (p *pantry) alloc(q uint32) (a pantryAnswer) {
	p.t.Helper()
	le, c := binary.LittleEndian, p.client
	if s := c.do(q, verbs.SendWR{Op: verbs.OpAlloc, SGL: c.at(0, 32)}); s != verbs.StatusSuccess {
		p.t.Fatal(s)
	}
	a.status, a.addr, a.handle = verbs.AllocStatus(le.Uint32(c.mem)), le.Uint64(c.mem[8:]), le.Uint64(c.mem[16:])
	a.keys = [2]verbs.RKey{verbs.RKey(le.Uint32(c.mem[24:])), verbs.RKey(le.Uint32(c.mem[28:]))}
	return a
}

func (p *pantry) free(q uint32, handle uint64) verbs.Status {
	p.t.Helper()
	return p.client.do(q, verbs.SendWR{Op: verbs.OpFree, RemoteAddr: handle})
}

// write writes through an access queue pair.
func (p *pantry) write(q uint32, addr uint64, key verbs.RKey) verbs.Status {
	p.t.Helper()
	return p.client.do(q, verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: addr, RKey: key, SGL: p.client.at(512, 8)})
}

func TestAllocAndFree(t *testing.T) {
	p := newPantry(t, pantryChunks)
	var keys []verbs.RKey
	for round := range 3*pantryRing/8 + 1 { // the ring wraps, and so do keys
		a := p.alloc(p.q)
		if a.status != verbs.AllocOK || a.addr != p.mr.Addr+uint64(round%pantryChunks*pantryChunk) {
			t.Fatalf("round %d: got %+v", round, a)
		}
		if owner := binary.LittleEndian.Uint64(p.table[a.handle-p.tableMR.Addr:]); owner != 7 {
			t.Fatalf("round %d: the owner is %d, want 7", round, owner)
		}
		p.client.setWord(512, 0xfeed)
		for i, q := range p.access {
			if s := p.write(q, a.addr+uint64(8*i), a.keys[i]); s != verbs.StatusSuccess {
				t.Fatalf("round %d: access through queue pair %d: %v", round, i, s)
			}
		}
		for _, k := range keys {
			if k == a.keys[0] && len(keys) < pantryChunks*200 {
				t.Fatalf("round %d: the key %v was used before", round, k)
			}
		}
		keys = append(keys, a.keys[0])
		if s := p.free(p.q, a.handle); s != verbs.StatusSuccess {
			t.Fatalf("round %d: freeing: %v", round, s)
		}
		if owner := binary.LittleEndian.Uint64(p.table[a.handle-p.tableMR.Addr:]); owner != 0 {
			t.Fatalf("round %d: the owner is %d after it was freed", round, owner)
		}
		if v := binary.NativeEndian.Uint64(p.memory[a.addr-p.mr.Addr:]); v != 0 {
			t.Fatalf("round %d: the chunk was not zeroed: %#x", round, v)
		}
	}
	if allocs, frees, err := p.server.nic.AllocatorCounts(p.sq); err != nil || allocs != frees || allocs == 0 {
		t.Errorf("got %d allocations, %d frees, %v", allocs, frees, err)
	}
}

func TestAllocStopsAtTheBudgetAndAtTheEnd(t *testing.T) {
	p := newPantry(t, 3)
	for range 3 {
		if a := p.alloc(p.q); a.status != verbs.AllocOK {
			t.Fatalf("got %+v", a)
		}
	}
	if a := p.alloc(p.q); a.status != verbs.AllocBudget || a.addr != 0 || a.keys[0] != 0 {
		t.Errorf("over the budget: got %+v", a)
	}
	other, _, _ := p.attach(10, 8)
	if a := p.alloc(other); a.status != verbs.AllocOK {
		t.Errorf("the last chunk: got %+v", a)
	}
	if a := p.alloc(other); a.status != verbs.AllocEmpty || a.addr != 0 {
		t.Errorf("nothing left: got %+v", a)
	}
}

// TestAllocProtects: each attack costs the attacker its queue pair, and nobody
// anything else.
func TestAllocProtects(t *testing.T) {
	for name, c := range map[string]struct {
		attack func(p *pantry, thief uint32, access uint32, a pantryAnswer) verbs.Status
		want   verbs.Status
	}{
		"freeing another's": {func(p *pantry, thief, _ uint32, a pantryAnswer) verbs.Status {
			return p.free(thief, a.handle)
		}, verbs.StatusRemAccessErr},
		"freeing what is free": {func(p *pantry, thief, _ uint32, a pantryAnswer) verbs.Status {
			return p.free(thief, a.handle+verbs.EntrySize)
		}, verbs.StatusRemAccessErr},
		"freeing half an entry": {func(p *pantry, thief, _ uint32, a pantryAnswer) verbs.Status {
			return p.free(thief, a.handle+verbs.SlotSize)
		}, verbs.StatusRemAccessErr},
		"freeing behind the table": {func(p *pantry, thief, _ uint32, _ pantryAnswer) verbs.Status {
			return p.free(thief, p.tableMR.Addr+pantryChunks*verbs.EntrySize)
		}, verbs.StatusRemAccessErr},
		"freeing before the table": {func(p *pantry, thief, _ uint32, _ pantryAnswer) verbs.Status {
			return p.free(thief, p.tableMR.Addr-verbs.EntrySize)
		}, verbs.StatusRemAccessErr},
		"freeing over an access queue pair": {func(p *pantry, _, access uint32, a pantryAnswer) verbs.Status {
			return p.free(access, a.handle)
		}, verbs.StatusRemInvReqErr},
		"allocating over an access queue pair": {func(p *pantry, _, access uint32, _ pantryAnswer) verbs.Status {
			return p.client.do(access, verbs.SendWR{Op: verbs.OpAlloc, SGL: p.client.at(0, 32)})
		}, verbs.StatusRemInvReqErr},
		"the key of another's window": {func(p *pantry, _, access uint32, a pantryAnswer) verbs.Status {
			return p.write(access, a.addr, a.keys[0])
		}, verbs.StatusRemAccessErr},
		"writing to the table": {func(p *pantry, _, access uint32, _ pantryAnswer) verbs.Status {
			return p.write(access, p.tableMR.Addr, p.tableMR.Key)
		}, verbs.StatusRemAccessErr},
	} {
		p := newPantry(t, pantryChunks)
		a := p.alloc(p.q)
		thief, _, access := p.attach(10, 8)
		table := string(p.table)
		if s := c.attack(p, thief, access[0], a); s != c.want {
			t.Errorf("%s: got %v, want %v", name, s, c.want)
		}
		if string(p.table) != table {
			t.Errorf("%s changed the table", name)
		}
		if s := p.write(p.access[1], a.addr, a.keys[1]); s != verbs.StatusSuccess {
			t.Errorf("%s: the owner's access afterwards: %v", name, s)
		}
		if s := p.free(p.q, a.handle); s != verbs.StatusSuccess {
			t.Errorf("%s: the owner's free afterwards: %v", name, s)
		}
		if s := p.write(p.access[0], a.addr, a.keys[0]); s != verbs.StatusRemAccessErr {
			t.Errorf("%s: access with a stale key: got %v", name, s)
		}
	}
}

func TestAllocatorsAreChecked(t *testing.T) {
	p := newPantry(t, 1)
	n := p.server.nic
	good := n.allocators.get(p.num).cfg
	for name, change := range map[string]func(*AllocatorConfig){
		"no windows":               func(c *AllocatorConfig) { c.Windows = 1 },
		"too many windows":         func(c *AllocatorConfig) { c.Windows = verbs.MaxWindows + 1 },
		"an odd ring":              func(c *AllocatorConfig) { c.Size = 48 },
		"a ring that is elsewhere": func(c *AllocatorConfig) { c.Ring += 1 << 20 },
		"a ring that is shifted":   func(c *AllocatorConfig) { c.Ring += 8 },
		"a table too long":         func(c *AllocatorConfig) { c.Count++ },
		"no table":                 func(c *AllocatorConfig) { c.Table = 0 },
		"a head that is elsewhere": func(c *AllocatorConfig) { c.Head = 8 },
		"a head that is shifted":   func(c *AllocatorConfig) { c.Head += 4 },
		"nothing":                  func(c *AllocatorConfig) { c.Count = 0 },
		"a region of another": func(c *AllocatorConfig) {
			c.Memory = p.server.regIn(p.server.otherPD(), make([]byte, 4096), allAccess).Key
		},
		"a table that cannot be written": func(c *AllocatorConfig) {
			c.Table = p.server.reg(p.table, verbs.AccessRemoteRead).Key
			c.Entries = n.keys.get(c.Table).base
		},
	} {
		c := good
		change(&c)
		if _, err := n.CreateAllocator(p.server.pd, c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := n.DestroyAllocator(p.num); err == nil {
		t.Error("an allocator in use was destroyed")
	}
	if err := n.DeregMR(good.Table); err == nil {
		t.Error("the table of an allocator was deregistered")
	}
	for _, q := range []uint32{p.sq} {
		if err := n.DestroyQP(q); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.DestroyAllocator(p.num); err != nil {
		t.Error(err)
	}
	if err := n.DeregMR(good.Table); err != nil {
		t.Error(err)
	}
}
