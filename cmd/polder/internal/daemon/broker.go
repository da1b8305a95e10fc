package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"polder/internal/config"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/internal/scheme"
	"polder/pool"
	"polder/pool/broker"
	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// BrokerConfig configures the allocation service of a compute node.
type BrokerConfig struct {
	*operator.Control
	Listen     string   // a socket's path
	Far        []string // nodes to allocate from
	Cluster    string   // the nodes' cluster; "" for none
	SecretFile string   // file of the nodes' secret; "" for none
	Users      []int    // who may connect; nil for this process's user only
	Quota      int64    // the most bytes of a user; 0 means all
	MaxApps    int
	PerUser    int
}

func isBroker(addr string) bool { return scheme.Of(addr) == scheme.Broker }

// Check refuses values that do not go together, and reduces Listen to the path of
// the socket.
func (c *BrokerConfig) Check() error {
	path := strings.TrimPrefix(strings.TrimPrefix(c.Listen, scheme.Broker), scheme.Unix)
	if !filepath.IsAbs(path) {
		return refuse("listen", c.Listen, "the absolute path of a socket, such as %s", broker.DefaultSocket)
	}
	c.Listen = path
	if len(c.Far) == 0 {
		return &config.Error{Source: "--far", Err: errors.New(
			"it is not given; expected the addresses of nodes such as 127.0.0.1:7070")}
	}
	for _, addr := range c.Far {
		if isUnix(addr) {
			return refuse("far", addr, "HOST:PORT: nodes at Unix sockets do not lend by finemem")
		}
	}
	if len(c.Far) > broker.MaxNodes {
		return refuse("far", strings.Join(c.Far, ","), "at most %d nodes", broker.MaxNodes)
	}
	return nil
}

// RunBroker allocates for the applications of this machine until ctx is done.
func RunBroker(ctx context.Context, cfg BrokerConfig) (err error) {
	p := newProcess("broker", cfg.Control)
	defer p.close(&err)
	if err := cfg.Check(); err != nil {
		return err
	}
	secret, err := readSecret(cfg.SecretFile)
	if err != nil {
		return err
	}
	if err := p.listenAdmin(); err != nil {
		return err
	}
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		return err
	}
	p.onClose(dev.Close)
	c := broker.Config{
		Device: dev, Cluster: cfg.Cluster, Secret: secret, Users: cfg.Users, Quota: cfg.Quota,
		MaxApps: cfg.MaxApps, PerUser: cfg.PerUser, Logger: p.Logger,
	}
	for _, addr := range cfg.Far {
		c.Nodes = append(c.Nodes, broker.Node{
			Addr: addr,
			Dial: func(ctx context.Context) (verbs.Conn, error) { return tcp.Dial(ctx, dev, addr, p.toNodes()) },
		})
	}
	openCtx, cancel := context.WithTimeoutCause(ctx, openTimeout, errors.New("no answer in time"))
	defer cancel()
	b, err := broker.New(openCtx, c)
	if err != nil {
		return err
	}
	p.onClose(b.Close)
	lis, err := b.Listen(cfg.Listen)
	if err != nil {
		return listen.Explain("listen", cfg.Listen, err)
	}
	p.spawn("the broker stopped serving", func() error { return b.Serve(lis) })
	p.addrs[ServiceBroker] = scheme.Broker + cfg.Listen
	p.collectors = append(p.collectors, broker.NewCollector(b))
	p.health = func() error { return anyBrokered(b.Stats()) }
	if err := p.serveAdmin(); err != nil {
		return err
	}
	title := "polder broker allocates at " + strings.Join(cfg.Far, ", ")
	if err := p.ready(title, "polder serve --far "+scheme.Broker+cfg.Listen); err != nil {
		return err
	}
	return p.wait(ctx)
}

// anyBrokered fails if no node can be reached.
func anyBrokered(s broker.Stats) error {
	var causes []error
	for _, n := range s.Nodes {
		if n.Up {
			return nil
		}
		causes = append(causes, fmt.Errorf("%s: %s", n.Addr, n.Cause))
	}
	return fmt.Errorf("no node can be reached: %w", errors.Join(causes...))
}

// brokerTime bounds the wait for a broker's answer.
const brokerTime = 5 * time.Second

// borrowBrokered returns how to open a pool over the nodes of a broker on this machine.
func (p *process) borrowBrokered(ctx context.Context, cfg BorrowConfig) (c pool.Config, err error) {
	d := broker.NewDialer(cfg.Far[0])
	p.onClose(d.Close)
	dialCtx, cancel := context.WithTimeoutCause(ctx, brokerTime, errors.New("no answer in time"))
	defer cancel()
	nodes, err := d.Nodes(dialCtx)
	if errors.Is(err, broker.ErrGone) {
		return c, fmt.Errorf("%w: is polder broker running there?", err)
	}
	if err != nil {
		return c, err
	}
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		return c, err
	}
	p.onClose(dev.Close)
	c = pool.Config{Device: dev, Manager: broker.Manager{}}
	for _, addr := range nodes {
		c.Nodes = append(c.Nodes, pool.NodeConfig{
			Name: addr,
			Dial: func(ctx context.Context) (verbs.Conn, error) {
				return d.Dial(ctx, addr, func(ctx context.Context) (verbs.Conn, error) { return tcp.Dial(ctx, dev, addr, p.toNodes()) })
			},
		})
	}
	return c, nil
}
