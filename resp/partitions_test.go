package resp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far"
	"polder/far/disk"
	"polder/partition"
	"polder/resp/forward"
	"polder/resp/keyspace"
)

// cluster is a few servers that share partitions, each of which is a heap of its own.
type cluster struct {
	t       *testing.T
	now     atomic.Pointer[partition.Map]
	servers []*Server
	addrs   []string
	local   int64
	dirs    []string      // of disks, by partition
	stores  []*disk.Store // that are open
	heaps   []*far.Heap
	links   *forward.Links
}

// startCluster starts servers, among which the partitions are dealt out in turn.
func startCluster(t *testing.T, servers, partitions int, local int64) *cluster {
	t.Helper()
	return startClusterOver(t, servers, partitions, local, Config{}, forward.Config{})
}

// startClusterOver is startCluster with servers of a kind, and with links of a kind between them.
func startClusterOver(t *testing.T, servers, partitions int, local int64, cfg Config, links forward.Config) *cluster {
	t.Helper()
	c := &cluster{t: t, local: local, stores: make([]*disk.Store, partitions), heaps: make([]*far.Heap, partitions)}
	m := &partition.Map{Partitions: partitions, Owner: make([]string, partitions), Next: make([]string, partitions), Epoch: 1}
	for p := range partitions {
		m.Owner[p] = clusterID(p % servers)
		c.dirs = append(c.dirs, t.TempDir())
	}
	for i := range servers {
		m.Servers = append(m.Servers, partition.Server{ID: clusterID(i)})
	}
	c.now.Store(m)
	c.links = forward.New(links)
	t.Cleanup(c.links.Close)
	for i := range servers {
		cfg.Logger, cfg.OpTimeout, cfg.Loops, cfg.MaxBulk = slog.New(slog.DiscardHandler), testTimeout, []int{1, -1}[i%2], 1<<20 // as startRedis
		cfg.Cluster = &Cluster{ID: clusterID(i), Map: c.now.Load, Doubt: func() {}, Links: c.links}
		srv, err := NewLoading(cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.servers = append(c.servers, srv)
		c.addrs = append(c.addrs, serve(t, srv, func() error {
			for p, owner := range c.now.Load().Owner {
				if owner == clusterID(i) {
					c.close(i, p)
				}
			}
			return nil
		}))
		m.Servers[i].Addr = c.addrs[i]
	}
	for p := range partitions {
		c.open(p%servers, p)
	}
	return c
}

func clusterID(i int) string { return fmt.Sprintf("%040x", i+1) }

func (c *cluster) open(server, p int) { c.openAs(server, p, Partition{}) }

func (c *cluster) openAs(server, p int, how Partition) {
	c.t.Helper()
	var err error
	if c.stores[p], err = disk.Open(disk.Config{Dir: c.dirs[p], SegmentSize: 128 << 10, Size: 64 << 20}); err != nil {
		c.t.Fatal(err)
	}
	if c.heaps[p], err = far.Open(context.Background(), c.stores[p], far.Config{Local: c.local}); err != nil {
		c.t.Fatal(err)
	}
	if how.Journal.Log == nil {
		how.Journal = keyspace.Journal{Dir: filepath.Join(c.dirs[p], "journal"), Durable: true}
	}
	if err = c.servers[server].AddPartition(context.Background(), p, c.heaps[p], how); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) close(server, p int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := c.servers[server].RemovePartition(ctx, p); err != nil {
		c.t.Errorf("partition %d does not leave server %d: %v", p, server, err)
	}
	if err := errors.Join(c.heaps[p].Close(), c.stores[p].Close()); err != nil {
		c.t.Error(err)
	}
}

// move gives a partition to another server.
func (c *cluster) move(p, to int) {
	c.t.Helper()
	was := c.now.Load()
	from := 0
	for was.Owner[p] != clusterID(from) {
		from++
	}
	if from == to {
		return
	}
	c.close(from, p)
	m := *was
	m.Owner = append([]string(nil), was.Owner...)
	m.Owner[p] = clusterID(to)
	m.Epoch++
	c.now.Store(&m)
	c.open(to, p)
}

// keyIn is a key of a partition.
func (c *cluster) keyIn(p int, name string) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("%s-%d", name, i)
		if partition.Of(partition.Slot([]byte(key)), len(c.heaps)) == p {
			return key
		}
	}
}

