package allocbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"polder/internal/config"
	"polder/measure/benchout"
	"polder/memnode"
	"polder/memnode/twolayer"
	"polder/pool"
	"polder/pool/finemem"
)

// ReplayOptions say how to replay traces.
type ReplayOptions struct {
	Options
	Traces []*Trace
	// ASAP ignores the times of arrival: every client makes its next request as
	// soon as it has the memory of the last.
	ASAP bool
	// Clients is how many clients there are. They share every trace: its requests
	// are dealt out to them in turn. The default is 8.
	Clients int
	// ChunkSizes are the sizes of chunks, in bytes, with each of which the managers
	// are measured whose chunks have one size. A request gets as many chunks as it
	// needs. The default is 128 KiB and 2 MiB: a span and a section of package
	// pool/finemem's.
	ChunkSizes []int
	// Managers are the managers, by name. By default all are measured.
	Managers []string
	// Seed is the seed of the random order in which blocks are freed.
	Seed uint64
}

// Defaults of ReplayOptions.
const (
	DefaultReplayClients = 8
	MaxReplayClients     = 512
)

// DefaultChunkSizes are the default of ReplayOptions.ChunkSizes.
func DefaultChunkSizes() []int { return []int{128 << 10, 2 << 20} }

// Limits of a short run. The allocations of all replays together may take shortReplay;
// freeing and starting nodes come on top. All traces together are cut to about
// shortRequests requests: the first ones of each trace.
const (
	shortReplay   = 8 * time.Second
	shortRequests = 16384
)

// A block is borrowed memory, as large as a request or larger.
type block interface {
	free(ctx context.Context) error
}

// A lender is a client that borrows memory by way of one manager.
type lender interface {
	// alloc borrows memory for a request.
	alloc(ctx context.Context, q Request) (block, error)
}

// A contestant is a manager, with one size of chunks.
type contestant struct {
	name string
	// start starts a node that can lend what a trace asks for, and a lender
	// for every client.
	start func(ctx context.Context, t *Trace, clients int) (*rig, []lender, error)
}

// Replay replays traces over tcp with every manager: it allocates all that a trace
// asks for, and then frees it in random order.
func Replay(ctx context.Context, o ReplayOptions) error {
	if err := o.replay(ctx); err != nil {
		return fmt.Errorf("cannot replay allocations: %w", err)
	}
	return nil
}

func (o ReplayOptions) replay(ctx context.Context) error {
	if o.Clients == 0 {
		o.Clients = DefaultReplayClients
	}
	if len(o.ChunkSizes) == 0 {
		o.ChunkSizes = DefaultChunkSizes()
	}
	all, err := o.contestants()
	if err != nil {
		return err
	}
	span := time.Duration(0)
	if o.Short {
		span = shortReplay / time.Duration(len(all)*len(o.Traces))
	}
	done := 0
	for _, t := range o.Traces {
		if o.Short {
			n := min(len(t.Requests), max(1, shortRequests/len(o.Traces)))
			t = &Trace{Name: t.Name, Requests: t.Requests[:n]}
		}
		for _, c := range all {
			if o.Progress != nil {
				o.Progress(done, len(all)*len(o.Traces), t.Name+" "+c.name)
			}
			r, err := o.replayOne(ctx, t, c, span)
			if err != nil {
				return fmt.Errorf("%s with %s: %w", t.Name, c.name, err)
			}
			if err := o.report(t, c, r); err != nil {
				return err
			}
			done++
		}
	}
	return nil
}

