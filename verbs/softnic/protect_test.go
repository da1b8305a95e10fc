package softnic

import (
	"bytes"
	"fmt"
	"testing"

	"polder/verbs"
)

// The region that the protection tests aim at is targetSize bytes at
// targetOff of the server's memory; windows open half of it.
const (
	targetOff  = 4096
	targetSize = 4096
	windowOff  = 1024 // in the region
	windowSize = 2048
)

// grant is a key that some kind of object has, and what it opens.
type grant struct {
	key    verbs.RKey
	lo, hi uint64 // addresses
	valid  bool   // for the queue pair under test at all
}

// keyKinds make the objects that a peer may name. q is the queue pair that the
// request arrives at.
var keyKinds = []struct {
	name string
	make func(n *node, q uint32, rights verbs.Access) grant
}{
	{"MR", func(n *node, q uint32, rights verbs.Access) grant {
		mr := n.target(rights)
		return grant{mr.Key, mr.Addr, mr.Addr + targetSize, true}
	}},
	{"MR of another domain", func(n *node, q uint32, rights verbs.Access) grant {
		mr := n.regIn(n.otherPD(), n.mem[targetOff:targetOff+targetSize], rights|verbs.AccessLocalWrite)
		return grant{mr.Key, mr.Addr, mr.Addr + targetSize, false}
	}},
	{"MR with a wrong key", func(n *node, q uint32, rights verbs.Access) grant {
		mr := n.target(rights)
		return grant{mr.Key ^ 1, mr.Addr, mr.Addr + targetSize, false}
	}},
	{"MR that is gone", func(n *node, q uint32, rights verbs.Access) grant {
		mr := n.target(rights)
		if err := n.nic.DeregMR(mr.Key); err != nil {
			n.t.Fatal(err)
		}
		return grant{mr.Key, mr.Addr, mr.Addr + targetSize, false}
	}},
	{"index out of range", func(n *node, q uint32, rights verbs.Access) grant {
		mr := n.target(rights)
		return grant{verbs.MakeRKey(maxKeys, 0), mr.Addr, mr.Addr + targetSize, false}
	}},
	{"index 0", func(n *node, q uint32, rights verbs.Access) grant {
		mr := n.target(rights)
		return grant{0, mr.Addr, mr.Addr + targetSize, false}
	}},
	{"type 1", func(n *node, q uint32, rights verbs.Access) grant {
		return n.window(verbs.MWType1, n.loopback(QPConfig{}), 0, rights, true)
	}},
	{"type 1 of another domain", func(n *node, q uint32, rights verbs.Access) grant {
		return n.foreignWindow(verbs.MWType1, rights)
	}},
	{"type 1, never bound", func(n *node, q uint32, rights verbs.Access) grant {
		return n.unboundWindow(verbs.MWType1)
	}},
	{"type 1, key before a rebind", func(n *node, q uint32, rights verbs.Access) grant {
		binder := n.loopback(QPConfig{})
		g := n.window(verbs.MWType1, binder, 0, rights, false)
		n.bind(binder, 0, g.key+1, rights)
		return g
	}},
	{"type 1, key after a rebind", func(n *node, q uint32, rights verbs.Access) grant {
		binder := n.loopback(QPConfig{})
		g := n.window(verbs.MWType1, binder, 0, rights, false)
		g = n.bind(binder, 0, g.key+1, rights)
		g.valid = true
		return g
	}},
	{"type 1, unbound again", func(n *node, q uint32, rights verbs.Access) grant {
		binder := n.loopback(QPConfig{})
		g := n.window(verbs.MWType1, binder, 0, rights, false)
		if s := n.do(binder, verbs.SendWR{Op: verbs.OpBindMW, RKey: g.key}); s != verbs.StatusSuccess {
			n.t.Fatal(s)
		}
		return g
	}},
	{"type 2B", func(n *node, q uint32, rights verbs.Access) grant {
		return n.window(verbs.MWType2B, n.loopback(QPConfig{}), q, rights, true)
	}},
	{"type 2B of another QP", func(n *node, q uint32, rights verbs.Access) grant {
		return n.window(verbs.MWType2B, n.loopback(QPConfig{}), 0, rights, false)
	}},
	{"type 2B of another domain", func(n *node, q uint32, rights verbs.Access) grant {
		return n.foreignWindow(verbs.MWType2B, rights)
	}},
	{"type 2B, never bound", func(n *node, q uint32, rights verbs.Access) grant {
		return n.unboundWindow(verbs.MWType2B)
	}},
	{"type 2B, wrong key", func(n *node, q uint32, rights verbs.Access) grant {
		g := n.window(verbs.MWType2B, n.loopback(QPConfig{}), q, rights, false)
		g.key++
		return g
	}},
	{"type 2B, invalidated", func(n *node, q uint32, rights verbs.Access) grant {
		binder := n.loopback(QPConfig{})
		g := n.window(verbs.MWType2B, binder, q, rights, false)
		n.invalidate(binder, g.key)
		return g
	}},
	{"type 2B, bound again with another key", func(n *node, q uint32, rights verbs.Access) grant {
		binder := n.loopback(QPConfig{})
		g := n.window(verbs.MWType2B, binder, q, rights, false)
		n.invalidate(binder, g.key)
		n.bind(binder, q, g.key+1, rights)
		return g
	}},
	{"type 2B, freed", func(n *node, q uint32, rights verbs.Access) grant {
		g := n.window(verbs.MWType2B, n.loopback(QPConfig{}), q, rights, false)
		if err := n.nic.DeallocMW(g.key); err != nil {
			n.t.Fatal(err)
		}
		return g
	}},
	{"type 2B of a QP that is gone", func(n *node, q uint32, rights verbs.Access) grant {
		owner := n.loopback(QPConfig{})
		g := n.window(verbs.MWType2B, n.loopback(QPConfig{}), owner, rights, false)
		if err := n.nic.DestroyQP(owner); err != nil {
			n.t.Fatal(err)
		}
		return g
	}},
}

