package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"polder/internal/config"
	"polder/internal/directory"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/pool"
	"polder/pool/memfd"
	"polder/resp"
	"polder/resp/clientmem"
	"polder/resp/keyspace"
)

// ServeConfig configures a Redis front end over borrowed memory.
type ServeConfig struct {
	*operator.Control
	BorrowConfig
	Durable      bool          // what was answered survives a crash
	DurableEvery time.Duration // but for the last so long before a loss of power
	Listen       string        // where Redis clients connect
	Advertise    string        // the address at which they do, as servers that may take over tell them; found if empty
	MaxValue     int64         // bytes; 0 means a quarter of Local, at most a third of ClientMemory
	MaxClients   int
	OutputLimit  int64         // bytes
	ClientMemory int64         // bytes that clients of all front ends may hold
	IdleTimeout  time.Duration // 0 means none
	Partitions   int           // of the heap, which servers share; 0 for a heap that one has
}

// DefaultServe returns the defaults, without addresses.
func DefaultServe() ServeConfig {
	return ServeConfig{
		BorrowConfig: DefaultBorrow(),
		MaxClients:   10_000,
		OutputLimit:  8 << 20,
		ClientMemory: 16 << 20,
	}
}

// UpConfig configures everything in one process. If Far is empty, memory is
// borrowed from Node, of which only Lend, Chunk, Grace and Components count.
type UpConfig struct {
	ServeConfig
	Node       NodeConfig
	NodeListen string // a Unix socket where others borrow from Node; "" for nowhere
}

// Check refuses values that are valid by themselves but not together.
func (c *ServeConfig) Check() error {
	if 2*c.MaxValue > c.ClientMemory {
		return refuse("max-value", config.FormatSize(c.MaxValue), "at most half of --client-memory, which is %s", config.FormatSize(c.ClientMemory))
	}
	if c.Durable && c.Heap == "" {
		return refuse("durable", "yes", "none without --heap: what is stored ends with the process")
	}
	if c.fenced() && (!c.keptAtNodes() || !c.Durable || c.DurableEvery > 0) {
		return refuse("reads", c.Reads, "%s, but with --witness and --durable, which have a log at the nodes to ask by", Lease)
	}
	if c.Advertise != "" {
		if err := directory.CheckAddress(c.Advertise); err != nil {
			return &config.Error{Source: "--advertise", Value: c.Advertise, Err: err}
		}
		if len(c.Witness) == 0 {
			return refuse("advertise", c.Advertise, "none without --witness: there is no other server that could tell clients")
		}
	}
	return errors.Join(c.BorrowConfig.Check(), c.checkPartitions())
}

// Check refuses values that are valid by themselves but not together.
func (c *UpConfig) Check() error {
	if err := c.ServeConfig.Check(); err != nil {
		return err
	}
	memory := c.Node.Components.Memory
	switch {
	case c.NodeListen != "" && len(c.Far) > 0:
		return refuse("node-listen", c.NodeListen, "none with --far: there is no node in this process then")
	case c.NodeListen != "" && c.Manager != "":
		return refuse("manager", c.Manager, "none with --node-listen, where memory is lent by "+memfd.Name)
	case memory != 0 && c.NodeListen == "":
		return refuse("component-memory", config.FormatSize(memory), "0 without --node-listen: nobody else could call the components")
	case c.NodeListen != "" && c.Disk != "":
		return refuse("node-listen", c.NodeListen, "none with --disk: there is no node in this process then")
	case len(c.Far) > 0 || c.onDisk():
		return nil
	case c.Cluster != "":
		return refuse("cluster", c.Cluster, "none without --far: the node in this process is for this machine")
	case c.Heap != "":
		return refuse("heap", c.Heap, "none without --disk or --far: what this process lends itself ends with it")
	}
	return c.Node.Check()
}

const shutdownTimeout = 3 * time.Second

// RunServe serves Redis clients from borrowed memory until ctx is done.
func RunServe(ctx context.Context, cfg ServeConfig) (err error) {
	p := newProcess("serve", cfg.Control)
	p.ends.within = cmp.Or(cfg.EndWithin, p.ends.within)
	defer p.close(&err)
	if err := cfg.Check(); err != nil {
		return err
	}
	if err := p.listen(cfg); err != nil {
		return err
	}
	serve := p.openFar
	if cfg.Partitions > 0 {
		serve = p.servePartitions
	}
	if err := serve(ctx, cfg); err != nil {
		return p.unlessEnding(ctx, err)
	}
	title := fmt.Sprintf("polder serves Redis clients: %s local, the rest at %s", config.FormatSize(cfg.Local), cfg.where())
	if err := p.readyRedis(title); err != nil {
		return err
	}
	return p.wait(ctx)
}

