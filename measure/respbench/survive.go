package respbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"polder/far"
	"polder/internal/child"
	"polder/internal/console"
	"polder/internal/load"
	"polder/measure/benchout"
	"polder/pool"
)

// surviveScale is how much RunSurvive does.
type surviveScale struct {
	rounds   int
	duration time.Duration // of a measurement
	warmup   time.Duration
	keys     int
	copies   []int
	second   time.Duration // in which GETs are measured when a node is killed
	idle     int64         // bytes that a node that lends what is idle has to give back
}

var (
	surviveFull  = surviveScale{5, time.Second, 200 * time.Millisecond, 200_000, []int{1, 2, 3}, time.Second, 1 << 30}
	surviveShort = surviveScale{3, 250 * time.Millisecond, 50 * time.Millisecond, 40_000, []int{1, 2, 3}, time.Second, 256 << 20}
)

const (
	surviveSize  = 1 << 10
	surviveNodes = 5 // of which two are killed, where three copies are to be made
	// surviveRepair is after how long a node that was killed is taken for lost.
	surviveRepair = 100 * time.Millisecond
)

// RunSurvive measures servers that keep far memory at one, two and three nodes of five, with a fifth of the data local, beside
// each other and redis-server, alone and with a replica that has to have each SET (WAIT 1); what the end of a node costs them; and how fast a node that lends what is idle gives memory back.
func RunSurvive(ctx context.Context, cfg Config) error {
	if cfg.Progress == nil {
		cfg.Progress = func(int, int, string) {}
	}
	scale := surviveFull
	if cfg.Short {
		scale = surviveShort
	}
	return runSurvive(ctx, cfg, scale)
}

// survivor is a server over nodes of its own.
type survivor struct {
	*server
	nodes []*child.Process
}

func runSurvive(ctx context.Context, cfg Config, scale surviveScale) (err error) {
	b := &bench{cfg: cfg}
	b.total = scale.rounds*(2*(len(scale.copies)+1)+1) + 2 + len(idleChunks)
	for _, c := range idleChunks {
		if err := b.givenBack(ctx, c, scale); err != nil {
			return err
		}
	}
	memory := int64(scale.keys) * int64(load.KeySize+surviveSize+entryOverhead)
	redis, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.close()) }()
	start, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	pair, stop, err := startReplicated(start)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	servers := []*server{redis, pair}
	var ours []*survivor
	for _, n := range scale.copies {
		s, err := startSurvivor(start, cfg.Polder, n, max(memory/farPart, far.MinLocal), 2*memory+128<<20)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.close()) }()
		ours, servers = append(ours, s), append(servers, s.server)
	}
	for _, s := range servers {
		if err := b.fill(ctx, s, scale.keys, surviveSize); err != nil {
			return err
		}
	}
	sequence := load.Sequence(load.Scattered(scale.keys), sequenceLength/4, surviveSize)
	for _, op := range ops {
		if err := b.copies(ctx, servers, op, sequence, scale); err != nil {
			return err
		}
	}
	for _, s := range ours[1:] {
		if err := b.kill(ctx, s, sequence, scale); err != nil {
			return err
		}
	}
	return nil
}

