package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"polder/far"
	"polder/far/prom"
	"polder/far/remote"
	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/internal/scheme"
	"polder/pool"
	"polder/pool/memfd"
	"polder/resp"
	"polder/resp/clientmem"
	"polder/verbs"
	"polder/verbs/ibv"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// ServeConfig configures a Redis front end over borrowed memory.
type ServeConfig struct {
	*operator.Control
	Listen       string   // where Redis clients connect
	Far          []string // nodes to borrow from
	Manager      string   // the nodes' way of managing memory; the default if empty
	Device       string   // the RDMA device that reaches them; the only one if empty
	Groups       int      // see pool.Config
	Pairs        int      // see pool.Config
	Local        int64    // bytes
	MaxValue     int64    // bytes; 0 means a quarter of Local, at most a third of ClientMemory
	MaxClients   int
	OutputLimit  int64 // bytes
	ClientMemory int64 // bytes that clients of all front ends may hold
	OpTimeout    time.Duration
	IdleTimeout  time.Duration // 0 means none
	FarWait      time.Duration // how long to wait at the start for a node to answer
}

// DefaultServe returns the defaults, without addresses.
func DefaultServe() ServeConfig {
	return ServeConfig{
		Local:        64 << 20,
		MaxClients:   10_000,
		OutputLimit:  8 << 20,
		ClientMemory: 16 << 20,
		OpTimeout:    2 * time.Second,
		FarWait:      30 * time.Second,
	}
}

// UpConfig configures everything in one process. If Far is empty, memory is
// borrowed from Node, of which only Lend, Chunk, Grace and Components count.
type UpConfig struct {
	ServeConfig
	Node       NodeConfig
	NodeListen string // a Unix socket where others borrow from Node; "" for nowhere
}

// Check finds what is wrong with values that fit each by itself.
func (c *ServeConfig) Check() error {
	if 2*c.MaxValue > c.ClientMemory {
		return refuse("max-value", config.FormatSize(c.MaxValue), "at most half of --client-memory, which is %s", config.FormatSize(c.ClientMemory))
	}
	if slices.ContainsFunc(c.Far, isBroker) {
		switch {
		case len(c.Far) > 1:
			return refuse("far", strings.Join(c.Far, ","), "a broker alone, which knows its nodes")
		case c.Manager != "":
			return refuse("manager", c.Manager, "none with a broker")
		case c.Device != "":
			return refuse("device", c.Device, "none with a broker, whose nodes are reached over TCP")
		}
		return nil
	}
	by, same := scheme.Common(c.Far)
	switch {
	case !same:
		return refuse("far", strings.Join(c.Far, ","), "one kind of address for every node: HOST:PORT, %sPATH, or %sHOST:PORT", scheme.Unix, scheme.RDMA)
	case c.Device != "" && by != scheme.RDMA:
		return refuse("device", c.Device, "none without nodes at %sHOST:PORT", scheme.RDMA)
	case c.Manager != "" && by == scheme.Unix:
		return refuse("manager", c.Manager, "none with nodes at Unix sockets, which lend by %s", memfd.Name)
	}
	return nil
}

// Check finds what is wrong with values that fit each by itself.
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
	case len(c.Far) > 0:
		return nil
	}
	return c.Node.Check()
}

const (
	openTimeout     = 10 * time.Second
	firstPause      = 100 * time.Millisecond // between attempts to open a pool
	lastPause       = 5 * time.Second
	shutdownTimeout = 3 * time.Second
)

// RunServe serves Redis clients from borrowed memory until ctx is done.
func RunServe(ctx context.Context, cfg ServeConfig) (err error) {
	p := newProcess("serve", cfg.Control)
	defer p.close(&err)
	if err := cfg.Check(); err != nil {
		return err
	}
	if err := p.listen(cfg); err != nil {
		return err
	}
	if err := p.openFar(ctx, cfg); err != nil {
		return p.unlessEnding(ctx, err)
	}
	title := fmt.Sprintf("polder serves Redis clients: %s local, the rest at %s", config.FormatSize(cfg.Local), strings.Join(cfg.Far, ", "))
	if err := p.readyRedis(title); err != nil {
		return err
	}
	return p.wait(ctx)
}