// target registers the region with rights for peers, and for windows.
func (n *node) target(rights verbs.Access) MR {
	return n.reg(n.mem[targetOff:targetOff+targetSize], rights|verbs.AccessLocalWrite|verbs.AccessMWBind)
}

func (n *node) otherPD() uint32 {
	n.t.Helper()
	pd, err := n.nic.AllocPD()
	if err != nil {
		n.t.Fatal(err)
	}
	return pd
}

func (n *node) allocMW(pd uint32, typ verbs.MWType) verbs.RKey {
	n.t.Helper()
	key, err := n.nic.AllocMW(pd, typ)
	if err != nil {
		n.t.Fatal(err)
	}
	return key
}

// bind binds a window to the middle of the target.
func (n *node) bind(binder, owner uint32, key verbs.RKey, rights verbs.Access) grant {
	n.t.Helper()
	// The region itself gives peers nothing: the window does.
	return n.bindTo(n.target(0), binder, owner, key, rights)
}

func (n *node) bindTo(mr MR, binder, owner uint32, key verbs.RKey, rights verbs.Access) grant {
	n.t.Helper()
	s := n.do(binder, verbs.SendWR{Op: verbs.OpBindMW, RKey: key, BindLKey: verbs.LKey(mr.Key),
		RemoteAddr: mr.Addr + windowOff, BindLength: windowSize, BindAccess: rights, QPN: owner})
	if s != verbs.StatusSuccess {
		n.t.Fatalf("cannot bind: %v", s)
	}
	return grant{key: key, lo: mr.Addr + windowOff, hi: mr.Addr + windowOff + windowSize}
}

func (n *node) window(typ verbs.MWType, binder, owner uint32, rights verbs.Access, valid bool) grant {
	n.t.Helper()
	g := n.bind(binder, owner, n.allocMW(n.pd, typ)|0x40, rights)
	g.valid = valid
	return g
}

func (n *node) unboundWindow(typ verbs.MWType) grant {
	mr := n.target(0)
	return grant{key: n.allocMW(n.pd, typ), lo: mr.Addr + windowOff, hi: mr.Addr + windowOff + windowSize}
}

// foreignWindow is bound, in a domain of its own.
func (n *node) foreignWindow(typ verbs.MWType, rights verbs.Access) grant {
	pd := n.otherPD()
	mr := n.regIn(pd, n.mem[targetOff:targetOff+targetSize], verbs.AccessLocalWrite|verbs.AccessMWBind)
	return n.bindTo(mr, n.loopback(QPConfig{PD: pd}), 0, n.allocMW(pd, typ), rights)
}

func (n *node) invalidate(q uint32, key verbs.RKey) {
	n.t.Helper()
	s := n.do(q, verbs.SendWR{Op: verbs.OpLocalInv, RKey: key, Flags: verbs.SendAnyQP})
	if s != verbs.StatusSuccess {
		n.t.Fatalf("cannot invalidate: %v", s)
	}
}