// TestAnyServerAnswersAPlainClient: what it does not have itself it has from the server that does.
func TestAnyServerAnswersAPlainClient(t *testing.T) {
	c := startCluster(t, 3, 8, roomy/8)
	for i, addr := range c.addrs {
		cl := dial(t, addr)
		for k := range 60 {
			key := fmt.Sprintf("%d:%d", i, k)
			if got := cl.do("SET", key, key).String(); got != "+OK" {
				t.Fatalf("SET: got %s", got)
			}
		}
		cl.do("HELLO", "3")
		for j := range i + 1 {
			for k := range 60 {
				key := fmt.Sprintf("%d:%d", j, k)
				if got := cl.do("GET", key).String(); got != strconv.Quote(key) {
					t.Fatalf("GET: got %s", got)
				}
			}
		}
		if got := cl.do("GET", c.keyIn(0, "absent"+addr)).line; got != "_" {
			t.Errorf("an absent key: got %s, want RESP3's null", got)
		}
		if got := cl.words("INCR 0:1"); !strings.HasPrefix(got, "-ERR value is not an integer") {
			t.Errorf("an error that another server has: got %s", got)
		}
	}
	forwarded, keys, all := int64(0), int64(0), map[string]int{}
	for i, srv := range c.servers {
		st := srv.Stats()
		forwarded += st.Forwarded
		keys += st.Keys
		cl := dial(t, c.addrs[i])
		if got := cl.words("DBSIZE"); got != fmt.Sprintf(":%d", st.Keys) {
			t.Errorf("DBSIZE: got %s, want %d", got, st.Keys)
		}
		n := len(cl.do("KEYS", "*").elems)
		for cursor := "0"; ; {
			r := cl.do("SCAN", cursor, "COUNT", "7")
			for _, e := range r.elems[1].elems {
				all[e.bulk]++
				n--
			}
			if cursor = r.elems[0].bulk; cursor == "0" {
				break
			}
		}
		if n != 0 {
			t.Errorf("KEYS has %d keys more than SCAN", n)
		}
		if got := cl.do("RANDOMKEY"); all[got.bulk] == 0 {
			t.Errorf("RANDOMKEY: got %s", got)
		}
	}
	if forwarded == 0 || keys != 180 || len(all) != 180 {
		t.Errorf("%d commands were forwarded, %d keys, %d names, want some, 180, 180", forwarded, keys, len(all))
	}
	for _, addr := range c.addrs {
		if got := dial(t, addr).words("FLUSHALL"); got != "+OK" {
			t.Errorf("FLUSHALL: got %s", got)
		}
	}
	for i, srv := range c.servers {
		if n := srv.Stats().Keys; n != 0 {
			t.Errorf("server %d has %d keys after FLUSHALL", i, n)
		}
	}
}