// RunUp runs a node, a heap and a Redis front end until ctx is done.
func RunUp(ctx context.Context, cfg UpConfig) (err error) {
	p := newProcess("up", cfg.Control)
	p.ends.within = cmp.Or(cfg.EndWithin, p.ends.within)
	defer p.close(&err)
	if err := cfg.Check(); err != nil {
		return err
	}
	if err := p.listen(cfg.ServeConfig); err != nil {
		return err
	}
	title := fmt.Sprintf("polder is up: %s local, ", config.FormatSize(cfg.Local))
	if len(cfg.Far) > 0 || cfg.onDisk() {
		err = p.openFar(ctx, cfg.ServeConfig)
		title += "the rest at " + cfg.where()
	} else {
		err = p.openHere(ctx, cfg)
		title += config.FormatSize(cfg.Node.Lend) + " far, lent by this very process"
	}
	if err != nil {
		return p.unlessEnding(ctx, err)
	}
	if err := p.readyRedis(title); err != nil {
		return err
	}
	return p.wait(ctx)
}

// unlessEnding is the error of a start, or nil if it was given up because ctx is
// done: then the daemon ends in good order, as later.
func (p *process) unlessEnding(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return p.wait(ctx)
	}
	return err
}

func (p *process) readyRedis(title string) error {
	cli := p.redisCLI(p.addrs[ServiceRedis])
	return p.ready(title, cli+" set greeting hello", cli+" get greeting", cli+" polder stats")
}

// openFar starts the front end over nodes that listen elsewhere.
func (p *process) openFar(ctx context.Context, cfg ServeConfig) error {
	from, err := p.borrow(ctx, cfg.BorrowConfig)
	if err != nil {
		return err
	}
	return p.openPool(ctx, cfg, from)
}

// largest is the size of the largest value with so much memory for data. A
// client must be able to send one, and to have it sent, within what clients may
// hold; a third leaves room for a second one in the same command.
func (c *ServeConfig) largest(data int64) int64 {
	if c.MaxValue == 0 {
		return min(data/4, c.ClientMemory/3)
	}
	return c.MaxValue
}

// listen opens the addresses. It comes first: an address in use is the
// likeliest mistake.
func (p *process) listen(cfg ServeConfig) error {
	open := func() (net.Listener, error) { return cfg.Security.Listen(listen.Client, "listen", cfg.Listen) }
	if cfg.keptAtNodes() { // other servers forward what their clients say, and polder heap save copies the heap
		open = func() (net.Listener, error) { return cfg.Security.ListenPeers("listen", cfg.Listen) }
	}
	lis, err := open()
	if err != nil {
		return err
	}
	p.redis = lis
	p.onClose(func() error { _ = lis.Close(); return nil }) // the server closes it first, if one was started
	p.addrs[ServiceRedis] = listen.Address(lis)
	if len(cfg.Witness) > 0 {
		p.reached = cfg.Advertise
		if p.reached == "" {
			p.reached = reachedAt(p.addrs[ServiceRedis], slices.Concat(cfg.Witness, cfg.Far))
		}
	}
	return p.listenAdmin()
}

