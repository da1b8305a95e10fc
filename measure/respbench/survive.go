package respbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"polder/far"
	"polder/internal/child"
	"polder/internal/console"
	"polder/internal/load"
	"polder/measure/benchout"
	"polder/pool"
	"polder/verbs/tcp"
)

// surviveScale is how much RunSurvive does.
type surviveScale struct {
	rounds   int
	duration time.Duration // of a measurement
	warmup   time.Duration
	keys     int
	copies   []int
	second   time.Duration // how long GETs are measured before a node is killed, and again after
	idle     int64         // bytes that a node that lends idle memory has to give back
	gbits    []int         // rates of links over which repair is measured, in Gbit/s
	linked   int64         // bytes of values that are repaired over the links
}

var (
	surviveFull  = surviveScale{5, time.Second, 200 * time.Millisecond, 200_000, []int{1, 2, 3}, time.Second, 1 << 30, []int{1, 2, 4}, 256 << 20}
	surviveShort = surviveScale{3, 250 * time.Millisecond, 50 * time.Millisecond, 40_000, []int{1, 2, 3}, time.Second, 256 << 20, []int{1}, 64 << 20}
)

const (
	surviveSize  = 1 << 10
	surviveNodes = 5 // two are killed, and the other three must be enough for three copies
	// surviveRepair is how long a node must be gone until the server takes it for lost and begins repair.
	surviveRepair = 100 * time.Millisecond
)

// RunSurvive measures servers that keep one, two and three copies of far memory, at five nodes each, beside each
// other, beside redis-server alone, and beside redis-server with a replica that must have each SET (WAIT 1). All
// nodes are on this machine and are read in place; a fifth of the data is local. It also measures what the death of a
// node costs a server, there and where the network limits repair, and how fast a node that lends idle memory gives it
// back.
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
	addrs []string // of nodes
}

func runSurvive(ctx context.Context, cfg Config, scale surviveScale) (err error) {
	b := &bench{cfg: cfg}
	b.total = scale.rounds*(2*(len(scale.copies)+1)+1) + len(scale.copies) - 1 + len(idleChunks) + len(scale.gbits)
	for _, c := range idleChunks {
		if err := b.givenBack(ctx, c, scale); err != nil {
			return err
		}
	}
	if err := b.overLinks(ctx, scale.gbits, scale.linked); err != nil {
		return err
	}
	memory := int64(scale.keys) * int64(load.KeySize+surviveSize+entryOverhead)
	redis, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.close()) }()
	start, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	pair, stop, err := startReplicated(start, 1)
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