// copies measures one operation at all servers: redis, redis with a replica, and ours, of which the first has one copy.
func (b *bench) copies(ctx context.Context, servers []*server, op load.Op, sequence []uint32, scale surviveScale) error {
	got := make([]figures, len(servers))
	for range scale.rounds {
		offset := rand.IntN(len(sequence))
		for _, i := range rand.Perm(len(servers)) {
			s, does := servers[i], op
			if i == 1 {
				if op == load.Get {
					continue // it is what redis-server does alone
				}
				does = load.SetWait
			}
			b.cfg.Progress(b.done, b.total, fmt.Sprintf("%s, %v", s.name, does))
			if err := b.measure(ctx, &server{name: s.name, addr: s.addr}, &got[i], load.Config{
				Pipeline: 1, Op: does, ValueSize: surviveSize, Sequence: sequence, Offset: offset, Duration: scale.duration, Warmup: scale.warmup,
			}); err != nil {
				return err
			}
			b.done++
		}
	}
	for i, s := range servers[2:] {
		name := fmt.Sprintf("%s %v %s", s.name, op, sizeName(surviveSize))
		rivals := map[int]bool{0: true, 1: op == load.Set, 2: i > 0}
		for k := range 3 {
			if !rivals[k] {
				continue
			}
			if err := b.printAs("survive", servers[k].name, name, got[2+i], got[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// kill measures GETs of a server before and after one of its nodes is killed, and how long it takes until everything has its copies
// again, beside the plain writing of as many bytes to a node.
func (b *bench) kill(ctx context.Context, s *survivor, sequence []uint32, scale surviveScale) error {
	get := load.Config{Pipeline: 1, Op: load.Get, ValueSize: surviveSize, Sequence: sequence, Offset: rand.IntN(len(sequence)), Duration: scale.second, Warmup: scale.warmup}
	b.cfg.Progress(b.done, b.total, s.name+" loses a node")
	if _, err := b.healed(ctx, s); err != nil {
		return err
	}
	raw, err := rawWrite(ctx, s.nodes[0].Addr("verbs"), scale.duration)
	if err != nil {
		return err
	}
	before, err := b.load(ctx, s.server, get)
	if err != nil {
		return err
	}
	was, err := copiesState(ctx, s)
	if err != nil {
		return err
	}
	last := len(s.nodes) - 1
	s.nodes[last].Kill()
	<-s.nodes[last].Done()
	s.nodes = s.nodes[:last]
	get.Warmup = 0
	after, err := b.load(ctx, s.server, get)
	if err != nil {
		return err
	}
	if _, err := b.healed(ctx, s); err != nil {
		return err
	}
	// And without load.
	last--
	s.nodes[last].Kill()
	<-s.nodes[last].Done()
	s.nodes = s.nodes[:last]
	middle, err := copiesState(ctx, s)
	if err != nil {
		return err
	}
	took, err := b.healed(ctx, s)
	if err != nil {
		return err
	}
	now, err := copiesState(ctx, s)
	if err != nil {
		return err
	}
	b.done++
	moved := now.Sum("polder_copies_repaired_bytes_total") - middle.Sum("polder_copies_repaired_bytes_total")
	copying := now.Sum("polder_copies_repair_seconds_total") - middle.Sum("polder_copies_repair_seconds_total")
	p99 := func(r load.Result) float64 { return float64(r.Latency.ValueAtQuantile(99)) / 1000 }
	worst := float64(after.Latency.Max()) / 1e6
	name := s.name + ", a node is killed"
	lost := now.Int("polder_copies_lost_segments_total") - was.Int("polder_copies_lost_segments_total")
	if lost != 0 {
		return fmt.Errorf("%s: %d segments were lost with a node", s.name, lost)
	}
	rows := []benchout.Row{
		benchout.Row{Bench: "survive", Case: name, Metric: "GET p99 in the second after", Value: p99(after), Unit: "us"}.Against("before", p99(before), benchout.Lower),
		{Bench: "survive", Case: name, Metric: "slowest GET", Value: worst, Unit: "ms"},
	}
	if moved > 0 {
		rows = append(rows,
			benchout.Row{Bench: "survive", Case: name, Metric: "repair", Value: moved / copying / (1 << 20), Unit: "MiB/s"}.Against("WRITE", raw/(1<<20), benchout.Higher),
			benchout.Row{Bench: "survive", Case: name, Metric: "all copies again", Value: float64(took.Milliseconds()), Unit: "ms"})
	}
	for _, r := range rows {
		if err := b.cfg.Printer.Print(r); err != nil {
			return err
		}
	}
	return nil
}

func copiesState(ctx context.Context, s *survivor) (console.Metrics, error) {
	state, err := console.Query(ctx, nil, "", s.admin, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot ask for statistics: %w", err)
	}
	return state.Metrics, nil
}

// healed waits until everything has its copies, and returns how long that has taken.
func (b *bench) healed(ctx context.Context, s *survivor) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	began := time.Now()
	time.Sleep(surviveRepair)
	for {
		time.Sleep(50 * time.Millisecond) // asking costs the server processor time
		m, err := copiesState(ctx, s)
		if err != nil {
			return 0, err
		}
		if m.Int("polder_copies_endangered_segments") == 0 {
			return time.Since(began), nil
		}
	}
}

// rawWrite is how many bytes a second a pool writes to a node, by two writers of what repair copies at a time.
func rawWrite(ctx context.Context, addr string, d time.Duration) (float64, error) {
	p, err := pool.Dial(ctx, addr)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	const piece = 256 << 10
	ctx, cancel := context.WithTimeout(ctx, d+startTimeout)
	defer cancel()
	type result struct {
		n   int
		err error
	}
	results := make(chan result)
	began := time.Now()
	for range 2 {
		go func() {
			c, err := p.Alloc(ctx, 1<<20)
			n, buf := 0, make([]byte, piece)
			for ; err == nil && time.Since(began) < d; n += piece {
				err = c.WriteBulk(ctx, buf, int64(n%(1<<20)))
			}
			results <- result{n, err}
		}()
	}
	a, z := <-results, <-results
	return float64(a.n+z.n) / time.Since(began).Seconds(), errors.Join(a.err, z.err)
}

// startSurvivor runs nodes, and a server that keeps so many copies at them.
func startSurvivor(ctx context.Context, polder string, copies int, local, lend int64) (s *survivor, err error) {
	s = new(survivor)
	var addrs []string
	stop := func() error {
		var errs []error
		for _, n := range s.nodes {
			errs = append(errs, n.Stop())
		}
		return errors.Join(errs...)
	}
	for range surviveNodes {
		node, err := child.StartReady(ctx, child.Command{Path: polder, Args: []string{
			"node", "--listen", "127.0.0.1:0", "--admin", "off", "--log-level", "warn", "--client-budget", "0", "--lend", fmt.Sprint(lend), "--overcommit",
		}})
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		s.nodes, addrs = append(s.nodes, node), append(addrs, node.Addr("verbs"))
	}
	name := fmt.Sprintf("%d copies", copies)
	if copies == 1 {
		name = "1 copy"
	}
	serve, err := child.StartReady(ctx, child.Command{Path: polder, Args: []string{
		"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "error", "--local", fmt.Sprint(local),
		"--far", strings.Join(addrs, ","), "--copies", fmt.Sprint(copies), "--repair-after", surviveRepair.String(),
	}})
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	s.server = &server{name: name, addr: serve.Addr("redis"), admin: serve.Addr("admin"), close: func() error { return errors.Join(serve.Stop(), stop()) }}
	return s, nil
}

// startReplicated runs redis-server with a replica.
func startReplicated(ctx context.Context) (*server, func() error, error) {
	first, err := child.StartRedis(ctx)
	if err != nil {
		return nil, nil, err
	}
	host, port, _ := strings.Cut(first.Addr, ":")
	second, err := child.StartRedis(ctx, "--replicaof", host+" "+port)
	if err != nil {
		return nil, nil, errors.Join(err, first.Close())
	}
	stop := func() error { return errors.Join(second.Close(), first.Close()) }
	return &server{name: "redis WAIT 1", addr: first.Addr}, stop, nil
}