// TestClientsOfAClusterAreTold: who has asked for the map is told where a key is.
func TestClientsOfAClusterAreTold(t *testing.T) {
	c := startCluster(t, 2, 4, roomy/8)
	here, there, also := c.keyIn(0, "a"), c.keyIn(1, "a"), c.keyIn(1, "b")
	slot := partition.Slot([]byte(there))
	moved := fmt.Sprintf("-MOVED %d %s", slot, c.addrs[1])
	host, port, _ := strings.Cut(c.addrs[1], ":")
	cl := dial(t, c.addrs[0])
	crossed := "-" + string(errCrossSlot)
	for _, row := range [][2]string{
		{"SET " + there + " 1", "+OK"}, // it is forwarded
		{"MSET " + there + " 1 " + here + " 2", crossed},
		{"MSET {" + there + "}x 1 {" + there + "}y 2", "+OK"},
		{"CLUSTER KEYSLOT " + there, fmt.Sprintf(":%d", slot)},
		{"CLUSTER COUNTKEYSINSLOT " + fmt.Sprint(slot), ":0"}, // the other server has them
		{"CLUSTER MYID", strconv.Quote(clusterID(0))},
		{"GET " + there, `"1"`},
		{"WATCH " + there, "+OK"}, {"UNWATCH", "+OK"},
		{"WAIT 0 0", ":0"}, {"WAITAOF 1 0 0", "[:1 :0]"}, {"SYNC", "-" + string(errNoReplicas)},
		{"MULTI", "+OK"}, {"INCR " + there, "+QUEUED"}, {"INCR " + there, "+QUEUED"}, {"EXEC", "[:2 :3]"},
		{"MULTI", "+OK"}, {"INCR " + there, "+QUEUED"}, {"INCR " + also, crossed}, {"EXEC", "-" + string(errExecAbort)},
		{"MULTI", "+OK"}, {"DBSIZE", "-" + string(errWholeHeap)}, {"EXEC", "-" + string(errExecAbort)},
		{"MULTI", "+OK"}, {"PING", "+QUEUED"}, {"EXEC", "[+PONG]"},
		{"READONLY", "+OK"},
		{"GET " + there, moved}, {"WATCH " + there, moved}, {"GET " + here, "nil"},
		{"MULTI", "+OK"}, {"INCR " + there, moved}, {"EXEC", "-" + string(errExecAbort)},
		{"WATCH " + here, "+OK"}, {"MULTI", "+OK"}, {"INCR " + here, "+QUEUED"}, {"EXEC", "[:1]"},
		{"WATCH " + here, "+OK"}, {"INCR " + here, ":2"}, {"MULTI", "+OK"}, {"INCR " + here, "+QUEUED"}, {"EXEC", "*nil"},
		{"WATCH " + here, "+OK"}, {"WATCH " + c.keyIn(2, "a"), crossed}, {"UNWATCH", "+OK"},
		{"READWRITE", "+OK"}, {"ASKING", "+OK"},
		{"GET " + there, `"3"`},
		{"CLUSTER SLOTS", fmt.Sprintf(`[[:0 :4095 [%[1]q :%[2]s %[3]q []]] [:8192 :12287 [%[1]q :%[2]s %[3]q []]] [:4096 :8191 [%[4]q :%[5]s %[6]q []]] [:12288 :16383 [%[4]q :%[5]s %[6]q []]]]`,
			host, c.addrs[0][len(host)+1:], clusterID(0), host, port, clusterID(1))},
		{"GET " + there, moved},
	} {
		if got := cl.words(row[0]); got != row[1] {
			t.Errorf("%s: got %s, want %s", row[0], got, row[1])
		}
	}
	if got := dial(t, c.addrs[1]).words("CLUSTER COUNTKEYSINSLOT " + fmt.Sprint(slot)); got != ":3" {
		t.Errorf("COUNTKEYSINSLOT: got %s, want 3", got)
	}
	for _, row := range [][2]string{{"INFO cluster", "cluster_enabled:1"}, {"INFO server", "redis_mode:cluster"}, {"INFO persistence", "loading:0"}, {"INFO memory", "maxmemory_human:16.00M"}, {"CONFIG SET maxmemory 1", "divided among the partitions"}, {"CLUSTER INFO", "cluster_slots_ok:16384"}, {"CLUSTER NODES", "myself,master - 0 0 1 connected 0-4095 8192-12287"}, {"CLUSTER SHARDS", host}} {
		if got := cl.words(row[0]); !strings.Contains(got, row[1]) {
			t.Errorf("%s: got %s, want %s in it", row[0], got, row[1])
		}
	}
	_, alone := startServer(t, roomy, Config{})
	for _, cmd := range []string{"CLUSTER SLOTS", "CLUSTER INFO", "READONLY", "ASKING"} {
		if got := dial(t, alone).words(cmd); got != "-"+string(errNoCluster) {
			t.Errorf("%s: a server alone says %s", cmd, got)
		}
	}
}

