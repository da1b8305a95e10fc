package softnic

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"polder/verbs"
)

// The reference model of memory and rights: an array of bytes, and of every
// object what it grants, looked up the slow and obvious way.

const modelMem = 256

type modelKey struct {
	handle verbs.RKey // names the object to the verbs; its index never changes
	key    verbs.RKey
	typ    verbs.MWType // 0: a region
	access verbs.Access
	lo, hi int // offsets in the memory
	bound  bool
	owner  int // of a type 2B window: which queue pair; -1: none there is
	on     int // which region a window is bound to
	base   uint64
}

type model struct {
	t              *rapid.T
	client, server *node
	want           []byte // what the server's memory must be
	keys           []*modelKey
	qps            [2][2]uint32 // client's and server's ends
	binder         uint32
}

func (m *model) connect(i int) {
	m.qps[i][0], m.qps[i][1] = m.client.pair()
}

// die replaces the queue pair i, whose windows become unbound.
func (m *model) die(i int) {
	for _, end := range []struct {
		n *node
		q uint32
	}{{m.client, m.qps[i][0]}, {m.server, m.qps[i][1]}} {
		if s := end.n.state(end.q); s != verbs.StateError {
			m.t.Fatalf("after a failure, QP %d is in %v", end.q, s)
		}
		if err := end.n.nic.DestroyQP(end.q); err != nil {
			m.t.Fatal(err)
		}
	}
	m.client.run()
	for _, k := range m.keys {
		if k.typ == verbs.MWType2B && k.owner == i {
			k.bound = false
		}
	}
	m.connect(i)
}

func (m *model) pick(what string, ok func(*modelKey) bool) *modelKey {
	var s []*modelKey
	for _, k := range m.keys {
		if ok(k) {
			s = append(s, k)
		}
	}
	if len(s) == 0 {
		return nil
	}
	return rapid.SampledFrom(s).Draw(m.t, what)
}

func isMR(k *modelKey) bool { return k.typ == 0 }
func isMW(k *modelKey) bool { return k.typ != 0 }

var someRights = rapid.Custom(func(t *rapid.T) verbs.Access {
	return verbs.Access(rapid.IntRange(0, 7).Draw(t, "rights")) << 1 & remoteAccess
})

func (m *model) register() {
	if len(m.keys) > 12 {
		return
	}
	lo := rapid.IntRange(0, modelMem/8-1).Draw(m.t, "lo") * 8
	hi := rapid.IntRange(lo+1, modelMem).Draw(m.t, "hi")
	access := someRights.Draw(m.t, "access")
	if access != 0 || rapid.Bool().Draw(m.t, "local write") {
		access |= verbs.AccessLocalWrite
	}
	if rapid.Bool().Draw(m.t, "bind") {
		access |= verbs.AccessMWBind
	}
	mr := m.server.reg(m.server.mem[lo:hi:hi], access)
	m.keys = append(m.keys, &modelKey{handle: mr.Key, key: mr.Key, access: access, lo: lo, hi: hi, bound: true, base: mr.Addr})
}

func (m *model) deregister() {
	k := m.pick("region", isMR)
	if k == nil {
		return
	}
	at := 0
	for i, o := range m.keys {
		if o == k {
			at = i
		}
	}
	busy := false
	for _, o := range m.keys {
		busy = busy || o.typ != 0 && o.bound && m.keys[o.on] == k
	}
	if err := m.server.nic.DeregMR(k.key); (err != nil) != busy {
		m.t.Fatalf("deregistering with windows bound (%v): %v", busy, err)
	}
	if busy {
		return
	}
	m.keys = append(m.keys[:at], m.keys[at+1:]...)
	for _, o := range m.keys {
		if o.on > at {
			o.on--
		}
	}
}

func (m *model) allocMW() {
	if len(m.keys) > 12 {
		return
	}
	typ := rapid.SampledFrom([]verbs.MWType{verbs.MWType1, verbs.MWType2B}).Draw(m.t, "type")
	key := m.server.allocMW(m.server.pd, typ)
	m.keys = append(m.keys, &modelKey{handle: key, key: key, typ: typ, owner: -1})
}

// local posts a request to the binder, which is made anew if it fails.
func (m *model) local(wr verbs.SendWR, ok bool) {
	want := verbs.StatusSuccess
	if !ok {
		want = verbs.StatusMWBindErr
	}
	if got := m.server.do(m.binder, wr); got != want {
		m.t.Fatalf("%+v: got %v, want %v", wr, got, want)
	}
	if !ok {
		if err := m.server.nic.DestroyQP(m.binder); err != nil {
			m.t.Fatal(err)
		}
		m.binder = m.server.loopback(QPConfig{})
	}
}

