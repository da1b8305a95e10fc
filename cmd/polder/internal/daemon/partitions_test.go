package daemon

import (
	"bufio"
	"context"
	"crypto/tls"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/far"
	"polder/far/named"
	"polder/holder/witness"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/internal/testcert"
	"polder/partition"
	"polder/resp/forward"
)

// TestPartitionsStayWithinTheBudget: those that are open leave room for those that are being opened, and get it when they have gone.
func TestPartitionsStayWithinTheBudget(t *testing.T) {
	const local, partitions = 64 << 20, 8
	s := &shared{least: local / partitions, open: map[int]*sharedPart{}}
	s.cfg.Local = local
	for number := range 2 {
		h, err := far.NewHeap(far.NewMemStore(1<<20, 64), far.Config{Local: s.least, MaxLocal: local})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		s.open[number] = &sharedPart{opened: memory{heap: h}}
	}
	for _, c := range []struct {
		opening int
		want    int64
	}{{0, local / 2}, {1, local / 3}, {2, local / 4}, {6, s.least}, {14, s.least}, {0, local / 2}} {
		s.opening = c.opening
		if err := s.divide(t.Context()); err != nil {
			t.Fatal(err)
		}
		for number, part := range s.open {
			if got := part.opened.heap.Local(); got != c.want {
				t.Errorf("while %d are being opened: partition %d has %d bytes, want %d", c.opening, number, got, c.want)
			}
		}
	}
}

// TestBudgetsFollowMisses: what misses most for its memory gets more, up to where all miss as often for each byte, and load that wavers moves nothing.
func TestBudgetsFollowMisses(t *testing.T) {
	const local, least = 64 << 20, 4 << 20
	// misses of a working set of that many bytes, used at that rate.
	misses := func(rate, set, local float64) float64 { return rate * max(0, 1-local/set) }
	budgets := func(logs []float64) (out []float64) {
		all := 0.0
		for _, l := range logs {
			all += math.Exp(l)
		}
		for _, l := range logs {
			out = append(out, least+(local-float64(len(logs))*least)*math.Exp(l)/all)
		}
		return out
	}
	run := func(steps int, rate func(step, part int) float64) []float64 {
		logs := make([]float64, 4)
		for step := range steps {
			has := budgets(logs)
			missed := make([]float64, len(logs))
			for i := range missed {
				missed[i] = misses(rate(step, i), 48<<20, has[i])
			}
			logs = reweighed(missed, has, logs)
		}
		return budgets(logs)
	}
	hot := func(which int) func(int, int) float64 {
		return func(_, i int) float64 {
			if i == which {
				return 100_000
			}
			return 100
		}
	}
	if b := run(10, hot(2)); b[2] < local/2 {
		t.Errorf("20 seconds after it has become hot, a partition has %.0f bytes of %d", b[2], local)
	}
	if b := run(60, func(step, i int) float64 { return hot(step/30)(0, i) }); b[1] < local/2 || b[0] > local/8 {
		t.Errorf("a minute after another one has become hot, it has %.0f bytes of %d, and the first %.0f", b[1], local, b[0])
	}
	r := rand.New(rand.NewPCG(1, 2))
	if b := run(100, func(int, int) float64 { return 10_000 * (0.9 + 0.2*r.Float64()) }); slices.Min(b) != slices.Max(b) {
		t.Errorf("under a load that wavers, budgets become %.0f", b)
	}
	if b := run(10, func(_, i int) float64 { return float64(100 * i) }); slices.Min(b) != slices.Max(b) {
		t.Errorf("with next to no load, budgets become %.0f", b)
	}
}

// TestLinksToServersThatHaveLeftAreClosed, and those to others are kept.
func TestLinksToServersThatHaveLeftAreClosed(t *testing.T) {
	s := &shared{links: forward.New(forward.Config{}), made: make(chan struct{})}
	t.Cleanup(s.links.Close)
	m := &partition.Map{}
	var closed [2]chan struct{}
	for i := range closed {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lis.Close() })
		ended := make(chan struct{})
		closed[i] = ended
		go func() {
			defer close(ended)
			c, err := lis.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			for b := make([]byte, 1<<10); ; { // every command comes at once
				n, err := c.Read(b)
				if err != nil {
					return
				}
				for range strings.Count(string(b[:n]), "*") {
					_, _ = c.Write([]byte("+OK\r\n"))
				}
			}
		}()
		m.Servers = append(m.Servers, partition.Server{ID: strings.Repeat(string(rune('a'+i)), 40), Addr: lis.Addr().String()})
		if got, err := s.links.Do(t.Context(), lis.Addr().String(), 2, nil, [][]byte{[]byte("PING")}); err != nil || string(got) != "+OK\r\n" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	s.changed(m)
	s.changed(&partition.Map{Servers: m.Servers[1:]})
	<-closed[0]
	select {
	case <-closed[1]:
		t.Error("the link to a server that stays was closed")
	default:
	}
}