// TestClientsAreNotSentToAndFro: a server to which a partition is on its way forwards what it is asked, and one that leaves tells all clients.
func TestClientsAreNotSentToAndFro(t *testing.T) {
	c := startCluster(t, 2, 2, roomy/8)
	there := c.keyIn(1, "a")
	moved := fmt.Sprintf("-MOVED %d %s", partition.Slot([]byte(there)), c.addrs[1])
	said := func(when, cmd, want string, before ...string) {
		t.Helper()
		cl := dial(t, c.addrs[0])
		for _, b := range before {
			cl.words(b)
		}
		if got := cl.words(cmd); got != want {
			t.Errorf("%s, after %q: %s: got %s, want %s", when, before, cmd, got, want)
		}
	}
	change := func(f func(m *partition.Map)) {
		m := *c.now.Load()
		m.Servers, m.Next = append([]partition.Server(nil), m.Servers...), append([]string(nil), m.Next...)
		f(&m)
		c.now.Store(&m)
	}
	said("at rest", "GET "+there, moved, "CLUSTER SLOTS")
	said("at rest", "GET "+there, "nil", "CLUSTER SLOTS", "RESET")
	change(func(m *partition.Map) { m.Next[1] = clusterID(0) })
	said("on its way here", "GET "+there, "nil", "CLUSTER SLOTS")
	said("on its way here", "INCR "+there, "+QUEUED", "CLUSTER SLOTS", "MULTI")
	said("on its way here", "GET "+there, moved, "READONLY")
	change(func(m *partition.Map) { m.Next[1] = "" })
	said("at rest", "GET "+there, "nil")
	change(func(m *partition.Map) { m.Servers[0].Leaving = true })
	said("when this server leaves", "GET "+there, moved)
	change(func(m *partition.Map) { m.Servers = m.Servers[1:] })
	said("when this server has left", "GET "+there, moved)
}

// TestPartitionsMoveUnderLoad: clients of both kinds see every one of their changes, once and in order, while what they are about
// goes from server to server; with a local budget that has them wait for far memory.
func TestPartitionsMoveUnderLoad(t *testing.T) {
	c := startCluster(t, 3, 6, far.MinLocal)
	var wg sync.WaitGroup
	var end atomic.Bool
	counted := new(atomic.Int64)
	for i := range 9 {
		cl := dial(t, c.addrs[i%3])
		wg.Go(func() {
			key := c.keyIn(i%6, fmt.Sprintf("counter%d", i))
			filler := strings.Repeat("x", 2000)
			for n := int64(1); !end.Load(); n++ {
				cl.send(encode("INCR", key) + encode("SET", fmt.Sprintf("%d-%d", i, n%500), filler) + encode("GET", fmt.Sprintf("%d-%d", i, (n+250)%500)) +
					encode("MULTI") + encode("APPEND", "{"+key+"}log", strconv.FormatInt(n%10, 10)) + encode("INCR", "{"+key+"}") + encode("EXEC"))
				want := []string{fmt.Sprintf(":%d", n), "+OK", "", "+OK", "+QUEUED", "+QUEUED", fmt.Sprintf("[:%d :%d]", n, n)}
				for j, w := range want {
					r, err := readReply(cl.r)
					if err != nil {
						t.Errorf("client %d: %v", i, err)
						return
					}
					if got := r.String(); w != "" && got != w || w == "" && got != "nil" && got != strconv.Quote(filler) {
						t.Errorf("client %d, round %d: reply %d is %.100s, want %s", i, n, j, got, w)
						return
					}
				}
				counted.Add(1)
			}
		})
	}
	for round := range 30 {
		c.move(round%6, (round/2+round)%3)
		before := counted.Load()
		eventually(t, "work goes on after a move", func() bool { return counted.Load() > before+9 || t.Failed() })
	}
	end.Store(true)
	wg.Wait()
}