// contestants returns the chosen managers, once for each size of chunks.
func (o *ReplayOptions) contestants() ([]contestant, error) {
	fabrics, err := fabrics()
	if err != nil {
		return nil, err
	}
	tcp := fabrics[0]
	var all []contestant
	for _, m := range tcp.managers {
		if len(o.Managers) > 0 && !slices.Contains(o.Managers, m.Name()) {
			continue
		}
		if m.Name() == finemem.Name {
			all = append(all, contestant{
				name: m.Name(),
				start: func(ctx context.Context, t *Trace, clients int) (*rig, []lender, error) {
					const section = 2 << 20
					lend := (t.Bytes()+section-1)/section*section + int64(clients)*fineSpare
					return tcp.startPools(ctx, m, lend, twolayer.DefaultUnit, clients)
				},
			})
			continue
		}
		for _, size := range o.ChunkSizes {
			all = append(all, contestant{
				name: m.Name() + " " + config.FormatSize(int64(size)),
				start: func(ctx context.Context, t *Trace, clients int) (*rig, []lender, error) {
					lend := int64(0)
					for _, q := range t.Requests {
						lend += roundUp(q.Size(), size)
					}
					return tcp.startPools(ctx, m, lend, size, clients)
				},
			})
		}
	}
	if len(o.Managers) == 0 || slices.Contains(o.Managers, ArrayScan) {
		all = append(all, contestant{name: ArrayScan, start: tcp.startScan})
	}
	for _, name := range o.Managers {
		if name == ArrayScan {
			continue
		}
		if !slices.ContainsFunc(tcp.managers, func(m pool.Manager) bool { return m.Name() == name }) {
			return nil, fmt.Errorf("no manager %q, want some of %s, %s", name, strings.Join(tcp.names(), ", "), ArrayScan)
		}
	}
	return all, nil
}

// fineSpare is how many bytes for each client a node of FineMem's lends beyond what a
// trace asks for: every client may keep some sections open for small blocks, and large
// blocks cannot use those.
const fineSpare = 4 * 2 << 20

// startPools starts a node that lends lend bytes in chunks of size bytes, and a pool for every client.
func (f *fabric) startPools(ctx context.Context, m pool.Manager, lend int64, size, clients int) (*rig, []lender, error) {
	r, err := f.start(ctx, m, memnode.Config{Lend: lend, ChunkSize: size}, clients)
	if err != nil {
		return nil, nil, err
	}
	var lenders []lender
	for _, p := range r.pools {
		lenders = append(lenders, poolLender{p})
	}
	return r, lenders, nil
}

// roundUp returns n rounded up to a multiple of size.
func roundUp(n int64, size int) int64 { return (n + int64(size) - 1) / int64(size) * int64(size) }

// poolLender borrows from a pool.
type poolLender struct{ pool *pool.Pool }

func (l poolLender) alloc(ctx context.Context, q Request) (block, error) {
	c, err := l.pool.Alloc(ctx, q.Size())
	return poolBlock{c}, err
}

type poolBlock struct{ *pool.Chunk }

func (b poolBlock) free(ctx context.Context) error { return b.Free(ctx) }

// A replayed has the figures of one replay.
type replayed struct {
	requests    int
	alloc, free [2]float64 // p50 and p99 in microseconds
	allocRate   float64    // requests in a second
	freeRate    float64
	asked, peak int64         // bytes: that the requests asked for, and that the node lent for them
	busy        time.Duration // of the node's control goroutine
}

// replayOne replays one trace with one manager, for span unless that is 0.
func (o *ReplayOptions) replayOne(ctx context.Context, t *Trace, c contestant, span time.Duration) (r replayed, err error) {
	rig, lenders, err := c.start(ctx, t, o.Clients)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, rig.close()) }()

	before := rig.busy()
	players := make([]*player, len(lenders))
	for i, l := range lenders {
		players[i] = &player{lender: l, rng: rand.New(rand.NewPCG(o.Seed, uint64(i)))}
	}
	for i, q := range t.Requests {
		p := players[i%len(players)]
		p.requests = append(p.requests, q)
	}
	start := time.Now()
	var until time.Time
	if span > 0 {
		until = start.Add(span)
	}
	took, err := together(players, func(p *player) error { return p.allocate(ctx, start, until, o.ASAP) })
	if err != nil {
		return r, err
	}
	r.peak = rig.taken() // nothing has been freed yet
	freeing, err := together(players, func(p *player) error { return p.freeAll(ctx) })
	if err != nil {
		return r, err
	}
	r.busy = rig.busy() - before

	var allocs, frees []time.Duration
	for _, p := range players {
		allocs, frees = append(allocs, p.allocs...), append(frees, p.frees...)
		r.asked += p.asked
	}
	r.requests = len(allocs)
	r.alloc, r.free = percentiles(allocs), percentiles(frees)
	r.allocRate = float64(r.requests) / took.Seconds()
	r.freeRate = float64(r.requests) / freeing.Seconds()
	return r, nil
}

