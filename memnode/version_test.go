package memnode_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool"
	"polder/pool/onesided"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
	"polder/verbs"
)

// older is a fabric whose nodes speak the version of the protocol before, and reject with the words of that time what is
// of another one. What the nodes are asked, in hello's first bytes, is counted.
type older struct {
	pooltest.Fabric
	version uint16 // that they speak
}

func (f *older) Listen(dev verbs.Device, addr string) (verbs.Listener, error) {
	l, err := f.Fabric.Listen(dev, addr)
	return &olderListener{l, f.version}, err
}

type olderListener struct {
	verbs.Listener
	version uint16
}

func (l *olderListener) Accept(ctx context.Context) (verbs.ConnRequest, error) {
	for {
		req, err := l.Listener.Accept(ctx)
		if err != nil {
			return nil, err
		}
		switch b := req.Private(); {
		case len(b) != 72: // as version 4 says it
			err = req.Reject(fmt.Sprintf("malformed message: hello of %d bytes, want 72", len(b)))
		case binary.LittleEndian.Uint16(b[4:]) != l.version:
			err = req.Reject(fmt.Sprintf("malformed message: version %d, want %d", binary.LittleEndian.Uint16(b[4:]), l.version))
		default:
			return req, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// before is s with nodes that speak a version of old.
func before(s pooltest.Setup, version uint16) pooltest.Setup {
	fabric := s.Fabric
	s.Fabric = func(t testing.TB) pooltest.Fabric { return &older{fabric(t), version} }
	return s
}

// A client of this version and a node of the one before work together, by every manager that an operator may choose, and
// go on after the connection is lost.
func TestAClientOfThisVersionAndANodeOfTheOneBefore(t *testing.T) {
	for _, m := range []pool.Manager{onesided.Manager{Native: true}, onesided.Manager{}, rpcmw.Manager{}} {
		t.Run(m.Name(), func(t *testing.T) {
			s := before(pooltest.TCP, wire.Before)
			s.Manager = m
			c := pooltest.NewCluster(t, s, node(8))
			k := c.Open(pool.Config{Groups: 2})
			ch := k.MustAlloc(t)
			writes(t, ch, "here")
			k.Cut(c.Nodes[0])
			reads(t, ch, "here")
			again(t, "the chunk is freed", func() error { return ch.Free(t.Context()) })
			pooltest.Eventually(t, "nothing is lent", func() bool { return c.Nodes[0].Stats().Lent == 0 })
			_, err := c.TryOpen(pool.Config{Keep: &pool.Keep{Name: "orders", Epoch: 1}})
			if err == nil || !strings.Contains(err.Error(), "does not speak version 5 of the protocol, without which it cannot keep a session") {
				t.Errorf("a session to be kept at a node of version 4: got %v", err)
			}
			_, err = c.TryOpen(pool.Config{Cluster: "blue"})
			if err == nil || !strings.Contains(err.Error(), "the node does not say which cluster it is of, and this end is of cluster blue: upgrade the node") {
				t.Errorf("a pool of a cluster at a node of version 4: got %v", err)
			}
		})
	}
	s := before(pooltest.TCP, wire.Before-1)
	c := pooltest.NewCluster(t, s, node(8))
	if _, err := c.TryOpen(pool.Config{}); err == nil || !strings.Contains(err.Error(), "neither version 5 of the protocol nor 4") || !strings.Contains(err.Error(), "version 4, want 3") {
		t.Errorf("a node of version 3: got %v, want that names the versions", err)
	}
}

// A node lends to clients of its own cluster only, and who is refused is told both.
func TestANodeLendsToItsOwnCluster(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		blue, plain := node(8), node(8)
		blue.Cluster = "blue"
		for _, c := range []struct {
			node   memnode.Config
			client string
			want   string // in the error; "" for none
		}{
			{blue, "blue", ""},
			{blue, "green", "this end is of cluster green: "},
			{blue, "green", "this node is of cluster blue, and the client of another one"},
			{blue, "", "this end is of no cluster: "},
			{blue, "", "this node is of cluster blue, and the client of none"},
			{plain, "", ""},
			{plain, "green", "this node is of no cluster, and the client of another one"},
		} {
			k := pooltest.NewCluster(t, s, c.node)
			_, err := k.TryOpen(pool.Config{Cluster: c.client})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("a client of cluster %q at a node of %q: got %v, want %q", c.client, c.node.Cluster, err, c.want)
			}
			if n := k.Nodes[0].Stats(); err != nil && (n.Lent != 0 || n.Clients != 0) {
				t.Errorf("who was refused has %d chunks, and is one of %d clients", n.Lent, n.Clients)
			}
		}
	})
}

// A client of the version before, and a node of this one. The client has one queue pair by rpcmw, whatever it says.
func TestAClientOfTheVersionBefore(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(8))
		open := func(resume wire.Session) *raw {
			r := dialRaw(t, c, c.Nodes[0])
			private, err := r.hello(r.mgmt, wire.Hello{Version: wire.Before, Kind: wire.KindManagement, Manager: memnode.RPCMW, Session: resume, Groups: 4})
			if err == nil {
				err = r.w.Decode(private)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.hello(r.access, wire.Hello{Version: wire.Before, Kind: wire.KindAccess, Manager: memnode.RPCMW}); err != nil {
				t.Fatal(err)
			}
			if r.w.Version != wire.Before || r.w.Groups > 1 {
				t.Fatalf("the node answers version %d with %d, and %d groups; want 1", wire.Before, r.w.Version, r.w.Groups)
			}
			return r
		}
		a := open(wire.Session{})
		g := a.alloc(1)[0]
		copy(a.mem[4096:], "mine")
		if got := a.access1(verbs.OpWrite, a.addr(g.Chunk), g.Key, 4); got != verbs.StatusSuccess {
			t.Fatal(got)
		}
		b := open(a.w.Session)
		if !b.w.Resumed {
			t.Fatal("the session was not resumed")
		}
		g = b.owned()[0]
		clear(b.mem)
		if got := b.access1(verbs.OpRead, b.addr(g.Chunk), g.Key, 4); got != verbs.StatusSuccess || string(b.mem[4096:4100]) != "mine" {
			t.Fatalf("got %v, %q, want what was written", got, b.mem[4096:4100])
		}
		if got := b.free(g.Chunk); got != wire.StatusOK {
			t.Fatal(got)
		}
		r := dialRaw(t, c, c.Nodes[0])
		_, err := r.hello(r.mgmt, wire.Hello{Version: wire.Version + 1, Kind: wire.KindManagement, Manager: memnode.RPCMW})
		var rejected *verbs.RejectError
		if !errors.As(err, &rejected) || !strings.Contains(rejected.Reason, "speaks version 6 of the protocol, and this end 4 and 5") {
			t.Errorf("a client of version 6: got %v, want that names the versions", err)
		}
	})
}