// TestAMoveBreaksWatches: what was watched may have changed at the other server.
func TestAMoveBreaksWatches(t *testing.T) {
	c := startCluster(t, 2, 2, roomy/8)
	cl := dial(t, c.addrs[0])
	key := c.keyIn(0, "k")
	for _, back := range []bool{false, true} {
		if got := cl.words("WATCH " + key); got != "+OK" {
			t.Fatalf("WATCH: got %s", got)
		}
		c.move(0, 1)
		if back {
			dial(t, c.addrs[1]).words("SET " + key + " other")
			c.move(0, 0)
		}
		cl.words("MULTI")
		cl.words("SET " + key + " mine")
		want := "*nil"
		if got := cl.words("EXEC"); got != want {
			t.Errorf("EXEC after a move (and back: %v): got %s, want %s", back, got, want)
		}
		c.move(0, 0)
	}
	// To watch it once more does not mend that.
	cl.words("WATCH " + key)
	c.move(0, 1)
	c.move(0, 0)
	for _, row := range [][2]string{{"WATCH " + key, "+OK"}, {"MULTI", "+OK"}, {"SET " + key + " mine", "+QUEUED"}, {"EXEC", "*nil"},
		{"MULTI", "+OK"}, {"SET " + key + " mine", "+QUEUED"}, {"EXEC", "[+OK]"}} {
		if got := cl.words(row[0]); got != row[1] {
			t.Errorf("%s: got %s, want %s", row[0], got, row[1])
		}
	}
	if n := c.servers[0].parts[0].Load().WatchedKeys(); n != 0 {
		t.Errorf("%d keys are watched by nobody", n)
	}
}

