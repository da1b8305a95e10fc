package softnic

import (
	"errors"
	"testing"

	"polder/verbs"
)

// bindCase is a BIND_MW to be spoilt, and what it aims at.
type bindCase struct {
	n  *node
	mr MR
	wr verbs.SendWR
}

// aim makes the request bind to another region.
func (b *bindCase) aim(mr MR) {
	b.mr = mr
	b.wr.BindLKey, b.wr.RemoteAddr = verbs.LKey(mr.Key), mr.Addr+windowOff
}

// TestBindRules breaks each rule of BIND_MW, one at a time.
func TestBindRules(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(b *bindCase)
		type1 verbs.Status
		type2 verbs.Status
	}{
		{"as it should be", func(*bindCase) {}, verbs.StatusSuccess, verbs.StatusSuccess},
		{"whole region", func(b *bindCase) { b.wr.RemoteAddr, b.wr.BindLength = b.mr.Addr, targetSize },
			verbs.StatusSuccess, verbs.StatusSuccess},
		{"for the posting QP", func(b *bindCase) { b.wr.QPN = 0 }, verbs.StatusSuccess, verbs.StatusSuccess},
		{"no rights", func(b *bindCase) { b.wr.BindAccess = 0 }, verbs.StatusSuccess, verbs.StatusSuccess},
		{"one byte early", func(b *bindCase) { b.wr.RemoteAddr = b.mr.Addr - 1 }, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"one byte late", func(b *bindCase) { b.wr.RemoteAddr = b.mr.Addr + targetSize - windowSize + 1 },
			verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"length that wraps", func(b *bindCase) { b.wr.BindLength = -b.wr.RemoteAddr + 1 }, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"no bytes", func(b *bindCase) { b.wr.BindLength = 0 }, verbs.StatusSuccess, verbs.StatusMWBindErr},
		{"local write", func(b *bindCase) { b.wr.BindAccess = verbs.AccessLocalWrite }, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"windows on windows", func(b *bindCase) { b.wr.BindAccess = verbs.AccessMWBind }, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"bits that mean nothing", func(b *bindCase) { b.wr.BindAccess = 0x80 }, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"region that forbids binding", func(b *bindCase) {
			b.aim(b.n.reg(b.n.mem[:targetSize], allAccess&^verbs.AccessMWBind))
		}, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"region without local write, to read", func(b *bindCase) {
			b.aim(b.n.reg(b.n.mem[:targetSize], verbs.AccessMWBind))
			b.wr.BindAccess = verbs.AccessRemoteRead
		}, verbs.StatusSuccess, verbs.StatusSuccess},
		{"region without local write, to write", func(b *bindCase) {
			b.aim(b.n.reg(b.n.mem[:targetSize], verbs.AccessMWBind))
			b.wr.BindAccess = verbs.AccessRemoteWrite
		}, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"region without local write, for atomics", func(b *bindCase) {
			b.aim(b.n.reg(b.n.mem[:targetSize], verbs.AccessMWBind))
			b.wr.BindAccess = verbs.AccessRemoteAtomic
		}, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"unaligned region, for atomics", func(b *bindCase) {
			b.aim(b.n.reg(b.n.mem[1:1+targetSize], verbs.AccessMWBind|verbs.AccessLocalWrite))
		}, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"region of another domain", func(b *bindCase) {
			b.aim(b.n.regIn(b.n.otherPD(), b.n.mem[:targetSize], allAccess))
		}, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"region with a wrong key", func(b *bindCase) { b.wr.BindLKey++ }, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"window as a region", func(b *bindCase) { b.wr.BindLKey = verbs.LKey(b.wr.RKey) }, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"region as a window", func(b *bindCase) { b.wr.RKey = b.mr.Key }, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"no such window", func(b *bindCase) { b.wr.RKey = verbs.MakeRKey(1<<20, 0) }, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"window of another domain", func(b *bindCase) {
			typ := b.n.nic.keys.byIndex(b.wr.RKey).window
			b.wr.RKey = b.n.allocMW(b.n.otherPD(), typ)
		}, verbs.StatusMWBindErr, verbs.StatusMWBindErr},
		{"no such QP", func(b *bindCase) { b.wr.QPN = 0xabcdef }, verbs.StatusSuccess, verbs.StatusMWBindErr},
		{"QP of 25 bits", func(b *bindCase) { b.wr.QPN |= 1 << 24 }, verbs.StatusSuccess, verbs.StatusMWBindErr},
		{"QP of another domain", func(b *bindCase) { b.wr.QPN = b.n.newQP(QPConfig{PD: b.n.otherPD()}) },
			verbs.StatusSuccess, verbs.StatusMWBindErr},
	} {
		for typ, want := range map[verbs.MWType]verbs.Status{verbs.MWType1: c.type1, verbs.MWType2B: c.type2} {
			n := newNode(t, Config{})
			mr := n.target(0)
			q, owner := n.loopback(QPConfig{}), n.newQP(QPConfig{})
			key := n.allocMW(n.pd, typ)
			b := &bindCase{n: n, mr: mr, wr: verbs.SendWR{Op: verbs.OpBindMW, RKey: key + 1,
				BindLKey: verbs.LKey(mr.Key), RemoteAddr: mr.Addr + windowOff, BindLength: windowSize,
				BindAccess: remoteAccess, QPN: owner}}
			c.spoil(b)
			if got := n.do(q, b.wr); got != want {
				t.Errorf("%v, %s: got %v, want %v", typ, c.name, got, want)
			}
			wantKey := key
			if want == verbs.StatusSuccess {
				wantKey++
			}
			if got, err := n.nic.MWKey(key); err != nil || got != wantKey {
				t.Errorf("%v, %s: the key is %v (%v), want %v", typ, c.name, got, err, wantKey)
			}
			if want != verbs.StatusSuccess && !n.event(verbs.EventQPFatal, q) {
				t.Errorf("%v, %s: no event", typ, c.name)
			}
		}
	}
}

