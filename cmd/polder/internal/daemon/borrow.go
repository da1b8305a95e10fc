package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"polder/far"
	"polder/far/prom"
	"polder/far/remote"
	"polder/internal/console"
	"polder/internal/scheme"
	"polder/pool"
	"polder/pool/memfd"
	"polder/verbs"
	"polder/verbs/ibv"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// BorrowConfig says how a daemon borrows memory, and how much it keeps of its own.
type BorrowConfig struct {
	Far       []string // nodes to borrow from
	Manager   string   // the nodes' way of managing memory; the default if empty
	Device    string   // the RDMA device that reaches them; the only one if empty
	Groups    int      // see pool.Config
	Pairs     int      // see pool.Config
	Local     int64    // bytes
	OpTimeout time.Duration
	FarWait   time.Duration // how long to wait at the start for a node to answer
}

// DefaultBorrow returns the defaults, without addresses.
func DefaultBorrow() BorrowConfig {
	return BorrowConfig{Local: 64 << 20, OpTimeout: 2 * time.Second, FarWait: 30 * time.Second}
}

// Check finds what is wrong with values that fit each by itself.
func (c *BorrowConfig) Check() error {
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

// noAnswerYet is how healthy a daemon is that waits for its nodes.
func (c *BorrowConfig) noAnswerYet() error {
	return fmt.Errorf("no node has answered yet: %s", strings.Join(c.Far, ", "))
}

const (
	openTimeout = 10 * time.Second
	firstPause  = 100 * time.Millisecond // between attempts to open a pool
	lastPause   = 5 * time.Second
)

// memory is a heap over borrowed memory. It is empty until it is open.
type memory struct {
	lent *pool.Pool
	heap *far.Heap
}

// close ends what is open.
func (m *memory) close() (err error) {
	if m.heap != nil {
		err = m.heap.Close()
	}
	if m.lent != nil {
		err = errors.Join(err, m.lent.Close())
	}
	return err
}

// open opens a pool, for which it waits as cfg says, and a heap over it whose values have up
// to so many bytes.
func (m *memory) open(ctx context.Context, p *process, cfg BorrowConfig, poolCfg pool.Config, maxValue int) (err error) {
	poolCfg.Groups, poolCfg.Pairs = cfg.Groups, cfg.Pairs
	poolCfg.Timeout, poolCfg.Logger = cfg.OpTimeout, p.Logger
	m.lent, err = p.awaitNodes(ctx, cfg.FarWait, poolCfg)
	if err != nil && len(cfg.Far) > 0 && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)) {
		if isBroker(cfg.Far[0]) {
			return fmt.Errorf("%w: are its nodes running?", err)
		}
		return fmt.Errorf("%w: is polder node running there?", err)
	}
	if err != nil {
		return err
	}
	m.heap, err = far.NewHeap(remote.NewStore(m.lent), far.Config{Local: cfg.Local, MaxValue: maxValue})
	return err
}

// show has the administrative address show the pool and the heap from now on.
func (m *memory) show(p *process) error {
	return p.nowShow(func() error { return anyNodeUp(m.lent.Stats()) }, func(s *console.State) {
		s.Advice = strings.Split(strings.TrimSpace(m.heap.Explain()), "\n")
	}, pool.NewCollector(m.lent), prom.NewCollector(m.heap))
}

// borrow is how a pool is opened over nodes that listen elsewhere.
func (p *process) borrow(ctx context.Context, cfg BorrowConfig) (c pool.Config, err error) {
	if slices.ContainsFunc(cfg.Far, isBroker) {
		return p.borrowBrokered(ctx, cfg)
	}
	by, _ := scheme.Common(cfg.Far)
	manager, err := managerNamed(cfg.Manager)
	if err != nil {
		return c, err
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
		return c, err
	}
	p.onClose(dev.Close)
	var nodes []pool.NodeConfig
	for _, addr := range cfg.Far {
		nodes = append(nodes, pool.NodeConfig{
			Name: addr,
			Dial: func(ctx context.Context) (verbs.Conn, error) { return dial(ctx, addr) },
		})
	}
	return pool.Config{Device: dev, Nodes: nodes, Manager: manager}, nil
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
