package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"polder/far/copies"
	"polder/far/remote"
	"polder/internal/testdns"
	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/verbs"
)

func TestADirectoryIsLookedUp(t *testing.T) {
	dns := testdns.New(t)
	for name, want := range map[string][]string{
		"/nodes.test:7070":      {"127.0.0.2:7070", "127.0.0.3:7070"},
		"/_polder._tcp.nodes.x": {"ip-127-0-0-2.test:1", "ip-127-0-0-3.test:2"},
	} {
		d := newDNSDirectory("dns://" + dns.Addr + name)
		dns.Set()
		if got, err := d.lookup(t.Context()); err == nil {
			t.Errorf("%s: got %q of a name that there is not", name, got)
		}
		dns.Set("127.0.0.3:2", "127.0.0.2:1", "127.0.0.3:2")
		if got, err := d.lookup(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	d := newDNSDirectory("dns://" + dns.Addr + "/nodes")
	if ip, host, err := d.resolve(t.Context(), "ip-127-0-0-2.test:1"); ip != "127.0.0.2:1" || host != "ip-127-0-0-2.test" || err != nil {
		t.Errorf("got %q, %q, %v", ip, host, err)
	}
	d = newDNSDirectory("dns://nodes.test:7070")
	if ip, host, err := d.resolve(t.Context(), "127.0.0.2:7070"); ip != "127.0.0.2:7070" || host != "nodes.test" || err != nil {
		t.Errorf("got %q, %q, %v", ip, host, err)
	}
	if d.name != "nodes.test" || d.port != "7070" {
		t.Errorf("got %+v", d)
	}
}

// A fakeDirectory connects to one node, whatever its name.
type fakeDirectory struct {
	nodeDirectory
	dial func(ctx context.Context) (verbs.Conn, error)
}

func (d fakeDirectory) String() string { return "fake" }

func (d fakeDirectory) node(name string) pool.NodeConfig {
	return pool.NodeConfig{Name: name, Dial: d.dial}
}

// Nodes join a pool and a store of copies as a directory names them, and are forgotten when it has not named them
// for long, unless they are of use.
func TestMembersFollowTheDirectory(t *testing.T) {
	cfg := memnode.Config{Lend: 4 << 20, ChunkSize: 1 << 16}
	c := pooltest.NewCluster(t, pooltest.TCP, cfg, cfg)
	joins := c.Nodes[1]
	addr := joins.Addr
	c.Nodes = c.Nodes[:1]
	k := c.Open(pool.Config{Timeout: 2 * time.Second})
	store, err := copies.Open(copies.Config{Places: remote.Places(k.Pool), Joins: true, RepairAfter: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	m := newMembers(fakeDirectory{dial: func(ctx context.Context) (verbs.Conn, error) { return c.Fabric.Dial(ctx, k.Device, addr) }},
		k.Pool, store, slog.New(slog.DiscardHandler))
	now := time.Now()
	after := func(d time.Duration, want []string, named ...string) {
		t.Helper()
		now = now.Add(d)
		m.update(now, named)
		if got := k.Nodes(); !slices.Equal(got, want) {
			t.Errorf("the nodes are %q, want %q", got, want)
		}
		if got := store.Places(); !slices.Equal(got, want) {
			t.Errorf("the places are %q, want %q", got, want)
		}
	}
	both, one := []string{"node0", "joins"}, []string{"node0"}
	after(0, both, "node0", "joins")
	pooltest.Eventually(t, "it is up", func() bool { return k.Node("joins").Up })
	after(2*absentFor, both, "node0")
	after(2*absentFor, both, "node0") // it answers: it stays
	after(0, both, "node0", "joins")
	joins.Crash()
	pooltest.Eventually(t, "it is down", func() bool { return stateOf(k.Pool, "joins") == "down" })
	after(absentFor, both, "node0")
	after(absentFor/2, both, "node0", "joins") // it is named again: the minute begins anew
	after(absentFor/2, both, "node0")
	after(absentFor/2, both, "node0")
	pooltest.Eventually(t, "it is forgotten", func() bool {
		now = now.Add(absentFor)
		m.update(now, one)
		return len(k.Nodes()) == 1 && len(store.Places()) == 1
	})
	joins.Start()
	after(0, both, "node0", "joins")
	pooltest.Eventually(t, "it is up again", func() bool { return k.Node("joins").Up })
	for i := range 3 {
		g, err := store.Alloc(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if st := store.Stats(); st.Endangered > 0 {
			t.Errorf("segment %d has too few copies: %s", i, fmt.Sprint(st))
		}
		defer g.Free(t.Context())
	}
}

func stateOf(p *pool.Pool, name string) string {
	for _, n := range p.Stats().Nodes {
		if n.Name == name {
			return n.State
		}
	}
	return "none"
}
