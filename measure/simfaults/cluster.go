package simfaults

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"polder/far/copies"
	"polder/far/named"
	"polder/internal/turns"
)

// setup is what a cluster is made of.
type setup struct {
	nodes, zones int
	chunks       int // of each node
	copies       int
	keys         int
	clients      int
	late         time.Duration
	repairAfter  time.Duration
	lease, beat  time.Duration
}

// cluster is nodes, a register, servers and clients, and what is known of what has to be there.
type cluster struct {
	w        *turns.World
	cfg      setup
	nodes    []*node
	register *register
	servers  []*host
	clients  *turns.Process
	cuts     map[pair]time.Duration // until when nothing gets from the one to the other
	sessions uint64                 // of the register
	quiet    bool                   // there are no more faults
	bug      string                 // that is planted in the harness

	sent  []uint64 // for each key, the newest version that was sent
	floor []uint64 // for each key, the newest version that was acknowledged or shown

	counts counts
	wrongs []string
}

// counts are what has happened.
type counts struct {
	sets, gets, unanswered, unread int
	checkpoints, takeovers         int
	faults, corrupt                int
}

// host is where a server runs, one after the other.
type host struct {
	name     string
	c        *cluster
	now      *server // nil: none
	patience time.Duration
}

// wrong takes note of something that must not be.
func (c *cluster) wrong(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.w.Note("WRONG: %s", text)
	c.wrongs = append(c.wrongs, text)
}

// harness reports whether a bug of that name is planted in what surrounds the product.
func (c *cluster) harness(bug string) bool { return c.bug == bug }

func newCluster(seed uint64, bug string, trace func(string)) *cluster {
	w := turns.NewWorld(seed)
	w.Trace = trace
	r := w.Rand
	c := &cluster{w: w, bug: bug, cuts: map[pair]time.Duration{}}
	c.cfg = setup{
		nodes: 4 + r.IntN(3), zones: 3, chunks: 60, copies: 2 + r.IntN(5)/4, keys: 60, clients: 4,
		late: copies.DefaultLate, repairAfter: copies.DefaultRepairAfter,
		lease: []time.Duration{100 * time.Millisecond, named.DefaultLease, 2 * time.Second}[r.IntN(3)], beat: named.DefaultBeat,
	}
	c.sent, c.floor = make([]uint64, c.cfg.keys), make([]uint64, c.cfg.keys)
	c.register = &register{c: c, proc: w.Process(holderName, 0), settled: map[uint64]uint64{}}
	for i := range c.cfg.nodes {
		c.nodes = append(c.nodes, c.newNode(fmt.Sprint("node", i), fmt.Sprint("zone", i%c.cfg.zones)))
	}
	for i := range 2 {
		h := &host{name: fmt.Sprint("server", i), c: c, patience: named.DefaultPatience}
		c.servers = append(c.servers, h)
		w.After(time.Duration(i)*5*time.Second, h.start)
	}
	c.clients = w.Process("clients", 0)
	for i := range c.cfg.clients {
		c.clients.Go(func() { c.client(i) })
	}
	return c
}

// start starts a server, if there is none.
func (h *host) start() {
	c := h.c
	if h.now != nil {
		return
	}
	s := &server{c: c, host: h.name, items: map[uint32]*item{}}
	s.p = c.w.Process(h.name, int64(c.w.Rand.IntN(40_001))-20_000)
	s.changed.L = noLock{}
	h.now = s
	cfg := named.Config{Lease: c.cfg.lease, Beat: c.cfg.beat, Patience: h.patience}
	h.patience = named.DefaultPatience
	s.p.Go(func() {
		err := s.run(context.Background(), cfg)
		c.w.Note("%s ends: %v", h.name, err)
		// It leaves what it had, and begins anew.
		c.w.After(time.Millisecond, func() { h.kill(s, time.Duration(c.w.Rand.Int64N(int64(2*time.Second)))) })
	})
}