// TestRebinding: type 1 may be bound again while it is bound, type 2B not.
func TestRebinding(t *testing.T) {
	for typ, want := range map[verbs.MWType]verbs.Status{
		verbs.MWType1:  verbs.StatusSuccess,
		verbs.MWType2B: verbs.StatusMWBindErr,
	} {
		n := newNode(t, Config{})
		g := n.window(typ, n.loopback(QPConfig{}), 0, remoteAccess, true)
		mr := n.target(0)
		got := n.do(n.loopback(QPConfig{}), verbs.SendWR{Op: verbs.OpBindMW, RKey: g.key + 1,
			BindLKey: verbs.LKey(mr.Key), RemoteAddr: mr.Addr, BindLength: 8, BindAccess: remoteAccess})
		if got != want {
			t.Errorf("%v: got %v, want %v", typ, got, want)
		}
	}
}

// TestInvalidationRules breaks each rule of LOCAL_INV.
func TestInvalidationRules(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(n *node, binder, owner uint32) (q uint32, wr verbs.SendWR)
		want verbs.Status
	}{
		{"by the owner", func(n *node, binder, owner uint32) (uint32, verbs.SendWR) {
			return owner, verbs.SendWR{RKey: n.window(verbs.MWType2B, binder, owner, remoteAccess, true).key}
		}, verbs.StatusSuccess},
		{"by the binder", func(n *node, binder, owner uint32) (uint32, verbs.SendWR) {
			return binder, verbs.SendWR{RKey: n.window(verbs.MWType2B, binder, owner, remoteAccess, true).key}
		}, verbs.StatusMWBindErr},
		{"by any QP", func(n *node, binder, owner uint32) (uint32, verbs.SendWR) {
			return binder, verbs.SendWR{Flags: verbs.SendAnyQP,
				RKey: n.window(verbs.MWType2B, binder, owner, remoteAccess, true).key}
		}, verbs.StatusSuccess},
		{"by any QP of another domain", func(n *node, binder, owner uint32) (uint32, verbs.SendWR) {
			return n.loopback(QPConfig{PD: n.otherPD()}), verbs.SendWR{Flags: verbs.SendAnyQP,
				RKey: n.window(verbs.MWType2B, binder, owner, remoteAccess, true).key}
		}, verbs.StatusMWBindErr},
		{"wrong key", func(n *node, binder, owner uint32) (uint32, verbs.SendWR) {
			return owner, verbs.SendWR{RKey: n.window(verbs.MWType2B, binder, owner, remoteAccess, true).key + 1}
		}, verbs.StatusMWBindErr},
		{"twice", func(n *node, binder, owner uint32) (uint32, verbs.SendWR) {
			key := n.window(verbs.MWType2B, binder, owner, remoteAccess, true).key
			n.invalidate(owner, key)
			return owner, verbs.SendWR{RKey: key}
		}, verbs.StatusMWBindErr},
		{"never bound", func(n *node, binder, owner uint32) (uint32, verbs.SendWR) {
			return owner, verbs.SendWR{RKey: n.allocMW(n.pd, verbs.MWType2B), Flags: verbs.SendAnyQP}
		}, verbs.StatusMWBindErr},
		{"type 1", func(n *node, binder, owner uint32) (uint32, verbs.SendWR) {
			return binder, verbs.SendWR{RKey: n.window(verbs.MWType1, binder, 0, remoteAccess, true).key}
		}, verbs.StatusMWBindErr},
		{"a region", func(n *node, binder, owner uint32) (uint32, verbs.SendWR) {
			return owner, verbs.SendWR{RKey: n.mr.Key}
		}, verbs.StatusMWBindErr},
	} {
		n := newNode(t, Config{})
		q, wr := c.run(n, n.loopback(QPConfig{}), n.loopback(QPConfig{}))
		wr.Op = verbs.OpLocalInv
		if got := n.do(q, wr); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// TestBoundRegionsStay: a region can go when its last window has.
func TestBoundRegionsStay(t *testing.T) {
	n := newNode(t, Config{})
	mr := n.target(0)
	binder, owner := n.loopback(QPConfig{}), n.loopback(QPConfig{})
	var keys []verbs.RKey
	for range 5 { // of type 2B, of one owner: first, middle and last go
		keys = append(keys, n.bindTo(mr, binder, owner, n.allocMW(n.pd, verbs.MWType2B), remoteAccess).key)
	}
	busy := func(when string) {
		t.Helper()
		if err := n.nic.DeregMR(mr.Key); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("%s: got %v, want ErrBusy", when, err)
		}
	}
	busy("bound")
	n.invalidate(owner, keys[2])
	n.invalidate(owner, keys[4])
	busy("some invalidated")
	if err := n.nic.DeallocMW(keys[0]); err != nil {
		t.Fatal(err)
	}
	busy("one freed")
	if err := n.nic.DestroyQP(owner); err != nil {
		t.Fatal(err)
	}
	if err := n.nic.DeregMR(mr.Key); err != nil {
		t.Errorf("with all windows gone: %v", err)
	}
	if err := n.nic.DeregMR(mr.Key); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("twice: got %v, want ErrInvalid", err)
	}
}