// together calls f for all players at the same time, and returns how long that
// took.
func together(players []*player, f func(*player) error) (time.Duration, error) {
	start := time.Now()
	errs := make([]error, len(players))
	var wg sync.WaitGroup
	for i, p := range players {
		wg.Go(func() { errs[i] = f(p) })
	}
	wg.Wait()
	return time.Since(start), errors.Join(errs...)
}

// player is one client. Only one goroutine may use it at a time.
type player struct {
	lender   lender
	requests []Request
	rng      *rand.Rand

	blocks        []block
	allocs, frees []time.Duration
	asked         int64
}

// allocate makes the player's requests. If until is not zero, allocate stops at that time, but makes one at least.
func (p *player) allocate(ctx context.Context, start, until time.Time, asap bool) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for _, q := range p.requests {
		now := time.Now()
		if len(p.blocks) > 0 && !until.IsZero() && now.After(until) {
			return nil
		}
		if !asap {
			// If the client is late, its latency counts from the time at which the
			// request was due. If it sleeps until then, the latency counts from when
			// it wakes, because a late timer is not the manager's fault.
			if due := start.Add(q.At); now.After(due) {
				now = due
			} else {
				if !until.IsZero() && due.After(until) && len(p.blocks) > 0 {
					return nil
				}
				timer.Reset(due.Sub(now))
				select {
				case <-timer.C:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				now = time.Now()
			}
		}
		b, err := p.lender.alloc(ctx, q)
		if err != nil {
			return err
		}
		p.allocs = append(p.allocs, time.Since(now))
		p.blocks = append(p.blocks, b)
		p.asked += q.Size()
	}
	return nil
}

// freeAll frees the player's blocks in random order.
func (p *player) freeAll(ctx context.Context) error {
	p.rng.Shuffle(len(p.blocks), func(i, j int) { p.blocks[i], p.blocks[j] = p.blocks[j], p.blocks[i] })
	for _, b := range p.blocks {
		start := time.Now()
		if err := b.free(ctx); err != nil {
			return err
		}
		p.frees = append(p.frees, time.Since(start))
	}
	p.blocks = nil
	return nil
}

// report prints the figures of a replay.
func (o *ReplayOptions) report(t *Trace, c contestant, r replayed) error {
	const mib = 1 << 20
	for _, m := range []struct {
		name, unit string
		value      float64
	}{
		{"requests", "", float64(r.requests)},
		{"alloc rate", "op/s", r.allocRate},
		{"alloc p50", "us", r.alloc[0]},
		{"alloc p99", "us", r.alloc[1]},
		{"free rate", "op/s", r.freeRate},
		{"free p50", "us", r.free[0]},
		{"free p99", "us", r.free[1]},
		{"asked for", "MiB", float64(r.asked) / mib},
		{"peak memory", "MiB", float64(r.peak) / mib},
		{"utilisation", "%", 100 * float64(r.asked) / float64(r.peak)},
		{"control path", "us/op", float64(r.busy) / 1e3 / float64(r.requests)},
	} {
		err := o.Out.Print(benchout.Row{Bench: "alloc", Case: fmt.Sprintf("%s: %s x%d", t.Name, c.name, o.Clients),
			Metric: m.name, Value: m.value, Unit: m.unit})
		if err != nil {
			return err
		}
	}
	return nil
}
