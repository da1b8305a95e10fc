package directory

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/internal/etcd"
	"polder/internal/testetcd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns the directory of a cluster.
func open(t *testing.T, cluster string, m *testetcd.Member) *Directory {
	t.Helper()
	c, err := etcd.New(etcd.Config{Endpoints: []string{m.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return New(c, cluster)
}

// named is the addresses of the nodes that there are.
func named(t *testing.T, d *Directory) (addrs []string) {
	t.Helper()
	nodes, _, err := d.Nodes(t.Context())
	if err != nil {
		return []string{err.Error()}
	}
	for _, n := range nodes {
		addrs = append(addrs, n.Address)
	}
	return addrs
}

// until waits for a condition. The bound is for what should happen at all.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func untilNamed(t *testing.T, d *Directory, want ...string) {
	t.Helper()
	until(t, "these are named: "+strings.Join(want, ", "), func() bool { return slices.Equal(named(t, d), want) })
}

// A running announcer.
type running struct {
	*Announcer
	free  atomic.Int64
	log   lines
	stop  context.CancelFunc
	ended chan error
}

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

const capacity = 1 << 20

func announce(t *testing.T, d *Directory, addr, id string) *running {
	t.Helper()
	r := &running{ended: make(chan error, 1)}
	r.free.Store(capacity)
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	r.Announcer = d.Announcer(Config{TTL: 2 * time.Second, Logger: slog.New(slog.NewTextHandler(&r.log, nil)), Now: func() Node {
		return Node{Address: addr, Zone: "z", Capacity: capacity, Free: r.free.Load(), ID: id, Host: "host of " + id}
	}})
	go func() { r.ended <- r.Run(ctx) }()
	t.Cleanup(func() { stop(); r.ended <- <-r.ended })
	return r
}

func TestNodesAreNamedWhileTheyLive(t *testing.T) {
	t.Parallel()
	m := testetcd.New(t, 1)[0]
	d, another := open(t, "c", m), open(t, "c2", m)
	announce(t, another, "10.0.0.9:1", "stranger")
	var changes atomic.Int64
	watching, stop := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() { watched <- d.Watch(watching, func() { changes.Add(1) }) }()
	a, b := announce(t, d, "10.0.0.1:7070", "a"), announce(t, d, "10.0.0.2:7070", "b")
	untilNamed(t, d, "10.0.0.1:7070", "10.0.0.2:7070")
	until(t, "the watch has seen it", func() bool { return changes.Load() >= 2 })
	a.free.Store(capacity / 2)
	until(t, "it says how much is free", func() bool {
		nodes, _, err := d.Nodes(t.Context())
		return err == nil && len(nodes) == 2 && nodes[0] == Node{"10.0.0.1:7070", "z", capacity, capacity / 2, "a", "host of a"}
	})
	a.Withdraw(true)
	untilNamed(t, d, "10.0.0.2:7070")
	a.Withdraw(false)
	untilNamed(t, d, "10.0.0.1:7070", "10.0.0.2:7070")
	until(t, "it knows that it is announced", a.Announced)
	// Somebody deletes it, or writes nonsense in its place.
	if _, err := d.client.Delete(t.Context(), d.prefix+"10.0.0.1:7070", modOf(t, d, "10.0.0.1:7070")); err != nil {
		t.Fatal(err)
	}
	untilNamed(t, d, "10.0.0.1:7070", "10.0.0.2:7070")
	put(t, d, "10.0.0.1:7070", []byte("nonsense"))
	nodes, wrong, err := d.Nodes(t.Context())
	if err != nil || len(nodes) != 1 || len(wrong) != 1 {
		t.Errorf("got %v, and %v is wrong, %v", nodes, wrong, err)
	}
	untilNamed(t, d, "10.0.0.1:7070", "10.0.0.2:7070")

	m.Kill()
	until(t, "they notice that etcd is away", func() bool { return !a.Announced() && !b.Announced() })
	m.Start()
	m.Await()
	until(t, "they are announced again", func() bool { return a.Announced() && b.Announced() })
	untilNamed(t, d, "10.0.0.1:7070", "10.0.0.2:7070")
	if warned, again := a.log.count("goes on to serve"), a.log.count("announced again"); warned != 1 || again != 1 {
		t.Errorf("etcd was away once: %d warnings, and %d times it was announced again", warned, again)
	}
	if err := <-watched; err == nil {
		t.Error("a watch has ended with its server, without an error")
	}
	stop()
	b.stop()
	if err := <-b.ended; err != nil {
		t.Error(err)
	}
	b.ended <- nil
	if got := named(t, d); !slices.Equal(got, []string{"10.0.0.1:7070"}) {
		t.Errorf("one has ended, and %q are named", got)
	}
	// Etcd is away, the node ends all the same.
	m.Kill()
	a.stop()
	if err := <-a.ended; err != nil {
		t.Error(err)
	}
	a.ended <- nil
}

func modOf(t *testing.T, d *Directory, addr string) int64 {
	t.Helper()
	kv, _, err := d.client.Get(t.Context(), d.prefix+addr)
	if err != nil {
		t.Fatal(err)
	}
	return kv.Mod
}

func put(t *testing.T, d *Directory, addr string, value []byte) {
	t.Helper()
	if ok, _, err := d.client.Swap(t.Context(), d.prefix+addr, modOf(t, d, addr), value, 0); err != nil || !ok {
		t.Fatal(ok, err)
	}
}

// Of two nodes with one address, the second one is told, and ends. A node that takes the place of one that has died waits
// for its lease.
func TestTwoNodesThatClaimOneAddress(t *testing.T) {
	t.Parallel()
	d := open(t, "c", testetcd.New(t, 1)[0])
	lease, _, err := d.client.Grant(t.Context(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	const addr = "10.0.0.1:7070"
	dead := Node{Address: addr, ID: "dead"}
	if ok, _, err := d.client.Swap(t.Context(), d.prefix+addr, 0, dead.encode(), lease); !ok || err != nil {
		t.Fatal(ok, err)
	}
	first := announce(t, d, addr, "first")
	until(t, "it is announced", first.Announced)
	if n := first.log.count("cannot"); n != 0 {
		t.Errorf("it complained %d times of one that has died", n)
	}
	second := announce(t, d, addr, "second")
	err = <-second.ended
	second.ended <- nil
	var taken *TakenError
	if !errors.As(err, &taken) || taken.Host != "host of first" || !strings.Contains(err.Error(), addr) {
		t.Errorf("the second was told %v", err)
	}
	// One that was announced before stays, and says so.
	other := Node{Address: addr, ID: "usurper", Host: "h"}
	put(t, d, addr, other.encode())
	until(t, "it says that its address is taken", func() bool { return first.log.count("has announced it") == 1 })
	if ok, err := d.client.Delete(t.Context(), d.prefix+addr, modOf(t, d, addr)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	until(t, "it is announced again", func() bool { return first.Announced() && first.log.count("announced again") == 1 })
}

// A node stays named however busy its process is.
func TestABusyProcessKeepsItsLease(t *testing.T) {
	t.Parallel()
	d := open(t, "c", testetcd.New(t, 1)[0])
	a := announce(t, d, "10.0.0.1:7070", "a")
	until(t, "it is announced", a.Announced)
	mod := modOf(t, d, "10.0.0.1:7070")
	long := 3 * time.Second
	if os.Getenv("TEST_SOAK") != "" {
		long = time.Minute
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	var sum atomic.Int64
	for range 4 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for n := int64(0); !stop.Load(); n++ {
				if n&0xffff == 0 {
					sum.Add(n)
				}
			}
		})
	}
	time.Sleep(long) // longer than the lease
	stop.Store(true)
	wg.Wait()
	if now := modOf(t, d, "10.0.0.1:7070"); now != mod || a.log.count("cannot") > 0 {
		t.Errorf("its entry was of revision %d, and is of %d", mod, now)
	}
}

func TestWhatIsNoNodeIsRefused(t *testing.T) {
	fine := Node{Address: "10.0.0.1:7070", Zone: "z", Capacity: 2, Free: 1, ID: "i", Host: "h"}
	if n, err := decode(fine.Address, fine.encode()); err != nil || n != fine {
		t.Errorf("got %v, %v", n, err)
	}
	for name, change := range map[string]func(*Node){
		"another address": func(n *Node) { n.Address = "10.0.0.2:7070" },
		"free":            func(n *Node) { n.Free = 3 },
		"capacity":        func(n *Node) { n.Capacity = -1 },
		"id":              func(n *Node) { n.ID = "" },
		"zone":            func(n *Node) { n.Zone = strings.Repeat("z", 256) },
		"escape":          func(n *Node) { n.Host = "\x1b[2J" },
		"long": func(n *Node) {
			n.Zone, n.Host, n.ID = strings.Repeat("\\", 255), strings.Repeat("\\", 255), strings.Repeat("\\", 255)
		},
	} {
		n := fine
		change(&n)
		if _, err := decode(fine.Address, n.encode()); err == nil {
			t.Errorf("%s: %v was taken for a node", name, n)
		}
	}
	for _, addr := range []string{"", ":7070", "h", "h:0", "h:070", "h:65536", "h:http", "0.0.0.0:1", "[::]:1", "224.0.0.1:1", "a b:1", "a/b:1", "[fe80::1%eth0]:1", strings.Repeat("h", 256) + ":1"} {
		if err := CheckAddress(addr); err == nil {
			t.Errorf("%q was taken for an address", addr)
		}
	}
	for _, addr := range []string{"h:1", "10.0.0.1:7070", "[fe80::1]:7070", "node-1.nodes.example.com:7070"} {
		if err := CheckAddress(addr); err != nil {
			t.Errorf("%q: %v", addr, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	fine := Node{Address: "10.0.0.1:7070", Zone: "z", Capacity: 2, Free: 1, ID: "i", Host: "h"}
	f.Add(fine.Address, fine.encode())
	f.Add("", []byte("{}"))
	f.Add("h:1", []byte(`{"address":"h:1","id":"i","capacity":1e3}`))
	f.Fuzz(func(t *testing.T, addr string, entry []byte) {
		n, err := decode(addr, entry)
		if err != nil {
			return
		}
		if n.Address != addr || CheckAddress(addr) != nil || n.Free > n.Capacity {
			t.Errorf("%q was read as %+v", entry, n)
		}
		again, err := decode(addr, n.encode())
		if len(n.encode()) <= maxEntry && (err != nil || again != n) {
			t.Errorf("%+v is written and read as %+v, %v", n, again, err)
		}
	})
}