// TestRevokedRead: a right that is taken back while a READ's response is held
// up by flow control is gone for the rest of the response.
func TestRevokedRead(t *testing.T) {
	for _, mtu := range []int{64, MaxPayload} {
		client, server := newNodes(t, Config{MTU: mtu})
		q, sq := client.pair()
		binder := server.loopback(QPConfig{})
		g := server.window(verbs.MWType2B, binder, sq, remoteAccess, true)
		server.full = true
		client.post(q,
			verbs.SendWR{ID: 1, Op: verbs.OpRead, RemoteAddr: server.mr.Addr, RKey: server.mr.Key, SGL: client.at(0, 100), Flags: verbs.SendSignaled},
			verbs.SendWR{ID: 2, Op: verbs.OpRead, RemoteAddr: g.lo, RKey: g.key, SGL: client.at(0, 100)},
			verbs.SendWR{ID: 3, Op: verbs.OpWrite, RemoteAddr: server.mr.Addr, RKey: server.mr.Key, SGL: client.at(0, 100)})
		server.invalidate(binder, g.key)
		server.full = false
		server.nic.Resume(testLink)
		server.run()
		if got, want := ids(client.poll(client.cq)), "[1:success 2:remote access error 3:work request flushed]"; got != want {
			t.Errorf("MTU %d: got %s, want %s", mtu, got, want)
		}
		if !server.event(verbs.EventQPAccessErr, sq) {
			t.Errorf("MTU %d: no event", mtu)
		}
	}
}

// TestRevokedWrite: the same for a WRITE of several packets.
func TestRevokedWrite(t *testing.T) {
	client, server := newNodes(t, Config{MTU: 64, RunBudget: 1})
	q, sq := client.pair()
	binder := server.loopback(QPConfig{})
	g := server.window(verbs.MWType2B, binder, sq, remoteAccess, true)
	for i := range client.mem {
		client.mem[i] = 0xff
	}
	if err := client.nic.PostSend(q, []verbs.SendWR{{ID: 1, Op: verbs.OpWrite, RemoteAddr: g.lo, RKey: g.key, SGL: client.at(0, 640)}}); err != nil {
		t.Fatal(err)
	}
	for range 4 { // one packet each, after the first that the connecting left
		client.nic.Run()
	}
	server.invalidate(binder, g.key)
	stored := 0
	for _, b := range server.mem[targetOff+windowOff:] {
		stored += int(b & 1)
	}
	if stored == 0 || stored >= 640 {
		t.Fatalf("%d bytes had been stored when the window was invalidated, want some", stored)
	}
	client.run()
	if got, want := ids(client.poll(client.cq)), "[1:remote access error]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i, b := range server.mem[targetOff+windowOff:] {
		if b != 0 && i >= stored {
			t.Fatalf("byte %d was stored after the invalidation", i)
		}
	}
}

