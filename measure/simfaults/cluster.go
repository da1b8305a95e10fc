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

	// How this run differs from others. A run with a little of every fault seldom has enough of any.
	weights [kinds]int    // how often each kind of fault happens, relative to the others
	calm    int           // one of so many pauses between faults takes seconds; after the others faults come together
	roam    int           // one of so many requests goes to a random server, as if a client had been misled
	patient time.Duration // how long clients wait for an answer
	linger  time.Duration // how long values stay local, at most
	every   time.Duration // time from one checkpoint to the next, at most
	lag     time.Duration // added delay of a message to or from the holder, at most
}

// cluster is nodes, a register, servers and clients, and the record of what must not be lost.
type cluster struct {
	w        *turns.World
	cfg      setup
	nodes    []*node
	register *register
	servers  []*host
	clients  *turns.Process
	cuts     map[pair]time.Duration // until when nothing gets from a to b
	joined   int                    // how many nodes there have ever been
	damaged  map[uint64]bool        // numbers of segments of which a copy was damaged
	coming   []*[]byte              // roots that may still get into the manifest
	sessions uint64                 // how many sessions with the register were begun
	quiet    bool                   // there are no more faults
	bug      string                 // the bug that is planted in the harness; empty for none

	sent  []uint64 // for each key, the newest version that was sent
	floor []uint64 // for each key, the newest version that was acknowledged or shown

	counts counts
	wrongs []string
}

// counts say how often things have happened.
type counts struct {
	sets, gets, unanswered, unread int
	checkpoints, takeovers         int
	faults, corrupt                int
}

// host is a machine that runs servers, one after the other.
type host struct {
	name     string
	c        *cluster
	now      *server // the server that runs; nil for none
	patience time.Duration
}

// wrong notes something that must not happen; the run has failed then.
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
	c := &cluster{w: w, bug: bug, cuts: map[pair]time.Duration{}, damaged: map[uint64]bool{}}
	c.cfg = setup{
		nodes: 4 + r.IntN(3), zones: 2 + min(1, r.IntN(3)), chunks: 1000, copies: 2 + r.IntN(5)/4, keys: 60, clients: 4,
		late: copies.DefaultLate, repairAfter: copies.DefaultRepairAfter,
		lease: []time.Duration{100 * time.Millisecond, named.DefaultLease, 4 * time.Second}[r.IntN(3)], beat: named.DefaultBeat,
		calm: 2 + r.IntN(6), roam: 2 + r.IntN(10), patient: c.during(500*time.Millisecond, 4*time.Second),
		every:  6 * time.Second,
		linger: []time.Duration{400 * time.Millisecond, 4 * time.Second}[r.IntN(2)],
		lag:    []time.Duration{0, 5 * time.Millisecond, 60 * time.Millisecond}[r.IntN(3)],
	}
	for i := range c.cfg.weights {
		c.cfg.weights[i] = []int{0, 1, 1, 4}[r.IntN(4)]
	}
	idle := r.IntN(3)
	servers := []int{holderCutOff, holderLossy, serverDies, serverStops, takenOver, takenOver, takenOver, takenOverTwice, takenOverTwice, handedOver}
	often := [][]int{ // what most faults hit: servers (twice as likely), nodes, lent idle memory; or anything
		servers, servers, {nodeCrashes, zoneCrashes, nodeRestarts, nodeIsSlow, nodeCutOff, oneAfterAnother, nodeFull, nodeLeaves, nodeEnds, nodeJoins, serverDies, bytesChange},
		{hostNeedsMemory, hostNeedsMemory, nodeCrashes, oneAfterAnother, nodeIsSlow, nodeLeaves},
		{nodeCrashes},
	}[r.IntN(5)]
	for _, kind := range often {
		c.cfg.weights[kind] += 4
	}
	// Segments that are seldom in a checkpoint are more often written from the front again.
	if often[0] == hostNeedsMemory {
		idle, c.cfg.linger, c.cfg.every = 2, 4*time.Second, 20*time.Second
	}
	c.sent, c.floor = make([]uint64, c.cfg.keys), make([]uint64, c.cfg.keys)
	c.register = &register{c: c, proc: w.Process(holderName, 0), settled: map[uint64]uint64{}}
	for i := range c.cfg.nodes {
		n := c.newNode(fmt.Sprint("node", i), fmt.Sprint("zone", i%c.cfg.zones))
		n.idle = i >= c.cfg.nodes-idle
		c.nodes = append(c.nodes, n)
	}
	c.joined = len(c.nodes)
	for i := range 2 {
		h := &host{name: fmt.Sprint("server", i), c: c, patience: named.DefaultPatience}
		c.servers = append(c.servers, h)
		w.After(time.Duration(i)*5*time.Second, h.start)
	}
	c.clients = w.Process("clients", 0)
	w.After(time.Second, c.inspect)
	for i := range c.cfg.clients {
		c.clients.Go(func() { c.client(i) })
	}
	return c
}