// TestTheLoadOfAServerIsShown: the sum over its partitions, when it is known of all of them.
func TestTheLoadOfAServerIsShown(t *testing.T) {
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	m, err := partition.Decode([]byte(`{"magic":"polder partitions","format":1,"partitions":4,"servers":[{"id":"` + a + `","addr":"a:1"},{"id":"` + b + `","addr":"b:1"}],` +
		`"owner":[0,0,0,1],"next":[-1,-1,-1,-1],"load":"egF6AA=="}`)) // 100 ms in a second, idle, 100 ms, unknown
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{a: "3 of 4 partitions, load 20.5%", b: "1 of 4 partitions, load not known yet"} {
		if got := PartitionsOf(m, id); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestServersOfASharedHeapForwardToADoorWithCertificates: a server is let in with its own, which is of the nodes' authority. A server of
// another kind lets in clients alone.
func TestServersOfASharedHeapForwardToADoorWithCertificates(t *testing.T) {
	nodes, clients := testcert.NewAuthority(t, "nodes"), testcert.NewAuthority(t, "clients")
	cert, key := nodes.Issue(t, "server")
	certs, err := listen.Load(listen.Files{Cert: cert, Key: key, CA: [3]string{listen.Node: nodes.File, listen.Client: clients.File}})
	if err != nil {
		t.Fatal(err)
	}
	for heap, want := range map[string]string{"orders": "+OK\r\n", "": ""} {
		c := &operator.Control{Security: listen.Security{Certificates: certs}}
		p := newProcess("serve", c)
		if err := p.listen(ServeConfig{Control: c, Listen: "127.0.0.1:0", BorrowConfig: BorrowConfig{Heap: heap}}); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c, err := p.redis.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			r := bufio.NewReader(c)
			for {
				line, err := r.ReadString('\n')
				if err != nil {
					return
				}
				if strings.HasPrefix(line, "*") {
					_, _ = c.Write([]byte("+OK\r\n"))
				}
			}
		}()
		s := &shared{p: p}
		links := forward.New(forward.Config{Dial: s.dial})
		got, err := links.Do(t.Context(), p.addrs[ServiceRedis], 2, nil, [][]byte{[]byte("PING")})
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("with a heap named %q: got %q, %v, want %q", heap, got, err, want)
		}
		links.Close()
		_ = p.redis.Close()
		<-ended
	}
}

// TestAServerAwaitsItsShare, once: what comes to it later does not make it unready, unless the others have dropped it meanwhile.
func TestAServerAwaitsItsShare(t *testing.T) {
	s := &shared{id: "b"}
	a, b, old := partition.Server{ID: "a", Addr: "a:1"}, partition.Server{ID: "b", Addr: "b:1"}, partition.Server{ID: "c", Addr: "b:1"}
	for _, c := range []struct {
		about       string
		servers     []partition.Server
		owner, next string // of each partition
		want        string // of the error, "" for none
	}{
		{"before it is in the map", []partition.Server{a}, "aaaa", "    ", "do not know"},
		{"all are yet to come", []partition.Server{a, b}, "aaaa", "bb  ", "has 0 partitions, and 2 are yet to come"},
		{"some are yet to come", []partition.Server{a, b}, "baaa", " b  ", "has 1 partitions, and 1 are yet to come"},
		{"those of the one before are not given away", []partition.Server{a, b, old}, "bcca", "    ", "was at b:1 before"},
		{"it has its share", []partition.Server{a, b}, "bbaa", "    ", ""},
		{"another one comes, because of load", []partition.Server{a, b}, "bbaa", "  b ", ""},
		{"it has been dropped", []partition.Server{a}, "aaaa", "    ", "do not know"},
		{"it is there again", []partition.Server{a, b}, "aaaa", "bb  ", "has 0 partitions, and 2"},
		{"it has its share again", []partition.Server{a, b}, "bbaa", "    ", ""},
		{"it has been dropped and joined again, which nobody looked at", []partition.Server{a, b}, "aaaa", "bb  ", "has 0 partitions, and 2"},
		{"there are fewer partitions than servers", []partition.Server{a, b}, "a", " ", ""},
	} {
		m := &partition.Map{Partitions: len(c.owner), Servers: c.servers, Owner: strings.Split(c.owner, ""), Next: strings.Split(strings.ReplaceAll(c.next, " ", "-"), "")}
		if err := s.awaits(m); err == nil && c.want != "" || err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.about, err, c.want)
		}
	}
}