// TestFlushWaitsForOthers: a command about all partitions that has to wait, behind replies of others that are yet to be sent, is
// answered in its place.
func TestFlushWaitsForOthers(t *testing.T) {
	c := startCluster(t, 1, 4, roomy/8)
	var wg, holding sync.WaitGroup
	var end atomic.Bool
	held := &c.servers[0].parts[2].Load().Stripes[7].Mu
	holding.Go(func() {
		for !end.Load() {
			held.Lock()
			time.Sleep(time.Millisecond)
			held.Unlock()
			time.Sleep(time.Millisecond)
		}
	})
	for i := range 8 {
		cl := dial(t, c.addrs[0])
		wg.Go(func() {
			for n := range 60 {
				cl.send(encode("SET", fmt.Sprint(i), "v") + encode("ECHO", fmt.Sprint(n)) + encode("FLUSHALL") + encode("ECHO", "last"))
				for _, want := range []string{"+OK", strconv.Quote(fmt.Sprint(n)), "+OK", `"last"`} {
					if r, err := readReply(cl.r); err != nil || r.String() != want {
						t.Errorf("got %v, %v, want %s", r, err, want)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	end.Store(true)
	holding.Wait()
}

// slowEvidence is there when the test says so.
type slowEvidence struct{ asked, given chan struct{} }

func (slowEvidence) Ask() uint64 { return 1 }

func (e slowEvidence) Shown(uint64) bool {
	e.asked <- struct{}{}
	<-e.given
	return true
}

// TestAPartitionStaysUntilItsRepliesAreSent: a reply that may not be sent yet keeps the partition, and no command begins meanwhile.
func TestAPartitionStaysUntilItsRepliesAreSent(t *testing.T) {
	c := startCluster(t, 2, 2, roomy/8)
	key := c.keyIn(0, "k")
	dial(t, c.addrs[0]).words("SET " + key + " v")
	c.close(0, 0)
	ev := slowEvidence{make(chan struct{}), make(chan struct{})}
	c.openAs(0, 0, Partition{Evidence: ev})
	for _, addr := range c.addrs { // by either kind of driver: the other server forwards
		cl := dial(t, addr)
		cl.send(encode("GET", key))
		<-ev.asked
		left := make(chan struct{})
		go func() {
			defer close(left)
			if err := c.servers[0].RemovePartition(t.Context(), 0); err != nil {
				t.Error(err)
			}
		}()
		eventually(t, "the partition is leaving", func() bool { return c.servers[0].parts[0].Load() == nil })
		if c.servers[0].use(0) != nil {
			t.Error("a partition that leaves is used")
		}
		select {
		case <-left:
			t.Error("the partition has left before its reply was sent")
		case <-time.After(100 * time.Millisecond):
		}
		ev.given <- struct{}{}
		if got := cl.recv().String(); got != `"v"` {
			t.Errorf("the reply is %s", got)
		}
		<-left
		c.close(0, 0)
		c.openAs(0, 0, Partition{Evidence: ev})
	}
	c.close(0, 0)
	c.open(0, 0)
}

// TestAPartitionThatLeavesIsNotUsed: who has found it just before is told that it is not there.
func TestAPartitionThatLeavesIsNotUsed(t *testing.T) {
	c := startCluster(t, 1, 1, roomy/8)
	at := c.servers[0].parts[0].Load()
	at.Leave(t.Context())
	if c.servers[0].use(0) != nil {
		t.Error("it is used")
	}
	left := make(chan struct{})
	go func() {
		at.Leave(t.Context())
		close(left)
	}()
	select {
	case <-left:
	case <-time.After(testTimeout):
		t.Error("who was told that it is not there uses it")
	}
}

// TestAScanDoesNotFetchForOthers: what a client has pipelined behind a scan that waits for far memory is of no partition yet.
func TestAScanDoesNotFetchForOthers(t *testing.T) {
	c := startCluster(t, 1, 2, far.MinLocal)
	cl := dial(t, c.addrs[0])
	value := strings.Repeat("v", 4000)
	const keys = 6000
	for i := 0; i < keys; i += 50 {
		sets := ""
		for j := range 50 {
			sets += encode("SET", fmt.Sprint(i+j), value)
		}
		cl.send(sets)
		for range 50 {
			if got := cl.recv().String(); got != "+OK" {
				t.Fatal(got)
			}
		}
	}
	seen := 0
	for cursor := "0"; ; {
		cl.send(encode("SCAN", cursor, "COUNT", "500") + encode("GET", "1") + encode("EXISTS", "2") + encode("KEYS", "nothing") + encode("GET", "3"))
		r := cl.recv()
		seen += len(r.elems[1].elems)
		for _, want := range []string{strconv.Quote(value), ":1", "[]", strconv.Quote(value)} {
			if got := cl.recv().String(); got != want {
				t.Fatalf("got %.50s, want %.50s", got, want)
			}
		}
		if cursor = r.elems[0].bulk; cursor == "0" {
			break
		}
	}
	if seen < keys {
		t.Errorf("SCAN has found %d of %d keys", seen, keys)
	}
}

// TestEveryCommandIsAnsweredByAServerOfPartitions: whatever the arguments, alone and in a transaction, with and without partitions here.
func TestEveryCommandIsAnsweredByAServerOfPartitions(t *testing.T) {
	c := startCluster(t, 2, 2, roomy/8)
	c.move(0, 1) // so that the first has none
	key := c.keyIn(1, "k")
	var all [][]string
	for name, cmd := range commandTable().By {
		words := [][]string{{name}}
		for sub := range cmd.Subs {
			words = append(words, []string{name, sub})
		}
		for _, w := range words {
			for _, args := range [][]string{nil, {key}, {"0"}, {key, "1"}, {key, key, "1"}, {"1", "1", "1"}, {key, "1", "1", key}} {
				all = append(all, append(append([]string(nil), w...), args...))
			}
		}
	}
	for _, addr := range c.addrs {
		for _, args := range all {
			switch args[0] {
			case "quit", "monitor", "sync", "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe", "client": // no reply, more than one, or others must wait
				continue
			}
			cl := dial(t, addr)
			cl.send(encode(args...) + encode("RESET") + encode("MULTI") + encode(args...) + encode("EXEC") + encode("RESET"))
			for resets := 0; resets < 2; {
				r, err := readReply(cl.r)
				if err != nil {
					t.Fatalf("%q: %v", args, err)
				}
				if r.line == "+RESET" {
					resets++
				}
			}
			cl.c.Close()
		}
	}
}

// TestWhatIsSaidOfOtherPartitionsBreaksNoWatch, be they at this server or at another one.
func TestWhatIsSaidOfOtherPartitionsBreaksNoWatch(t *testing.T) {
	c := startCluster(t, 2, 4, roomy/8)
	watched, beside, away := c.keyIn(0, "k"), c.keyIn(2, "k"), c.keyIn(1, "k")
	cl := dial(t, c.addrs[0])
	for _, key := range []string{beside, away} {
		expect(t, cl, "WATCH "+watched, "+OK")
		expect(t, cl, "SET "+key+" v", "+OK")
		expect(t, cl, "SPUBLISH "+key+" m", ":0")
		expect(t, cl, "MULTI", "+OK")
		expect(t, cl, "SET "+watched+" v", "+QUEUED")
		expect(t, cl, "EXEC", "[+OK]")
	}
}