var remoteOps = []struct {
	op   verbs.Opcode
	need verbs.Access
	size uint64
}{
	{verbs.OpRead, verbs.AccessRemoteRead, 24},
	{verbs.OpWrite, verbs.AccessRemoteWrite, 24},
	{verbs.OpCmpSwap, verbs.AccessRemoteAtomic, 8},
	{verbs.OpFetchAdd, verbs.AccessRemoteAtomic, 8},
}

// TestProtection tries every remote operation with every kind of key, every
// set of rights, and addresses around both ends.
func TestProtection(t *testing.T) {
	for _, kind := range keyKinds {
		t.Run(kind.name, func(t *testing.T) {
			for rights := verbs.Access(0); rights <= remoteAccess; rights += verbs.AccessRemoteRead {
				for _, op := range remoteOps {
					testRights(t, kind.make, rights, op.op, op.need, op.size)
				}
			}
		})
	}
}

func testRights(t *testing.T, makeKey func(*node, uint32, verbs.Access) grant, rights verbs.Access,
	op verbs.Opcode, need verbs.Access, size uint64) {
	client, server := newNodes(t, Config{})
	for i := range server.mem {
		server.mem[i] = byte(i * 7)
	}
	for i := range client.mem {
		client.mem[i] = byte(i * 13)
	}
	for _, where := range []string{"lo-size", "lo-8", "lo-1", "lo", "middle", "hi-size", "hi-size+1", "hi-1", "hi", "0", "max"} {
		q, sq := client.pair()
		g := makeKey(server, sq, rights)
		addr := map[string]uint64{
			"lo-size": g.lo - size, "lo-8": g.lo - 8, "lo-1": g.lo - 1, "lo": g.lo, "middle": (g.lo + g.hi) / 2,
			"hi-size": g.hi - size, "hi-size+1": g.hi - size + 1, "hi-1": g.hi - 1, "hi": g.hi,
			"0": 0, "max": -size,
		}[where]
		want := verbs.StatusSuccess
		switch {
		case size == 8 && addr%8 != 0:
			want = verbs.StatusRemInvReqErr
		case !g.valid || !rights.Has(need) || addr < g.lo || addr > g.hi-size:
			want = verbs.StatusRemAccessErr
		}
		name := fmt.Sprintf("%v with %v at %s", op, rights, where)
		before := bytes.Clone(server.mem)
		local := bytes.Clone(client.mem)
		server.events = nil
		got := client.do(q, verbs.SendWR{Op: op, RemoteAddr: addr, RKey: g.key, SGL: client.at(64, int(size)), Swap: 1})
		if got != want {
			t.Fatalf("%s: got %v, want %v", name, got, want)
		}
		if want != verbs.StatusSuccess {
			if !bytes.Equal(server.mem, before) || !bytes.Equal(client.mem, local) {
				t.Fatalf("%s: memory has changed", name)
			}
			event := verbs.EventQPAccessErr
			if want == verbs.StatusRemInvReqErr {
				event = verbs.EventQPReqErr
			}
			if !server.event(event, sq) {
				t.Fatalf("%s: no event %q", name, event)
			}
			if client.state(q) != verbs.StateError || server.state(sq) != verbs.StateError {
				t.Fatalf("%s: QPs in %v and %v, want %v", name, client.state(q), server.state(sq), verbs.StateError)
			}
			continue
		}
		off := targetOff + addr - g.lo
		if g.hi-g.lo == windowSize {
			off += windowOff
		}
		switch op {
		case verbs.OpRead:
			copy(local[64:64+size], before[off:])
		case verbs.OpWrite:
			copy(before[off:off+size], local[64:])
		case verbs.OpFetchAdd, verbs.OpCmpSwap:
			copy(local[64:72], before[off:])
			if op == verbs.OpFetchAdd {
				before[off]++ // it does not carry: no byte here is 255
			}
		}
		if !bytes.Equal(server.mem, before) || !bytes.Equal(client.mem, local) {
			t.Fatalf("%s: memory is not what it should be", name)
		}
	}
}

// TestNothingNeedsNoKey: the specification does not check the rkey of a
// message without bytes.
func TestNothingNeedsNoKey(t *testing.T) {
	client, _ := newNodes(t, Config{})
	q, _ := client.pair()
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpWrite} {
		if s := client.do(q, verbs.SendWR{Op: op, RemoteAddr: 1, RKey: 0xdead}); s != verbs.StatusSuccess {
			t.Errorf("%v: got %v, want success", op, s)
		}
	}
}

