package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/partition"
)

// fleetPartitions can be divided by the number of servers of a fleet, and by each lesser number.
const fleetPartitions = 12

// fleet are servers that share a heap, and the nodes. Each is at an address of its own, where it is started again when it has ended.
type fleet struct {
	t       *testing.T
	args    []string // of each server
	addrs   []string // of the servers
	servers []*child.Process
	far     []string // addresses of the nodes
	nodes   []*child.Process
}

// startFleet starts four nodes and a number of servers, of which each may have all partitions.
func startFleet(t *testing.T, servers int) *fleet {
	t.Helper()
	f := &fleet{t: t}
	for i := range 4 {
		f.far, f.nodes = append(f.far, keptAddr()), append(f.nodes, nil)
		f.startNode(i)
	}
	f.args = named(strings.Join(f.far, ","), startWitnesses(t), "--durable", "--partitions", fmt.Sprint(fleetPartitions), "--local", "48MiB", "--repair-after", "2s")
	for i := range servers {
		f.addrs, f.servers = append(f.addrs, keptAddr()), append(f.servers, nil)
		f.start(i)
	}
	balanced(t, f.servers...)
	return f
}

// startNode starts node i, with nothing in it.
func (f *fleet) startNode(i int) {
	f.t.Helper()
	f.nodes[i] = proctest.Run(f.t, "node", "--listen", f.far[i], "--lend", "256MiB", "--client-budget", "0", "--grace", "2s")
}

// start starts server i, which has not been started or has ended.
func (f *fleet) start(i int) {
	f.t.Helper()
	f.servers[i] = proctest.Run(f.t, "serve", append([]string{"--listen", f.addrs[i]}, f.args...)...)
}

// leave ends server i in good order, for which it takes the time that it needs to hand over its partitions.
func (f *fleet) leave(i int) {
	f.t.Helper()
	p := f.servers[i]
	if err := p.Signal(syscall.SIGTERM); err != nil {
		f.t.Fatal(err)
	}
	if err := p.EndWithin(hang); err != nil {
		f.t.Fatal(err)
	}
}

// end kills all servers, since in good order they would end one after the other.
func (f *fleet) end() {
	for _, p := range f.servers {
		p.Kill()
	}
}

// stop stops server i, which goes on when cont is called, or the test ends.
func (f *fleet) stop(i int) (cont func()) {
	f.t.Helper()
	p := f.servers[i]
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = p.Signal(syscall.SIGCONT) })
	return func() {
		f.t.Helper()
		if err := p.Signal(syscall.SIGCONT); err != nil {
			f.t.Fatal(err)
		}
	}
}

// others are the servers but for some.
func (f *fleet) others(but ...int) (list []*child.Process) {
	for i, p := range f.servers {
		if !slices.Contains(but, i) {
			list = append(list, p)
		}
	}
	return list
}

// takenOver waits until all partitions belong to some of the servers, which others have taken over from servers that are gone.
func (f *fleet) takenOver(servers ...*child.Process) {
	f.t.Helper()
	ids := clusterIDs(f.t, servers...)
	proctest.Until(f.t, "the partitions are taken over", func() bool {
		all := 0
		for id, n := range shardsOf(f.t, servers[0]) {
			if !slices.Contains(ids, id) {
				return false
			}
			all += n
		}
		return all == partition.Slots
	})
}

// replaceNode starts another node where node i was killed, and waits until there are two copies of everything again.
func (f *fleet) replaceNode(i int) {
	f.t.Helper()
	f.startNode(i)
	balanced(f.t, f.servers...)
	said := ""
	defer func() {
		if f.t.Failed() {
			f.t.Log("a server said last that it has ", said)
		}
	}()
	for _, p := range f.servers {
		proctest.Until(f.t, "everything has its copies again", func() bool {
			health, text := page("http://" + p.Addr("admin") + "/healthz")
			log, err := askCluster(f.t, p, func(ctx context.Context, c *redis.Client) (int64, error) { return c.Wait(ctx, 0, 0).Result() })
			endangered := proctest.State(f.t, p).Metrics.Int("polder_copies_endangered_segments")
			said = fmt.Sprintf("%d copies of its logs beyond the first (%v), and %d segments with fewer copies than they should have; /healthz is %d %s", log, err, endangered, health, text)
			return health == 200 && err == nil && log >= 1 && endangered == 0
		})
	}
}

// TestKilledServersOfASharedHeapLoseNothing: up to three of four servers are killed at a time, now and then a node with them, while clients write, and
// some die while the others take over from those before. In the soak there are four such clusters beside each other, and every fourth server is
// stopped instead, and goes on when others have what it had. What clients were answered is there, and nobody reads anything older.
func TestKilledServersOfASharedHeapLoseNothing(t *testing.T) {
	t.Parallel()
	soak := os.Getenv("TEST_SOAK")
	if soak == "" {
		killServers(t, 2, 20, false, time.Now().Add(24*time.Hour))
		return
	}
	end := time.Now().Add(24 * time.Hour)
	if d, err := time.ParseDuration(soak); err == nil {
		end = time.Now().Add(d)
	}
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			killServers(t, seed, 250, true, end)
		})
	}
}

// killServers kills so many servers, or as many as it can until end; with stops, it stops every fourth instead.
func killServers(t *testing.T, seed uint64, kills int, stops bool, end time.Time) {
	f := startFleet(t, 4)
	defer f.end()
	load := startCrowd(t, oftenEnough, 5*time.Second, f.addrs...)
	load.writes(1)
	load.noErrors("before a server was killed")
	r := rand.New(rand.NewPCG(1, seed))
	killed, stopped, nodes := 0, 0, 0
	for round := 0; killed < kills && time.Now().Before(end); round++ {
		victims := r.Perm(len(f.servers))[:min(2+r.IntN(2), kills-killed)]
		node := -1
		var conts []func()
		var frozen []int
		for n, i := range victims {
			switch when := r.IntN(6); {
			case n == 0 || when < 2: // together
			case when < 5: // while nobody knows of the one before
				time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
			default: // while the others take over, which clients wait for
				load.some(10)
			}
			if stops && r.IntN(4) == 0 {
				conts, frozen = append(conts, f.stop(i)), append(frozen, i)
				stopped++
				continue
			}
			f.servers[i].Kill()
			killed++
			if n == 0 && round%4 == 1 {
				node = r.IntN(len(f.nodes))
				f.nodes[node].Kill()
				nodes++
			}
		}
		for _, i := range victims {
			if !slices.Contains(frozen, i) {
				f.start(i)
			}
		}
		f.takenOver(f.others(frozen...)...)
		load.writes(1)
		for _, cont := range conts {
			cont()
		}
		if len(frozen) > 0 {
			balanced(t, f.servers...)
		}
		if node >= 0 {
			f.replaceNode(node)
		}
		if t.Failed() {
			break
		}
		t.Logf("round %d: %d servers were killed, %d stopped, %d nodes killed; lost %d, wrong %d, stale %d", round, killed, stopped, nodes, load.lost.Load(), load.wrong.Load(), load.stale.Load())
	}
	load.finish()
}