// TestKeysOfTheDead: an index that is used again has another key, and is used
// again late.
func TestKeysOfTheDead(t *testing.T) {
	n := newNode(t, Config{})
	seen := make(map[verbs.RKey]bool)
	for i := range 20_000 {
		mr := n.reg(n.mem[:8], 0)
		if seen[mr.Key] {
			t.Fatalf("key %v given out again after %d registrations", mr.Key, i)
		}
		seen[mr.Key] = true
		if err := n.nic.DeregMR(mr.Key); err != nil {
			t.Fatal(err)
		}
	}
	if len(n.nic.keys.regions) > 2000 {
		t.Errorf("the table has %d entries for one region", len(n.nic.keys.regions))
	}
}

// TestDeregisteredUnderWay: local memory that is deregistered while a message
// of several packets is under way is not touched any more.
func TestDeregisteredUnderWay(t *testing.T) {
	type end struct {
		n  *node
		mr MR
	}
	for _, c := range []struct {
		name   string
		op     verbs.Opcode
		server bool // whose memory goes
		want   verbs.Status
		recv   verbs.Status
	}{
		{"sent from", verbs.OpSend, false, verbs.StatusLocProtErr, verbs.StatusWRFlushErr},
		{"written from", verbs.OpWrite, false, verbs.StatusLocProtErr, verbs.StatusWRFlushErr},
		{"read into", verbs.OpRead, false, verbs.StatusLocProtErr, verbs.StatusWRFlushErr},
		{"received into", verbs.OpSend, true, verbs.StatusRemOpErr, verbs.StatusLocProtErr},
	} {
		client, server := newNodes(t, Config{MTU: 64, RunBudget: 1})
		q, pq := client.pair()
		ends := [2]end{{client, client.reg(client.mem[:640], allAccess)}, {server, server.reg(server.mem[:640], allAccess)}}
		server.recv(pq, verbs.RecvWR{ID: 9, SGL: []verbs.SGE{ends[1].mr.sge(0, 640)}})
		err := client.nic.PostSend(q, []verbs.SendWR{{ID: 1, Op: c.op, SGL: []verbs.SGE{ends[0].mr.sge(0, 640)},
			RemoteAddr: server.mr.Addr, RKey: server.mr.Key}})
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			client.nic.Run()
			server.nic.Run()
		}
		gone := ends[0]
		if c.server {
			gone = ends[1]
		}
		if err := gone.n.nic.DeregMR(gone.mr.Key); err != nil {
			t.Fatal(err)
		}
		client.run()
		if got := client.poll(client.cq); len(got) != 1 || got[0].Status != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		if got := server.poll(server.rcq); len(got) != 1 || got[0].Status != c.recv || got[0].ID != 9 {
			t.Errorf("%s: the receive: got %v, want %v", c.name, got, c.recv)
		}
	}
}

// TestTablesFillUp: what there is no room for is refused, and there is room
// again when something goes.
func TestTablesFillUp(t *testing.T) {
	n := newNode(t, Config{MaxQPs: 2, MaxCQs: 3, MaxKeys: 4})
	full := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, verbs.ErrNoResources) {
			t.Errorf("%s: got %v, want ErrNoResources", what, err)
		}
	}
	q := n.newQP(QPConfig{})
	n.newQP(QPConfig{})
	for range 300 {
		_, err := n.nic.CreateQP(QPConfig{PD: n.pd, SendCQ: n.cq, RecvCQ: n.rcq, SendDepth: 1})
		full("third QP", err)
		if err := n.nic.DestroyQP(q); err != nil {
			t.Fatal(err)
		}
		old := q
		if q = n.newQP(QPConfig{}); q == old {
			t.Fatal("the number of a QP that is gone was given out at once")
		}
		if _, err := n.nic.QPState(old); err == nil {
			t.Fatalf("QP %d, which is gone, has a state", old)
		}
	}
	n.newCQ(1)
	_, err := n.nic.CreateCQ(1, false)
	full("fourth CQ", err)
	for range 3 { // the node has a region
		n.allocMW(n.pd, verbs.MWType1)
	}
	_, err = n.nic.AllocMW(n.pd, verbs.MWType2B)
	full("fifth key", err)
	_, err = n.nic.RegMR(n.pd, n.mem, 0)
	full("fifth key", err)
	if err := n.nic.DeallocPD(n.pd); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("domain in use: got %v, want ErrBusy", err)
	}
}