// TestLocalProtection tries every opcode that touches local memory with every
// kind of SGE that it must not name.
func TestLocalProtection(t *testing.T) {
	const size = 8
	for _, c := range []struct {
		name string
		sge  func(n *node) verbs.SGE
		// What reading and what writing local memory end with.
		gather, scatter verbs.Status
	}{
		{"whole region", func(n *node) verbs.SGE { return n.reg(n.mem[:size], verbs.AccessLocalWrite).sge(0, size) },
			verbs.StatusSuccess, verbs.StatusSuccess},
		{"region without local write", func(n *node) verbs.SGE { return n.reg(n.mem[:size], 0).sge(0, size) },
			verbs.StatusSuccess, verbs.StatusLocProtErr},
		{"one byte early", func(n *node) verbs.SGE { return n.reg(n.mem[64:128], allAccess).sge(-1, size) },
			verbs.StatusLocProtErr, verbs.StatusLocProtErr},
		{"one byte late", func(n *node) verbs.SGE { return n.reg(n.mem[64:128], allAccess).sge(64-size+1, size) },
			verbs.StatusLocProtErr, verbs.StatusLocProtErr},
		{"address that wraps", func(n *node) verbs.SGE {
			s := n.mr.sge(0, size)
			s.Addr = 1<<64 - 4
			return s
		}, verbs.StatusLocProtErr, verbs.StatusLocProtErr},
		{"wrong key", func(n *node) verbs.SGE {
			s := n.mr.sge(0, size)
			s.LKey++
			return s
		}, verbs.StatusLocProtErr, verbs.StatusLocProtErr},
		{"another domain", func(n *node) verbs.SGE { return n.regIn(n.otherPD(), n.mem, allAccess).sge(0, size) },
			verbs.StatusLocProtErr, verbs.StatusLocProtErr},
		{"deregistered", func(n *node) verbs.SGE {
			mr := n.reg(n.mem, allAccess)
			if err := n.nic.DeregMR(mr.Key); err != nil {
				n.t.Fatal(err)
			}
			return mr.sge(0, size)
		}, verbs.StatusLocProtErr, verbs.StatusLocProtErr},
		{"window", func(n *node) verbs.SGE {
			g := n.window(verbs.MWType1, n.loopback(QPConfig{}), 0, remoteAccess, true)
			return verbs.SGE{Addr: g.lo, Length: size, LKey: verbs.LKey(g.key)}
		}, verbs.StatusLocProtErr, verbs.StatusLocProtErr},
	} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpWrite, verbs.OpRead, verbs.OpCmpSwap, verbs.OpFetchAdd} {
			client, server := newNodes(t, Config{})
			q, sq := client.pair()
			server.recv(sq, verbs.RecvWR{SGL: server.at(0, size)})
			want := c.scatter
			if op == verbs.OpSend || op == verbs.OpWrite {
				want = c.gather
			}
			before := bytes.Clone(server.mem)
			got := client.do(q, verbs.SendWR{Op: op, RemoteAddr: server.mr.Addr, RKey: server.mr.Key,
				SGL: []verbs.SGE{c.sge(client)}, Swap: 1})
			if got != want {
				t.Errorf("%v, %s: got %v, want %v", op, c.name, got, want)
			}
			if want == verbs.StatusSuccess {
				continue
			}
			if !bytes.Equal(server.mem, before) {
				t.Errorf("%v, %s: the peer's memory has changed", op, c.name)
			}
			if !client.event(verbs.EventQPFatal, q) || !server.event(verbs.EventDisconnected, sq) {
				t.Errorf("%v, %s: events are missing", op, c.name)
			}
		}
		// The same for a RECV: the receiver has the error, the sender a remote one.
		client, server := newNodes(t, Config{})
		q, sq := client.pair()
		server.recv(sq, verbs.RecvWR{ID: 5, SGL: []verbs.SGE{c.sge(server)}})
		server.poll(server.cq)
		want := verbs.StatusSuccess
		if c.scatter != verbs.StatusSuccess {
			want = verbs.StatusRemOpErr
		}
		if got := client.do(q, verbs.SendWR{Op: verbs.OpSend, SGL: client.at(0, size)}); got != want {
			t.Errorf("RECV, %s: got %v, want %v", c.name, got, want)
		}
		if wcs := server.poll(server.rcq); len(wcs) != 1 || wcs[0].ID != 5 || wcs[0].Status != c.scatter {
			t.Errorf("RECV, %s: got %v, want %v", c.name, wcs, c.scatter)
		}
	}
}
