package robustness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testetcd"
	"polder/pool/pooltest"
)

// startWitnesses starts three witnesses that make a set, and returns what --witness says of them.
func startWitnesses(t *testing.T) string {
	t.Helper()
	var addrs []string
	for range 3 {
		addrs = append(addrs, proctest.Start(t, "witness", "--dir", t.TempDir()).Addr("witness"))
	}
	if out, errs, code := proctest.Output(t, nil, append([]string{"witness", "set"}, addrs...)...); code != 0 {
		t.Fatalf("polder witness set: %d, %s%s", code, out, errs)
	}
	return strings.Join(addrs, ",")
}

// startNodes starts nodes, and returns what --far says of them.
func startNodes(t *testing.T, n int) (nodes []*child.Process, addrs string) {
	t.Helper()
	var all []string
	for range n {
		node := startNode(t, "64MiB")
		nodes, all = append(nodes, node), append(all, node.Addr("verbs"))
	}
	return nodes, strings.Join(all, ",")
}

// named are the arguments of a server of a heap in the memory of nodes.
func named(far, witnesses string, more ...string) []string {
	return append([]string{"--far", far, "--heap", "orders", "--witness", witnesses, "--local", "4MiB",
		"--checkpoint", "100ms", "--op-timeout", "20s"}, more...)
}

// TestAHeapInTheMemoryOfNodesOutlivesItsServer, which is killed or ends by itself, and now and then a node ends with it.
func TestAHeapInTheMemoryOfNodesOutlivesItsServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rounds := 4
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 100
	}
	witnesses := startWitnesses(t)
	nodes, far := startNodes(t, 3)
	n, certain := 0, 0
	for round := range rounds {
		server := proctest.Start(t, "serve", named(far, witnesses)...)
		c := connect(t, server)
		got, err := c.Get(ctx, "transactions").Int()
		if err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		if got < certain || got > n {
			t.Fatalf("round %d: there are %d transactions, want %d to %d", round, got, certain, n)
		}
		keys, fields := keptState(got)
		checkKept(t, c, keys, fields, 0)
		n = got
		certain = n
		for range 12 {
			_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
				for range 100 {
					n++
					keptTxn(ctx, p, n)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		switch round % 4 {
		case 0, 2:
			server.Kill()
			<-server.Done()
		default:
			if err := server.Stop(); err != nil {
				t.Fatal(err)
			}
			certain = n
		}
		if round == 1 { // both copies of nothing were there
			nodes[0].Kill()
			<-nodes[0].Done()
		}
	}
}

// TestADurableServerAtNodesLosesNothing: the server is killed again and again, and a node with it, while clients write. What they
// were answered is there afterwards.
func TestADurableServerAtNodesLosesNothing(t *testing.T) {
	t.Parallel()
	rounds := 6
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 200
	}
	witnesses := startWitnesses(t)
	nodes, far := startNodes(t, 4)
	losesNothing(t, rounds, func(round int) *child.Process {
		if round == 3 {
			nodes[0].Kill()
			<-nodes[0].Done()
		}
		return proctest.Start(t, "serve", named(far, witnesses, "--durable")...)
	})
}