// RunUp runs a node, a heap and a Redis front end until ctx is done.
func RunUp(ctx context.Context, cfg UpConfig) (err error) {
	p := newProcess("up", cfg.Control)
	defer p.close(&err)
	if err := cfg.Check(); err != nil {
		return err
	}
	if err := p.listen(cfg.ServeConfig); err != nil {
		return err
	}
	title := fmt.Sprintf("polder is up: %s local, ", config.FormatSize(cfg.Local))
	if len(cfg.Far) > 0 {
		err = p.openFar(ctx, cfg.ServeConfig)
		title += "the rest at " + strings.Join(cfg.Far, ", ")
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
	if slices.ContainsFunc(cfg.Far, isBroker) {
		return p.openBrokered(ctx, cfg)
	}
	by, _ := scheme.Common(cfg.Far)
	manager, err := managerNamed(cfg.Manager)
	if err != nil {
		return err
	}
	var dev verbs.Device
	var dial func(ctx context.Context, addr string) (verbs.Conn, error)
	switch by {
	case scheme.Unix:
		manager = memfd.Manager{}
		p.warnInPlace()
		dev, err = shm.NewDevice(softnic.Config{})
		dial = func(ctx context.Context, addr string) (verbs.Conn, error) {
			return shm.Dial(ctx, dev, addr, shm.Config{})
		}
	case scheme.RDMA:
		dev, err = ibv.Open(cfg.Device)
		dial = func(ctx context.Context, addr string) (verbs.Conn, error) {
			return ibv.Dial(ctx, dev, strings.TrimPrefix(addr, scheme.RDMA), p.toNodes())
		}
	default:
		dev, err = tcp.NewDevice(softnic.Config{})
		dial = func(ctx context.Context, addr string) (verbs.Conn, error) {
			return tcp.Dial(ctx, dev, addr, p.toNodes())
		}
	}
	if err != nil {
		return err
	}
	p.onClose(dev.Close)
	var nodes []pool.NodeConfig
	for _, addr := range cfg.Far {
		nodes = append(nodes, pool.NodeConfig{
			Name: addr,
			Dial: func(ctx context.Context) (verbs.Conn, error) { return dial(ctx, addr) },
		})
	}
	return p.openPool(ctx, cfg, pool.Config{Device: dev, Nodes: nodes, Manager: manager})
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

// toNodes is how to connect to a node at the moment: certificates may be new since
// the last time.
func (p *process) toNodes() tcp.Config {
	return tcp.Config{TLS: p.Security.Dial(), Insecure: p.Security.Insecure}
}

// managerNamed is the way of managing memory of that name, nil for the default.
func managerNamed(name string) (pool.Manager, error) {
	if name == "" {
		return nil, nil
	}
	return pool.ManagerNamed(name)
}

// listen opens the addresses. It comes first: an address in use is the
// likeliest mistake.
func (p *process) listen(cfg ServeConfig) error {
	lis, err := cfg.Security.Listen(listen.Client, "listen", cfg.Listen)
	if err != nil {
		return err
	}
	p.redis = lis
	p.onClose(func() error { _ = lis.Close(); return nil }) // the server closes it, if it comes to that
	p.addrs[ServiceRedis] = listen.Address(lis)
	return p.listenAdmin()
}

// openPool starts the heap and the Redis front end over a pool.
func (p *process) openPool(ctx context.Context, cfg ServeConfig, poolCfg pool.Config) error {
	stopLimit := limitGoMemory()
	p.onClose(func() error { stopLimit(); return nil })

	poolCfg.Groups, poolCfg.Pairs = cfg.Groups, cfg.Pairs
	largest := cfg.largest(cfg.Local)
	var heap *far.Heap
	var lent *pool.Pool
	p.onClose(func() (err error) { // after the front end's
		if heap != nil {
			err = heap.Close()
		}
		if lent != nil {
			err = errors.Join(err, lent.Close())
		}
		return err
	})
	var stats atomic.Pointer[func() []resp.Stat] // nil without a heap
	server, err := resp.NewLoading(resp.Config{
		Password:     p.Password(),
		MaxBulk:      int(largest),
		MaxClients:   cfg.MaxClients,
		OutputLimit:  int(cfg.OutputLimit),
		ClientMemory: clientmem.New(cfg.ClientMemory),
		OpTimeout:    cfg.OpTimeout,
		IdleTimeout:  cfg.IdleTimeout,
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
	// Clients and operators are answered while the nodes are waited for.
	p.serveRedis(server)
	p.collectors = append(p.collectors, server.Collector())
	p.health = func() error { return fmt.Errorf("no node has answered yet: %s", strings.Join(cfg.Far, ", ")) }
	if err := p.serveAdmin(); err != nil {
		return err
	}

	poolCfg.Timeout, poolCfg.Logger = cfg.OpTimeout, p.Logger
	lent, err = p.awaitNodes(ctx, cfg.FarWait, poolCfg)
	if err != nil && len(cfg.Far) > 0 && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)) {
		if isBroker(cfg.Far[0]) {
			return fmt.Errorf("%w: are its nodes running?", err)
		}
		return fmt.Errorf("%w: is polder node running there?", err)
	}
	if err != nil {
		return err
	}
	heap, err = far.NewHeap(remote.NewStore(lent), far.Config{Local: cfg.Local, MaxValue: int(largest)})
	if err != nil {
		return err
	}
	server.Open(heap)
	more := func() []resp.Stat { return extraStats(heap.Stats(), lent.Stats()) }
	stats.Store(&more)
	return p.nowShow(func() error { return anyNodeUp(lent.Stats()) }, func(s *console.State) {
		s.Advice = strings.Split(strings.TrimSpace(heap.Explain()), "\n")
	}, pool.NewCollector(lent), prom.NewCollector(heap))
}

// serveRedis serves Redis clients from now on.
func (p *process) serveRedis(server *resp.Server) {
	p.OnReload("password", func() (string, error) {
		server.SetPassword(p.Password())
		return "", nil // whoever has read it has said so
	})
	p.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
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

var errNoAnswer = errors.New("no answer in time")

// awaitNodes opens a pool. If no node answers it tries again, for as long as wait
// says: the nodes may have been started just now, too.
func (p *process) awaitNodes(ctx context.Context, wait time.Duration, cfg pool.Config) (*pool.Pool, error) {
	deadline := time.Now().Add(wait)
	defer p.Waiting("waiting for a node to answer")()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		openCtx, cancel := context.WithTimeoutCause(ctx, openTimeout, errNoAnswer)
		lent, err := pool.Open(openCtx, cfg)
		cancel()
		left := time.Until(deadline)
		var refused *verbs.RejectError
		again := errors.Is(err, pool.ErrNodeGone) && !errors.As(err, &refused) || errors.Is(err, errNoAnswer)
		if left <= 0 || !again {
			return lent, err
		}
		if pause == firstPause {
			p.Logger.Warn("no node answers yet", "trying again for", left.Round(time.Second), "error", err)
		}
		why := fmt.Errorf("waiting for a node: %w", err)
		p.mu.Lock()
		p.health = func() error { return why }
		p.mu.Unlock()
		timer := time.NewTimer(min(pause, left))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// anyNodeUp fails if no node can be borrowed from.
func anyNodeUp(s pool.Stats) error {
	var states []string
	for _, n := range s.Nodes {
		if n.State == "up" {
			return nil
		}
		states = append(states, n.Name+" is "+n.State)
	}
	return fmt.Errorf("no node can be used: %s", strings.Join(states, ", "))
}