// kill ends the server s, if it is still that, and starts another one after some time.
func (h *host) kill(s *server, away time.Duration) {
	if s == nil || h.now != s {
		return
	}
	s.serving = false
	s.p.Kill()
	h.now = nil
	h.c.w.After(away, h.start)
}

// owner is the server that serves, nil if none does. It may have been superseded without knowing.
func (c *cluster) owner() (o *server) {
	for _, h := range c.servers {
		if s := h.now; s != nil && s.serving && (o == nil || s.o.Epoch() > o.o.Epoch()) {
			o = s
		}
	}
	return o
}

// manifest is what the register has, nil for nothing.
func (c *cluster) manifest() *named.Manifest {
	if c.register.value == nil {
		return nil
	}
	m, err := named.DecodeManifest(c.register.value)
	if err != nil {
		c.wrong("the manifest cannot be read: %v", err)
		return nil
	}
	return m
}

// opened looks at what a server has found that is about to serve: all that was acknowledged or shown must be there.
func (c *cluster) opened(s *server) {
	c.counts.takeovers++
	for key, floor := range c.floor {
		if it := s.items[uint32(key)]; floor > 0 && (it == nil || it.version < floor) {
			c.wrong("key %d has version %d when epoch %d begins, and version %d was acknowledged or shown", key, it.of(), s.o.Epoch(), floor)
		}
	}
}

func (it *item) of() uint64 {
	if it == nil {
		return 0
	}
	return it.version
}

// client is one that sets its own keys, and gets all.
func (c *cluster) client(i int) {
	p, r := c.clients, c.w.Rand
	to := 0
	for {
		p.Sleep(time.Duration(r.Int64N(int64(60 * time.Millisecond))))
		h := c.servers[to]
		var ok bool
		if r.IntN(2) == 0 {
			key := uint32(r.IntN(c.cfg.keys/c.cfg.clients)*c.cfg.clients + i)
			c.sent[key]++
			version := c.sent[key]
			_, ok = c.ask(h, func(s *server) (uint64, bool) { return 0, s.set(key, valueOf(key, version)) })
			if ok {
				c.counts.sets++
				c.floor[key] = max(c.floor[key], version)
			}
		} else {
			key := uint32(r.IntN(c.cfg.keys))
			floor := c.floor[key]
			var version uint64
			version, ok = c.ask(h, func(s *server) (uint64, bool) { return s.get(key) })
			if ok {
				c.counts.gets++
				if version < floor || version > c.sent[key] {
					c.wrong("%s answers version %d of key %d, and version %d had been acknowledged or shown before it was asked (version %d was sent)", h.name, version, key, floor, c.sent[key])
				}
				c.floor[key] = max(c.floor[key], version)
			}
		}
		if !ok {
			c.counts.unanswered++
			to = (to + 1) % len(c.servers)
		}
	}
}

// ask has a server answer. It returns false if it has not.
func (c *cluster) ask(h *host, f func(s *server) (uint64, bool)) (v uint64, ok bool) {
	s := h.now
	if s == nil {
		return 0, false
	}
	done := make(chan struct{})
	s.p.After(c.hop(), func() {
		s.p.Go(func() {
			got, fine := f(s)
			if s.p.Dead() {
				return
			}
			c.clients.After(c.hop(), func() { v, ok = got, fine; close(done) })
		})
	})
	timer := c.clients.NewTimer(2 * time.Second)
	defer timer.Stop()
	if c.clients.Wait(timer, done) == turns.Late {
		return 0, false
	}
	return v, ok
}

// traceHandler writes what the product logs into the trace.
type traceHandler struct {
	c    *cluster
	host string
}

func (t *traceHandler) Enabled(context.Context, slog.Level) bool { return true }
func (t *traceHandler) WithAttrs([]slog.Attr) slog.Handler       { return t }
func (t *traceHandler) WithGroup(string) slog.Handler            { return t }
func (t *traceHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", t.host, r.Message)
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s=%v", a.Key, a.Value); return true })
	t.c.w.Note("%s", b.String())
	return nil
}
