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
	Durable      bool          // changes survive a crash once they are answered
	DurableEvery time.Duration // if not 0, Durable with this exception: changes of the last DurableEvery may be lost
	Listen       string        // where Redis clients connect
	Advertise    string        // this server's address, as servers that may take over tell clients; found if empty
	MaxValue     int64         // bytes; 0 means a quarter of Local, at most a third of ClientMemory
	MaxClients   int
	OutputLimit  int64         // bytes
	ClientMemory int64         // bytes that clients of all front ends may hold
	IdleTimeout  time.Duration // 0 means none
	Partitions   int           // partitions of a heap that servers share; 0 for a heap that one server has
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

// UpConfig configures everything in one process. If Far is empty and there is no
// Disk, memory is borrowed from a node in this process. Of Node's fields, polder up
// sets Lend, Overcommit, Chunk, Grace and Components.
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

// unlessEnding returns err, the error of a start, or nil if the start was given up because
// ctx is done: then the daemon ends in good order, as it would later.
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

// largest is the size of the largest value in bytes, if there are data bytes for data.
// By default it is at most a third of ClientMemory: clients must be able to send and
// receive such a value within ClientMemory, and a command may have two of them.
func (c *ServeConfig) largest(data int64) int64 {
	if c.MaxValue == 0 {
		return min(data/4, c.ClientMemory/3)
	}
	return c.MaxValue
}

// listen opens the addresses. Daemons call it first, since an address in use is the
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
	p.onEnd("the heap", m.close)                 // called after the front end has ended
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
	heap, lent := m.heap, m.lent // copies: more is also called while m is being closed
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

// closeWithin is how long to try to take the heap's last checkpoint, see memory. With Durable, the log has all that
// the checkpoint would have: the checkpoint then only makes the next start quicker, and gets little time.
func (c *ServeConfig) closeWithin() time.Duration {
	if c.Durable {
		return durableClose
	}
	return 0
}

const durableClose = 8 * time.Second

// journal configures the journal, which keeps the changes that no checkpoint has yet.
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

// shared is the name of the heap if other servers may take it over, and "" otherwise.
func (c *ServeConfig) shared() string {
	if len(c.Witness) == 0 {
		return ""
	}
	return c.Heap
}

// reachedAt returns the address at which other machines may reach the listener at lis. If lis is every address of
// this machine, it is the address from which this machine would connect to one of the peers.
func reachedAt(lis string, peers []string) string {
	host, port, err := net.SplitHostPort(lis)
	if ip := net.ParseIP(host); err != nil || host != "" && !ip.IsUnspecified() {
		return lis
	}
	var local net.IP
	for _, peer := range peers {
		c, err := net.Dial("udp", peer) // sends nothing
		if err != nil {
			continue // the peer is a socket's path, or its name is not known
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

// How a server knows, before it answers, that no other server has the heap.
const (
	Lease  = "lease"
	Fenced = "fenced"
)

func (c *BorrowConfig) fenced() bool { return c.Reads == Fenced }

// evidence is how the front end finds out that no other process has taken the heap over; nil if none can.
func (m *memory) evidence(cfg ServeConfig) keyspace.Evidence {
	switch {
	case !cfg.keptAtNodes():
		return nil
	case cfg.fenced():
		return fenced{m}
	}
	return leased{m, cfg.OpTimeout}
}

// leased is evidence from the manifest. It is valid for the time of a lease.
type leased struct {
	m    *memory
	wait time.Duration
}

func (leased) Ask() uint64         { return 0 }
func (l leased) Shown(uint64) bool { return l.m.kept.owner.Shown(l.wait) }

// fenced is evidence from the nodes, which accept writes only from the owner.
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
		return "", nil // the one who read the password has reported it already
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