// TestAPartitionIsLookedAtWhileItIsClosed: servers join and leave, and metrics, status, health and INFO are asked for all the time.
func TestAPartitionIsLookedAtWhileItIsClosed(t *testing.T) {
	far, holders := startHolders(t)
	serve := func(t *testing.T) (redisAddr, admin string) {
		_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
			cfg := DefaultServe()
			cfg.Control, cfg.Listen, cfg.Local, cfg.Far = c, "127.0.0.1:0", 64<<20, far
			cfg.Heap, cfg.Witness, cfg.Partitions = "orders", holders, 4
			return RunServe(ctx, cfg)
		})
		return address(t, ready, ServiceRedis), address(t, ready, ServiceAdmin)
	}
	addr, admin := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for ctx.Err() == nil {
			get(t, "http://"+admin+"/metrics")
			get(t, "http://"+admin+"/healthz")
		}
	})
	wg.Go(func() {
		c := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { _ = c.Close() }()
		for ctx.Err() == nil {
			if err := c.Info(ctx).Err(); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for range 2 {
		t.Run("another server", func(t *testing.T) {
			_, other := serve(t)
			for deadline := time.Now().Add(time.Minute); get(t, "http://"+other+"/healthz") != "ok\n"; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the other one has not got its share")
				}
			}
		})
	}
}

// startHolders runs two nodes and three witnesses.
func startHolders(t *testing.T) (far, holders []string) {
	t.Helper()
	for range 3 {
		_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
			return RunWitness(ctx, WitnessConfig{Control: c, Dir: t.TempDir(), Listen: "127.0.0.1:0", Registers: 100, Bytes: 1 << 20, MaxClients: 100})
		})
		holders = append(holders, address(t, ready, ServiceWitness))
	}
	w, err := witness.NewClient(witness.ClientConfig{Witnesses: holders, TLS: func() *tls.Config { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	if _, err := w.Change(t.Context(), holders); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
			return RunNode(ctx, NodeConfig{Control: c, Listen: []string{"127.0.0.1:0"}, Lend: 128 << 20, Chunk: 1 << 20, Grace: time.Second})
		})
		far = append(far, address(t, ready, ServiceVerbs))
	}
	return far, holders
}

// TestWhatWasNotLoadedIsNotRemoved: a heap has been made under the name of a partition after it was looked whether there is one. The partitions that
// were loaded before that one go, and the heap stays.
func TestWhatWasNotLoadedIsNotRemoved(t *testing.T) {
	far, holders := startHolders(t)
	cfg := DefaultServe().BorrowConfig
	cfg.Far, cfg.Witness, cfg.Local = far, holders, 8<<20
	serve := func(heap string) {
		t.Run(heap, func(t *testing.T) {
			_, ready := start(t, func(ctx context.Context, c *operator.Control) error {
				serve := DefaultServe()
				serve.Control, serve.Listen, serve.BorrowConfig = c, "127.0.0.1:0", cfg
				serve.Heap = heap
				return RunServe(ctx, serve)
			})
			setAndGet(t, address(t, ready, ServiceRedis))
		})
	}
	serve("goods.0")
	serve("goods.1")
	c := &operator.Control{Logger: slog.New(slog.DiscardHandler)}
	cfg.Heap = "goods"
	there := func(all Registers, name string) bool {
		t.Helper()
		reg, err := all.Register(name)
		if err != nil {
			t.Fatal(err)
		}
		defer reg.Close()
		free, err := vacant(t.Context(), reg)
		if err != nil {
			t.Fatal(err)
		}
		return !free
	}
	if err := WithRegisters(t.Context(), c, cfg, func(all Registers) error {
		reg, err := all.Register("goods")
		if err != nil {
			return err
		}
		defer reg.Close()
		if _, err := partition.Reserve(t.Context(), reg, 2, named.Vacant); err != nil {
			return err
		}
		err = RemoveHeap(t.Context(), Removal{BorrowConfig: cfg, Control: c, made: func(number int) bool { return number < 1 }}, func(string, error) {})
		if err != nil {
			return err
		}
		for name, want := range map[string]bool{"goods": false, "goods.0": false, "goods.1": true} {
			if got := there(all, name); got != want {
				t.Errorf("heap %s is there: %v, want %v", name, got, want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