// start starts a server on the host, if none runs there.
func (h *host) start() {
	c := h.c
	if h.now != nil {
		return
	}
	s := &server{c: c, host: h.name, items: map[uint32]*item{}, places: map[string]*place{}, looked: map[uint32]bool{}}
	s.p = c.w.Process(h.name, int64(c.w.Rand.IntN(40_001))-20_000)
	s.changed.L = noLock{}
	h.now = s
	cfg := named.Config{Lease: c.cfg.lease, Beat: c.cfg.beat, Patience: h.patience}
	h.patience = named.DefaultPatience
	s.p.Go(func() {
		err := s.run(context.Background(), cfg)
		c.w.Note("%s ends: %v", h.name, err)
		// The server drops all that it had; a new one starts after a while.
		c.w.After(time.Millisecond, func() { h.kill(s, time.Duration(c.w.Rand.Int64N(int64(2*time.Second)))) })
	})
}

// kill ends server s, if it is still the one that runs on the host, and starts another one when away has passed.
func (h *host) kill(s *server, away time.Duration) {
	if s == nil || h.now != s {
		return
	}
	s.serving = false
	s.p.Kill()
	h.now = nil
	h.c.w.After(away, h.start)
}

// owner returns the server that serves; of several, the one with the highest epoch; nil if none serves. It may have
// been superseded without knowing.
func (c *cluster) owner() (o *server) {
	for _, h := range c.servers {
		if s := h.now; s != nil && s.serving && (o == nil || s.o.Epoch() > o.o.Epoch()) {
			o = s
		}
	}
	return o
}

// manifest returns the manifest that the register holds, or nil if there is none.
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

// opened checks a server that is about to serve: it must have found all that was acknowledged or shown, and no server
// of an earlier epoch may still be able to answer.
func (c *cluster) opened(s *server) {
	c.counts.takeovers++
	for _, h := range c.servers {
		if o := h.now; o != nil && o != s && o.o != nil && o.o.Epoch() < s.o.Epoch() && o.o.Stats().Shown {
			c.wrong("%s begins epoch %d, and %s in epoch %d may still answer", s.host, s.o.Epoch(), h.name, o.o.Epoch())
		}
	}
	if m := c.manifest(); m == nil || m.Epoch != s.o.Epoch() {
		return // it has been superseded and does not know yet; its answers are checked
	}
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

// client runs client i, which sets its own keys and gets any key.
func (c *cluster) client(i int) {
	p, r := c.clients, c.w.Rand
	to := 0
	for {
		p.Sleep(time.Duration(r.Int64N(int64(60 * time.Millisecond))))
		h, roams := c.servers[to], r.IntN(c.cfg.roam) == 0
		if roams {
			h = c.servers[r.IntN(len(c.servers))]
		}
		var ok bool
		if r.IntN(2) == 0 {
			n := c.cfg.keys / c.cfg.clients // some are set often, and others seldom
			key := uint32(min(r.IntN(n), r.IntN(n), r.IntN(n))*c.cfg.clients + i)
			c.sent[key]++
			version := c.sent[key]
			_, ok = c.ask(h, func(s *server) (uint64, bool) { return 0, s.set(key, valueOf(key, version)) })
			if ok {
				c.counts.sets++
				c.floor[key] = max(c.floor[key], version)
				if r.IntN(4) == 0 { // somebody else asks the other servers at once
					for _, o := range c.servers {
						if o != h {
							p.Go(func() { c.get(o, key) })
						}
					}
				}
			}
		} else {
			ok = c.get(h, uint32(r.IntN(c.cfg.keys)))
		}
		if !ok && !roams {
			c.counts.unanswered++
			to = (to + 1) % len(c.servers)
		}
	}
}

// get asks h for a key and checks the answer. It returns false if there was no answer.
func (c *cluster) get(h *host, key uint32) bool {
	floor := c.floor[key]
	version, ok := c.ask(h, func(s *server) (uint64, bool) { return s.get(key) })
	if !ok {
		return false
	}
	c.counts.gets++
	if version < floor || version > c.sent[key] {
		c.wrong("%s answers version %d of key %d, and version %d had been acknowledged or shown before it was asked (version %d was sent)", h.name, version, key, floor, c.sent[key])
	}
	c.floor[key] = max(c.floor[key], version)
	return true
}

// ask has the server on h run f as a request, and returns f's results. It returns false if there is no server, or if
// it does not answer within the client's patience.
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
	timer := c.clients.NewTimer(c.cfg.patient)
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