func (m *model) bind() {
	w, r := m.pick("window", isMW), m.pick("region", isMR)
	if w == nil || r == nil {
		return
	}
	off := rapid.IntRange(-1, r.hi-r.lo).Draw(m.t, "off")
	size := rapid.IntRange(0, r.hi-r.lo+1).Draw(m.t, "size")
	access := someRights.Draw(m.t, "rights")
	owner := rapid.IntRange(0, 1).Draw(m.t, "owner")
	key := w.key&^0xff | verbs.RKey(rapid.IntRange(0, 3).Draw(m.t, "key"))
	writes := access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0
	ok := off >= 0 && off+size <= r.hi-r.lo && size > 0 && r.access.Has(verbs.AccessMWBind) &&
		(!writes || r.access.Has(verbs.AccessLocalWrite)) && !(w.typ == verbs.MWType2B && w.bound)
	unbind := w.typ == verbs.MWType1 && size == 0
	m.local(verbs.SendWR{Op: verbs.OpBindMW, RKey: key, BindLKey: verbs.LKey(r.key), RemoteAddr: r.base + uint64(off),
		BindLength: uint64(size), BindAccess: access, QPN: m.qps[owner][1]}, ok || unbind)
	switch {
	case unbind:
		w.key, w.bound = key, false
	case ok:
		w.key, w.bound, w.access, w.owner = key, true, access, owner
		w.lo, w.hi, w.base = r.lo+off, r.lo+off+size, r.base+uint64(off)
		for i, k := range m.keys {
			if k == r {
				w.on = i
			}
		}
	}
}

func (m *model) invalidate() {
	w := m.pick("key", func(*modelKey) bool { return true })
	if w == nil {
		return
	}
	key, flags := w.key, verbs.SendAnyQP
	if rapid.IntRange(0, 3).Draw(m.t, "stale") == 0 {
		key ^= 1
	}
	if rapid.IntRange(0, 3).Draw(m.t, "own only") == 0 {
		flags = 0
	}
	// The binder never owns a window.
	ok := w.typ == verbs.MWType2B && w.bound && key == w.key && flags != 0
	m.local(verbs.SendWR{Op: verbs.OpLocalInv, RKey: key, Flags: flags}, ok)
	if ok {
		w.bound = false
	}
}

// access has the client do something to the server's memory.
func (m *model) access() {
	k := m.pick("key", func(*modelKey) bool { return true })
	if k == nil {
		return
	}
	op := rapid.SampledFrom(remoteOps).Draw(m.t, "op")
	i := rapid.IntRange(0, 1).Draw(m.t, "QP")
	key := k.key
	if rapid.IntRange(0, 7).Draw(m.t, "stale") == 0 {
		key ^= 1
	}
	off := rapid.IntRange(-8, 40).Draw(m.t, "off") // from the object's start
	size := 8
	if op.size != 8 {
		size = rapid.IntRange(1, 60).Draw(m.t, "size")
	} else if rapid.IntRange(0, 7).Draw(m.t, "unaligned") != 0 {
		off = off &^ 7
	}
	addr := k.base + uint64(off)
	want := verbs.StatusSuccess
	switch {
	case op.size == 8 && addr%8 != 0:
		want = verbs.StatusRemInvReqErr
	case key != k.key || !k.bound || !k.access.Has(op.need) || off < 0 || off+size > k.hi-k.lo ||
		k.typ == verbs.MWType2B && k.owner != i:
		want = verbs.StatusRemAccessErr
	}
	local := m.client.mem[:size]
	fill(local, rapid.Uint64().Draw(m.t, "data"))
	sent := bytes.Clone(local)
	swap := rapid.Uint64Range(0, 3).Draw(m.t, "swap")
	got := m.client.do(m.qps[i][0], verbs.SendWR{Op: op.op, RemoteAddr: addr, RKey: key, SGL: m.client.at(0, size), Swap: swap, Compare: 0})
	if got != want {
		m.t.Fatalf("%v of %d bytes at %d of %+v: got %v, want %v", op.op, size, off, *k, got, want)
	}
	if want != verbs.StatusSuccess {
		m.die(i)
		return
	}
	at := m.want[k.lo+off : k.lo+off+size]
	word := func() uint64 { return binary.NativeEndian.Uint64(at) }
	switch op.op {
	case verbs.OpRead:
		sent = bytes.Clone(at)
	case verbs.OpWrite:
		copy(at, sent)
	case verbs.OpCmpSwap:
		sent = bytes.Clone(at)
		if word() == 0 {
			binary.NativeEndian.PutUint64(at, swap)
		}
	case verbs.OpFetchAdd:
		sent = bytes.Clone(at)
		binary.NativeEndian.PutUint64(at, word()+swap)
	}
	if !bytes.Equal(local, sent) {
		m.t.Fatalf("%v: the client has %x, want %x", op.op, local, sent)
	}
}

// TestModel plays random sequences of registrations, binds, invalidations and
// accesses to the engine and to the model.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{t: rt, want: make([]byte, modelMem)}
		m.client, m.server = newNodes(t, Config{MTU: 64})
		for i := range m.qps {
			m.connect(i)
		}
		m.binder = m.server.loopback(QPConfig{})
		m.register()
		m.allocMW()
		rt.Repeat(map[string]func(*rapid.T){
			"register":   func(*rapid.T) { m.register() },
			"deregister": func(*rapid.T) { m.deregister() },
			"allocMW":    func(*rapid.T) { m.allocMW() },
			"bind":       func(*rapid.T) { m.bind() },
			"bind more":  func(*rapid.T) { m.bind() },
			"invalidate": func(*rapid.T) { m.invalidate() },
			"access":     func(*rapid.T) { m.access() },
			"access two": func(*rapid.T) { m.access(); m.access() },
			"": func(rt *rapid.T) {
				checkNIC(t, m.server.nic)
				if !bytes.Equal(m.server.mem[:modelMem], m.want) {
					rt.Fatal("the memory is not what the model has")
				}
			},
		})
	})
}