// openPool starts the heap and the Redis front end over a pool.
func (p *process) openPool(ctx context.Context, cfg ServeConfig, from lenders) error {
	stopLimit := limitGoMemory()
	p.onClose(func() error { stopLimit(); return nil })

	largest := cfg.largest(cfg.Local)
	var m memory
	p.onEnd("the heap", m.close)                 // after the front end's
	var stats atomic.Pointer[func() []resp.Stat] // nil without a heap
	server, err := resp.NewLoading(resp.Config{
		Password:     p.Password(),
		MaxBulk:      int(largest),
		MaxClients:   cfg.MaxClients,
		OutputLimit:  int(cfg.OutputLimit),
		ClientMemory: clientmem.New(cfg.ClientMemory),
		OpTimeout:    cfg.OpTimeout,
		IdleTimeout:  cfg.IdleTimeout,
		Journal:      m.journal(cfg),
		Heap:         cfg.shared(),
		Evidence:     m.evidence(cfg),
		Ready:        m.ready,
		Logger:       p.Logger,
		ExtraStats: func() []resp.Stat {
			if f := stats.Load(); f != nil {
				return (*f)()
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	m.master = server.SetMaster
	// Clients and operators are answered while the nodes are waited for.
	p.serveRedis(server)
	p.collectors = append(p.collectors, server.Collector())
	p.health = cfg.noAnswerYet
	if err := p.serveAdmin(); err != nil {
		return err
	}

	m.closeWithin = cfg.closeWithin()
	if err := m.open(ctx, p, cfg.BorrowConfig, from, int(largest)); err != nil {
		return err
	}
	if err := server.Open(ctx, m.heap); err != nil {
		return err
	}
	heap, lent := m.heap, m.lent // they are looked at also while m is being closed
	more := func() []resp.Stat {
		var borrowed pool.Stats
		if lent != nil {
			borrowed = lent.Stats()
		}
		return extraStats(heap.Stats(), borrowed)
	}
	stats.Store(&more)
	return m.show(p)
}

// closeWithin is for how long the last checkpoint of the heap is tried. Where the log has everything that it would have, a start that has less
// to read is all that it is for.
func (c *ServeConfig) closeWithin() time.Duration {
	if c.Durable {
		return durableClose
	}
	return 0
}

const durableClose = 8 * time.Second

// journal is what keeps what no checkpoint has yet.
func (m *memory) journal(cfg ServeConfig) keyspace.Journal {
	j := keyspace.Journal{Durable: cfg.Durable, Every: cfg.DurableEvery}
	switch {
	case cfg.onDisk():
		j.Dir = cfg.journalDir()
	case cfg.Heap != "":
		j.Log = func(ctx context.Context, replay func(rec []byte) error) (keyspace.RecordLog, error) {
			return m.kept.openLog(ctx, replay)
		}
	}
	return j
}

// shared is the name of the heap, if other servers may take it over.
func (c *ServeConfig) shared() string {
	if len(c.Witness) == 0 {
		return ""
	}
	return c.Heap
}

// reachedAt is the address of a listener as others may reach it, who can reach peers: if it is that of every address of this machine, the
// one from which a connection to a peer would come.
func reachedAt(lis string, peers []string) string {
	host, port, err := net.SplitHostPort(lis)
	if ip := net.ParseIP(host); err != nil || host != "" && !ip.IsUnspecified() {
		return lis
	}
	var local net.IP
	for _, peer := range peers {
		c, err := net.Dial("udp", peer) // which sends nothing
		if err != nil {
			continue // it is a socket's path, or its name is not known
		}
		ip := c.LocalAddr().(*net.UDPAddr).IP
		_ = c.Close()
		if local == nil || local.IsLoopback() {
			local = ip
		}
	}
	if local == nil {
		return lis
	}
	return net.JoinHostPort(local.String(), port)
}

// How a server knows that no other one has the heap, before it answers.
const (
	Lease  = "lease"
	Fenced = "fenced"
)

func (c *BorrowConfig) fenced() bool { return c.Reads == Fenced }

// evidence says, if another process may take the heap over, whether none has.
func (m *memory) evidence(cfg ServeConfig) keyspace.Evidence {
	switch {
	case !cfg.keptAtNodes():
		return nil
	case cfg.fenced():
		return fenced{m}
	}
	return leased{m, cfg.OpTimeout}
}

// leased is evidence of the manifest, which is used for a while.
type leased struct {
	m    *memory
	wait time.Duration
}

func (leased) Ask() uint64         { return 0 }
func (l leased) Shown(uint64) bool { return l.m.kept.owner.Shown(l.wait) }

// fenced is evidence of the nodes, which take writes of the owner alone.
type fenced struct{ m *memory }

func (f fenced) Ask() uint64 {
	if log := f.m.kept.log.Load(); log != nil {
		return log.Ask()
	}
	return 0
}

func (f fenced) Shown(ticket uint64) bool {
	log := f.m.kept.log.Load()
	return log != nil && ticket > 0 && log.Shown(ticket) == nil
}

// serveRedis serves Redis clients from now on.
func (p *process) serveRedis(server *resp.Server) {
	p.OnReload("password", func() (string, error) {
		server.SetPassword(p.Password())
		return "", nil // whoever has read it has said so
	})
	p.onEnd("the Redis front end", func() error {
		ctx, cancel := p.ends.phase(shutdownTimeout, true)
		defer cancel()
		err := server.Shutdown(ctx)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			p.Logger.Warn("commands of clients that waited for far memory were ended, and replies that waited for copies were not sent")
		case err != nil:
			return fmt.Errorf("cannot end the Redis front end: %w", err)
		}
		return nil
	})
	p.spawn("the Redis front end stopped serving", func() error {
		if err := server.Serve(p.redis); !errors.Is(err, resp.ErrServerClosed) {
			return err
		}
		return nil
	})
}