// TestAFullHeapIsOpenedAgain: clients write until far memory is full, delete some, write again, and the server is killed. There is room for its
// checkpoints all the time, so that it comes back with what clients were answered, and takes more.
func TestAFullHeapIsOpenedAgain(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	witnesses := startWitnesses(t)
	_, far := startNodes(t, 2)
	value := strings.Repeat("0123456789abcdef", 256)
	keys := map[string]bool{}
	// sets sets a hundred keys from the nth on, and reports whether all fit.
	sets := func(c *redis.Client, n int) (fit bool) {
		t.Helper()
		fit = true
		var cmds []*redis.StatusCmd
		_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 100 {
				cmds = append(cmds, p.Set(ctx, fmt.Sprint("key ", n+i), fmt.Sprint(n+i, " ", value), 0))
			}
			return nil
		})
		for i, cmd := range cmds {
			switch err := cmd.Err(); {
			case err == nil:
				keys[fmt.Sprint("key ", n+i)] = true
			case strings.HasPrefix(err.Error(), "OOM "):
				fit = false
			default:
				t.Fatalf("SET: %v", err)
			}
		}
		return fit
	}
	server := proctest.Start(t, "serve", named(far, witnesses, "--durable")...)
	c := connect(t, server)
	n := 0
	for sets(c, n) {
		if n += 100; n > 30_000 {
			t.Fatalf("%d keys of 4 KiB fit into 64 MiB", n)
		}
	}
	for round := range 3 {
		left := len(keys) * 3 / 4
		for k := range keys { // any
			if len(keys) == left {
				break
			}
			if err := c.Del(ctx, k).Err(); err != nil {
				t.Fatalf("DEL in a full heap: %v", err)
			}
			delete(keys, k)
		}
		n += 100_000
		// What room there is already is used at once, so that a hundred need not fit together on a slow machine.
		pooltest.Eventually(t, "there is room again for what was deleted", func() bool { n += 100; sets(c, n); return len(keys) >= left+100 })
		for n += 100; sets(c, n); {
			n += 100
		}
		server.Kill()
		<-server.Done()
		server = proctest.Start(t, "serve", named(far, witnesses, "--durable")...)
		c = connect(t, server)
		if got, err := c.DBSize(ctx).Result(); err != nil || int(got) != len(keys) {
			t.Fatalf("round %d: there are %d keys, %v, want %d", round, got, err, len(keys))
		}
		all := slices.Collect(maps.Keys(keys))
		if err := pipelined(ctx, c, len(all), func(p redis.Pipeliner, i int) { p.Get(ctx, all[i]) }, func(i int, cmd redis.Cmder) error {
			if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != strings.TrimPrefix(all[i], "key ")+" "+value {
				return fmt.Errorf("round %d: %s is %.20q, %w", round, all[i], got, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestADurableServerWorksInNearlyFullMemory: clients overwrite at random, as fast as they can, while what lives is 50, 75 and 90 percent of far memory. Each write
// finds room, since who finds none waits for the cleaner; and after the server is killed all is there.
func TestADurableServerWorksInNearlyFullMemory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	witnesses := startWitnesses(t)
	var nodes []string
	for range 2 {
		nodes = append(nodes, startNode(t, "192MiB").Addr("verbs"))
	}
	args := named(strings.Join(nodes, ","), witnesses, "--durable")
	server := proctest.Start(t, "serve", args...)
	c := connect(t, server)
	value := strings.Repeat("0123456789abcdef", 256)
	const clients = 8
	round := make([]int, 0, 1<<17) // that each key was set in
	set := func(n, r int) error {
		return c.Set(ctx, fmt.Sprint("key ", n), fmt.Sprint(n, " ", r, " ", value), 0).Err()
	}
	var mu sync.Mutex
	each := func(n int, do func(client, i int) error) {
		t.Helper()
		var wg sync.WaitGroup
		for client := range clients {
			wg.Go(func() {
				for i := client; i < n; i += clients {
					if err := do(client, i); err != nil {
						t.Errorf("client %d: %v", client, err)
						return
					}
				}
			})
		}
		if wg.Wait(); t.Failed() {
			t.FailNow()
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, percent := range []float64{50, 75, 90} {
		for proctest.State(t, server).Metrics.Sum("polder_far_live_bytes") < percent/100*(192<<20) {
			from := len(round)
			round = round[:from+800]
			each(800, func(_, i int) error { return set(from+i, 0) })
		}
		order := make([]int, 4_000)
		for i := range order {
			order[i] = r.IntN(len(round))
		}
		each(len(order), func(client, i int) error {
			n := order[i]/clients*clients + client // which no other client sets
			if n >= len(round) {
				return nil
			}
			err := set(n, round[n]+1)
			if err == nil {
				mu.Lock()
				round[n]++
				mu.Unlock()
			}
			return err
		})
		t.Logf("%v percent: %d keys", percent, len(round))
	}
	server.Kill()
	<-server.Done()
	c = connect(t, proctest.Start(t, "serve", args...))
	if err := pipelined(ctx, c, len(round), func(p redis.Pipeliner, n int) { p.Get(ctx, fmt.Sprint("key ", n)) }, func(n int, cmd redis.Cmder) error {
		if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != fmt.Sprint(n, " ", round[n], " ", value) {
			return fmt.Errorf("key %d is %.20q, %w, want %d", n, got, err, round[n])
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// startStandby starts a server that is not ready before the heap's owner is gone.
func startStandby(t *testing.T, command, listen string, args []string) (ready <-chan *child.Process) {
	t.Helper()
	ended := make(chan *child.Process, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*hang)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p, err := child.StartReady(ctx, child.Command{Path: proctest.Binary(), Args: append([]string{command, "--listen", listen, "--admin", "127.0.0.1:0", "--standby"}, args...)})
		if err != nil {
			t.Error(err)
			close(ended)
			return
		}
		ended <- p
	}()
	t.Cleanup(func() { cancel(); <-done })
	return ended
}

// TestAStandbyTakesOver from a server that is stopped. When that goes on it answers nobody, and ends: it has no evidence, of the manifest or of nodes.
func TestAStandbyTakesOver(t *testing.T) {
	t.Run("lease", func(t *testing.T) { takesOver(t) })
	t.Run("fenced", func(t *testing.T) { takesOver(t, "--durable", "--reads", "fenced") })
}

// startDoomed starts a server that another one supersedes, so that it ends badly.
func startDoomed(t *testing.T, args ...string) *child.Process {
	t.Helper()
	p, err := child.StartReady(t.Context(), child.Command{Path: proctest.Binary(), Args: append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// replaced stops a server, as by SIGSTOP, and returns the standby that has taken over and told ready. It ends with the test.
func replaced(t *testing.T, first *child.Process, ready <-chan *child.Process) *child.Process {
	t.Helper()
	if err := first.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var second *child.Process
	select {
	case second = <-ready:
	case <-time.After(2 * hang):
	}
	if second == nil {
		t.Fatal("the standby has not taken over")
	}
	t.Cleanup(func() {
		if err := second.Stop(); err != nil {
			t.Error(err)
		}
	})
	return second
}

func takesOver(t *testing.T, more ...string) {
	t.Parallel()
	ctx := t.Context()
	witnesses := startWitnesses(t)
	_, far := startNodes(t, 3)
	first := startDoomed(t, named(far, witnesses, more...)...)
	c := connect(t, first)
	if err := c.Set(ctx, "who", "first", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Do(ctx, "SAVE").Err(); err != nil { // a checkpoint
		t.Fatal(err)
	}
	if _, errs, code := proctest.Output(t, nil, append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "off"}, named(far, witnesses, more...)...)...); code == 0 || !strings.Contains(errs, "has the heap open") {
		t.Fatalf("a second server of the heap ended with code %d and %q", code, errs)
	}
	ready := startStandby(t, "serve", "127.0.0.1:0", named(far, witnesses, more...))
	conn := c.Conn() // it is open when the server is stopped
	defer conn.Close()
	if err := conn.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	second := replaced(t, first, ready)
	c2 := connect(t, second)
	if who, err := c2.Get(ctx, "who").Result(); err != nil || who != "first" {
		t.Fatalf("the standby has %q, %v", who, err)
	}
	if err := c2.Set(ctx, "who", "second", 0).Err(); err != nil {
		t.Fatal(err)
	}
	// The first one finds a request when it goes on.
	stale := make(chan error, 1)
	go func() {
		who, err := conn.Get(ctx, "who").Result()
		if err == nil {
			err = errors.New("it answered " + who)
		} else {
			err = nil
		}
		stale <- err
	}()
	time.Sleep(50 * time.Millisecond) // it is in the socket, or comes a little later
	if err := first.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-stale; err != nil {
		t.Errorf("a server that was superseded: %v", err)
	}
	select {
	case <-first.Done():
		if first.ExitCode() == 0 || !strings.Contains(first.Stderr(), "another process has taken the heap over") {
			t.Errorf("a server that was superseded ended with code %d: %s", first.ExitCode(), first.Stderr())
		}
	case <-time.After(hang):
		t.Error("a server that was superseded goes on")
	}
	if who, err := c2.Get(ctx, "who").Result(); err != nil || who != "second" {
		t.Errorf("the new server has %q, %v", who, err)
	}
}

// TestADiskBesideNodesSurvivesALossOfPower: the server is killed and all nodes with what they have, several times. What clients were answered is on the
// disk, as WAITAOF says, and is copied to the new nodes.
func TestADiskBesideNodesSurvivesALossOfPower(t *testing.T) {
	t.Parallel() // it waits for leases to end
	ctx := t.Context()
	witnesses := startWitnesses(t)
	dir := t.TempDir()
	listen := []string{keptAddr(), keptAddr()}
	start := func() (server *child.Process, nodes []*child.Process) {
		for _, addr := range listen {
			nodes = append(nodes, proctest.Run(t, "node", "--listen", addr, "--lend", "64MiB"))
		}
		return proctest.Start(t, "serve", named(strings.Join(listen, ","), witnesses, "--durable", "--disk", dir)...), nodes
	}
	n, rounds := 0, 2
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 20
	}
	for round := range rounds {
		server, nodes := start()
		c := connect(t, server)
		if got, err := c.Get(ctx, "transactions").Int(); got != n || err != nil && (err != redis.Nil || n > 0) {
			t.Fatalf("round %d: there are %d transactions, %v, want %d", round, got, err, n)
		}
		keys, fields := keptState(n)
		checkKept(t, c, keys, fields, 0)
		for range 6 {
			if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
				for range 100 {
					n++
					keptTxn(ctx, p, n)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		// What came back from the disk alone has copies at the nodes again.
		var got any
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			wait, err := c.Wait(ctx, 0, 0).Result()
			if err != nil {
				t.Fatal(err)
			}
			if got, err = c.Do(ctx, "WAITAOF", 1, 0, 0).Result(); err != nil {
				t.Fatal(err)
			}
			if wait == 2 && fmt.Sprint(got) == "[1 0]" {
				break
			}
			if time.Since(began) > hang {
				t.Fatalf("round %d: WAIT says %d and WAITAOF %v, want 2 and [1 0]", round, wait, got)
			}
		}
		for _, p := range append(nodes, server) {
			p.Kill()
			<-p.Done()
		}
	}
	// Without the disk nothing is opened, and nothing lost.
	for _, addr := range listen {
		proctest.Run(t, "node", "--listen", addr, "--lend", "64MiB")
	}
	without := append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "off"}, named(strings.Join(listen, ","), witnesses)...)
	if _, errs, code := proctest.Output(t, nil, without...); code == 0 || !strings.Contains(errs, "the disk is not here") {
		t.Fatalf("a server without the disk ended with code %d and %q", code, errs)
	}
	server := proctest.Start(t, "serve", named(strings.Join(listen, ","), witnesses, "--durable", "--disk", dir)...)
	if got, err := connect(t, server).Get(ctx, "transactions").Int(); err != nil || got != n {
		t.Errorf("in the end there are %d transactions, %v, want %d", got, err, n)
	}
}

// TestAHeapWhoseManifestIsInEtcd is taken over by a standby when its server is killed. While etcd is stopped nobody is answered out
// of it, and nothing is lost.
func TestAHeapWhoseManifestIsInEtcd(t *testing.T) {
	t.Parallel() // it waits for leases to end
	ctx := t.Context()
	m := testetcd.New(t, 1)[0]
	holder := "etcd://" + m.Addr + "/c"
	_, far := startNodes(t, 3)
	first := proctest.Start(t, "serve", named(far, holder, "--durable")...)
	c := connect(t, first)
	heap := func(args ...string) (out, errs string, code int) {
		return proctest.Output(t, nil, append([]string{"heap"}, append(args, "--witness", holder)...)...)
	}
	if err := c.Set(ctx, "a", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := heap("ls"); code != 0 || !strings.Contains(out, "orders") || !strings.Contains(out, first.Addr("redis")) {
		t.Errorf("heap ls: %d, %s%s", code, out, errs)
	}
	if out, errs, code := heap("rm", "orders"); code == 0 || !strings.Contains(errs, "has the heap open") {
		t.Errorf("heap rm of a heap that is open: %d, %s%s", code, out, errs)
	}

	m.Pause()
	proctest.Until(t, "the server says that it does not know whether it may answer", func() bool {
		code, text := page("http://" + first.Addr("admin") + "/healthz")
		return code == 503 && strings.Contains(text, "etcd")
	})
	answered := make(chan error, 1)
	go func() { answered <- c.Set(ctx, "b", "2", 0).Err() }()
	if out, errs, code := heap("info", "orders", "--within", "1s"); code == 0 || !strings.Contains(errs, "--within") {
		t.Errorf("heap info without etcd: %d, %s%s", code, out, errs)
	}
	select {
	case err := <-answered:
		t.Errorf("the server answered without evidence: %v", err)
	default:
	}
	m.Continue()
	if err := <-answered; err != nil {
		t.Errorf("when etcd goes on: %v", err)
	}

	ready := startStandby(t, "serve", "127.0.0.1:0", named(far, holder, "--durable"))
	first.Kill()
	<-first.Done()
	second := <-ready
	if second == nil {
		t.Fatal("the standby has not taken over")
	}
	c = connect(t, second)
	for key, want := range map[string]string{"a": "1", "b": "2"} {
		if got, err := c.Get(ctx, key).Result(); err != nil || got != want {
			t.Errorf("%s is %q, %v after the takeover, want %s", key, got, err, want)
		}
	}
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := heap("check", "orders"); code != 0 || !strings.Contains(out, "0 lost or damaged") {
		t.Errorf("heap check: %d, %s%s", code, out, errs)
	}
	if out, errs, code := heap("rm", "orders"); code != 0 {
		t.Errorf("heap rm: %d, %s%s", code, out, errs)
	}
	if out, errs, code := heap("ls"); code != 0 || strings.Contains(out, "orders") {
		t.Errorf("heap ls of nothing: %d, %s%s", code, out, errs)
	}
}

// TestIndexesLeaveRoomForTheNextServer: with the least local memory, more small keys are written than their index has room for there, and the server is
// killed. The next one needs no more memory, takes checkpoints, and ends in good order.
func TestIndexesLeaveRoomForTheNextServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	witnesses := startWitnesses(t)
	lend, counts := "256MiB", map[int]int{8: 100_000, 64: 100_000} // room for what the log may have of two heaps, and for segments that end early
	if os.Getenv("TEST_SOAK") != "" {
		lend, counts = "1GiB", map[int]int{8: 3_000_000} // a directory with as many leaves as it would like leaves no room for a checkpoint
	}
	far := startNode(t, lend).Addr("verbs") + "," + startNode(t, lend).Addr("verbs")
	for size, n := range counts {
		args := append(named(far, witnesses, "--durable"), "--heap", fmt.Sprint("of-", size))
		server := proctest.Start(t, "serve", args...)
		c := connect(t, server)
		value := func(i int) string { return fmt.Sprintf("%0*d", size, i) }
		if err := pipelined(ctx, c, n, func(p redis.Pipeliner, i int) { p.Set(ctx, fmt.Sprint("key ", i), value(i), 0) }, func(i int, cmd redis.Cmder) error {
			return cmd.Err()
		}); err != nil {
			t.Fatal(err)
		}
		server.Kill()
		<-server.Done()
		for range 2 {
			server = proctest.Start(t, "serve", args...)
			c = connect(t, server)
			if err := pipelined(ctx, c, n, func(p redis.Pipeliner, i int) { p.Get(ctx, fmt.Sprint("key ", i)) }, func(i int, cmd redis.Cmder) error {
				if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != value(i) {
					return fmt.Errorf("key %d is %q, %w", i, got, err)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if err := server.Stop(); err != nil {
				t.Errorf("the end of a server with many keys of %d bytes: %v", size, err)
			}
		}
	}
}

// TestFarMemoryFullOfTheSmallestKeys: a durable server with the least budget takes keys until it refuses them, and no client waits in vain. The server that
// follows it starts, has each key that was answered, and what is deleted there makes room.
func TestFarMemoryFullOfTheSmallestKeys(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	witnesses := startWitnesses(t)
	far := startNode(t, "32MiB").Addr("verbs") + "," + startNode(t, "32MiB").Addr("verbs")
	args := named(far, witnesses, "--durable")
	server := proctest.Start(t, "serve", args...)
	const clients, batch = 4, 64
	var next atomic.Int64
	state := map[int]bool{} // whether a key is there
	var mu sync.Mutex
	// fill sets new keys until each client has been refused some, and returns how many had room.
	fill := func(c *redis.Client) (n int) {
		t.Helper()
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				for full := false; !full; {
					from := int(next.Add(batch)) - batch
					cmds, _ := c.Pipelined(ctx, func(p redis.Pipeliner) error {
						for i := range batch {
							p.Set(ctx, fmt.Sprint(from+i), "v", 0)
						}
						return nil
					})
					mu.Lock()
					for i, cmd := range cmds {
						switch err := cmd.Err(); {
						case err == nil:
							n++
							state[from+i] = true
						case strings.HasPrefix(err.Error(), "OOM "):
							full = true
						default:
							full = true
							if !t.Failed() {
								t.Errorf("SET %d: %v", from+i, err)
							}
						}
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		return n
	}
	all := fill(connect(t, server))
	for round := range 2 {
		server.Kill()
		<-server.Done()
		server = proctest.Start(t, "serve", args...)
		c := connect(t, server)
		if got, err := c.DBSize(ctx).Result(); err != nil || int(got) != len(state) {
			t.Fatalf("round %d: there are %d keys, %v, want %d", round, got, err, len(state))
		}
		end := int(next.Load())
		if err := pipelined(ctx, c, end, func(p redis.Pipeliner, i int) { p.Exists(ctx, fmt.Sprint(i)) }, func(i int, cmd redis.Cmder) error {
			if n, err := cmd.(*redis.IntCmd).Result(); err != nil || n == 1 != state[i] {
				return fmt.Errorf("round %d: EXISTS %d is %d, %w, want %v", round, i, n, err, state[i])
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if round > 0 {
			break
		}
		if err := pipelined(ctx, c, end/2, func(p redis.Pipeliner, i int) { p.Del(ctx, fmt.Sprint(2*i)) }, func(i int, cmd redis.Cmder) error {
			if err := cmd.Err(); err != nil {
				return fmt.Errorf("DEL %d: %w", 2*i, err)
			}
			delete(state, 2*i)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		more := 0
		pooltest.Eventually(t, "there is room again for an eighth of all", func() bool { more += fill(c); return more > all/8 })
	}
	if err := server.Stop(); err != nil {
		t.Errorf("the end of a server whose far memory is full: %v", err)
	}
}