// copies measures one operation at all servers. servers[0] is Redis, servers[1] Redis with a replica; the others are
// ours, and the first of them has one copy.
func (b *bench) copies(ctx context.Context, servers []*server, op load.Op, sequence []uint32, scale surviveScale) error {
	got := make([]figures, len(servers))
	for range scale.rounds {
		offset := rand.IntN(len(sequence))
		for _, i := range rand.Perm(len(servers)) {
			s, does := servers[i], op
			if i == 1 {
				if op == load.Get {
					continue // a GET is the same as without a replica
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

// kill measures GETs of a server before and after one of its nodes is killed. Then it kills another node without load
// and measures how fast repair copies bytes, beside plain WRITEs to a node, and how long it takes until all segments
// have their copies again.
func (b *bench) kill(ctx context.Context, s *survivor, sequence []uint32, scale surviveScale) error {
	get := load.Config{Pipeline: 1, Op: load.Get, ValueSize: surviveSize, Sequence: sequence, Offset: rand.IntN(len(sequence)), Duration: scale.second, Warmup: scale.warmup}
	b.cfg.Progress(b.done, b.total, s.name+" loses a node")
	if _, err := b.healed(ctx, s, -1); err != nil {
		return err
	}
	raw, err := rawWrite(ctx, s.addrs[0], scale.duration, false)
	if err != nil {
		return err
	}
	fresh, err := rawWrite(ctx, s.addrs[0], scale.duration, true)
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
	s.killLast()
	get.Warmup = 0
	after, err := b.load(ctx, s.server, get)
	if err != nil {
		return err
	}
	if _, err := b.healed(ctx, s, -1); err != nil {
		return err
	}
	rate, took, err := b.repaired(ctx, s) // without load
	if err != nil {
		return err
	}
	now, err := copiesState(ctx, s)
	if err != nil {
		return err
	}
	b.done++
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
	if rate > 0 {
		repair := benchout.Row{Bench: "survive", Case: name, Metric: "repair", Value: rate / (1 << 20), Unit: "MiB/s"}
		rows = append(rows,
			repair.Against("WRITE", raw/(1<<20), benchout.Higher),
			repair.Against("WRITE to fresh memory", fresh/(1<<20), benchout.Higher),
			benchout.Row{Bench: "survive", Case: name, Metric: "all copies again", Value: float64(took.Milliseconds()), Unit: "ms"})
	}
	for _, r := range rows {
		if err := b.cfg.Printer.Print(r); err != nil {
			return err
		}
	}
	return nil
}

// killLast kills the last of the nodes.
func (s *survivor) killLast() {
	last := len(s.nodes) - 1
	s.nodes[last].Kill()
	s.nodes, s.addrs = s.nodes[:last], s.addrs[:last]
}

// repaired kills a node. It returns how many bytes a second repair copies, or 0 if that is not known, and how long it
// takes until all segments have their copies again.
func (b *bench) repaired(ctx context.Context, s *survivor) (rate float64, took time.Duration, err error) {
	was, err := copiesState(ctx, s)
	if err != nil {
		return 0, 0, err
	}
	s.killLast()
	// Until the server has noticed that the node is gone, no segment lacks a copy either.
	if took, err = b.healed(ctx, s, was.Sum("polder_copies_repaired_bytes_total")); err != nil {
		return 0, 0, err
	}
	now, err := copiesState(ctx, s)
	if err != nil {
		return 0, 0, err
	}
	grown := func(metric string) float64 { return now.Sum(metric) - was.Sum(metric) }
	return perSecond(grown("polder_copies_repaired_bytes_total"), grown("polder_copies_repair_seconds_total")), took, nil
}

// perSecond returns n/seconds, or 0 if no time has passed.
func perSecond(n, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return n / seconds
}

func copiesState(ctx context.Context, s *survivor) (console.Metrics, error) {
	state, err := console.Query(ctx, nil, "", s.admin, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot ask for statistics: %w", err)
	}
	return state.Metrics, nil
}

// healed waits until more than so many bytes have been repaired and no segment lacks a copy, and returns how long that
// has taken.
func (b *bench) healed(ctx context.Context, s *survivor, more float64) (time.Duration, error) {
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
		if m.Int("polder_copies_endangered_segments") == 0 && m.Sum("polder_copies_repaired_bytes_total") > more {
			return time.Since(began), nil
		}
	}
}

// rawWrite returns how many bytes a second a pool writes to a node. Two writers write pieces as large as repair's. If
// fresh is false, they overwrite the same memory; if it is true, they borrow new memory all the time, which the
// node's kernel has to find first, as it does for repair.
func rawWrite(ctx context.Context, addr string, d time.Duration, fresh bool) (float64, error) {
	// Insecure: the node is on this machine, even if its address is not loopback's.
	p, err := pool.DialTCP(ctx, tcp.Config{Insecure: true}, pool.Config{}, addr)
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
				if fresh && n > 0 && n%(1<<20) == 0 {
					if c, err = p.Alloc(ctx, 1<<20); err != nil {
						break
					}
				}
				err = c.WriteBulk(ctx, buf, int64(n%(1<<20)))
			}
			if errors.Is(err, pool.ErrNoMemory) && n > 0 {
				err = nil // all of the node's memory has been written
			}
			results <- result{n, err}
		}()
	}
	a, z := <-results, <-results
	return float64(a.n+z.n) / time.Since(began).Seconds(), errors.Join(a.err, z.err)
}

// startSurvivor runs surviveNodes nodes, whose memory is read in place, and a server that keeps copies copies at
// them.
func startSurvivor(ctx context.Context, polder string, copies int, local, lend int64) (s *survivor, err error) {
	s = new(survivor)
	for range surviveNodes {
		node, err := child.StartReady(ctx, child.Command{Path: polder, Args: []string{
			"node", "--listen", "127.0.0.1:0", "--admin", "off", "--log-level", "warn", "--client-budget", "0", "--lend", fmt.Sprint(lend), "--overcommit", "--in-place",
		}})
		if err != nil {
			return nil, errors.Join(err, s.stop())
		}
		s.nodes, s.addrs = append(s.nodes, node), append(s.addrs, node.Addr("verbs"))
	}
	return s, s.serve(ctx, polder, copies, local)
}

// stop ends the nodes.
func (s *survivor) stop() error {
	var errs []error
	for _, n := range s.nodes {
		errs = append(errs, n.Stop())
	}
	return errors.Join(errs...)
}

// serve runs the server over the nodes. If the server cannot be started, serve ends the nodes.
func (s *survivor) serve(ctx context.Context, polder string, copies int, local int64) error {
	name := fmt.Sprintf("%d copies", copies)
	if copies == 1 {
		name = "1 copy"
	}
	serve, err := child.StartReady(ctx, child.Command{Path: polder, Args: []string{
		"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "error", "--local", fmt.Sprint(local), "--insecure",
		"--far", strings.Join(s.addrs, ","), "--copies", fmt.Sprint(copies), "--repair-after", surviveRepair.String(),
	}})
	if err != nil {
		return errors.Join(err, s.stop())
	}
	s.server = &server{name: name, addr: serve.Addr("redis"), admin: serve.Addr("admin"), close: func() error { return errors.Join(serve.Stop(), s.stop()) }}
	return nil
}

// startReplicated runs redis-server with replicas. The server's name says that all of them are waited for.
func startReplicated(ctx context.Context, replicas int) (_ *server, stop func() error, err error) {
	var stops []func() error
	stopAll := func() (err error) {
		for _, stop := range slices.Backward(stops) {
			err = errors.Join(err, stop())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stopAll())
		}
	}()
	first, err := child.StartRedis(ctx)
	if err != nil {
		return nil, nil, err
	}
	stops = append(stops, first.Close)
	host, port, _ := strings.Cut(first.Addr, ":")
	for range replicas {
		r, err := child.StartRedis(ctx, "--replicaof", host+" "+port)
		if err != nil {
			return nil, nil, err
		}
		stops = append(stops, r.Close)
	}
	return &server{name: fmt.Sprint("redis WAIT ", replicas), addr: first.Addr}, stopAll, nil
}
