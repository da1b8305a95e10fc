package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"polder/internal/config"
	"polder/internal/listen"
	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool/finemem"
	"polder/verbs"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// NodeConfig configures a memory node.
type NodeConfig struct {
	Common
	Listen       string // where clients connect: HOST:PORT or unix:PATH
	Lend         int64  // bytes
	Chunk        int64  // bytes
	ClientBudget int64  // bytes; 0 means all
	Grace        time.Duration
	Manager      string // way of managing memory; the default if empty
	SecretFile   string // of what brokers must show; "" for nothing

	secret [wire.SecretSize]byte // from SecretFile
}

// check finds what is wrong with values that fit each by itself.
func (c *NodeConfig) check() error {
	wrong := func(flag string, value int64) error {
		return &config.Error{Source: "--" + flag, Value: config.FormatSize(value),
			Err: fmt.Errorf("expected at least one chunk, which --chunk says is %s", config.FormatSize(c.Chunk))}
	}
	switch {
	case c.Lend < c.Chunk:
		return wrong("lend", c.Lend)
	case isUnix(c.Listen) && c.Manager != "":
		return &config.Error{Source: "--manager", Value: c.Manager,
			Err: fmt.Errorf("expected none with a Unix socket, where memory is lent by %s", memnode.MemFD)}
	case c.SecretFile != "" && c.Manager != finemem.Name:
		return &config.Error{Source: "--service-secret-file", Value: c.SecretFile,
			Err: fmt.Errorf("expected none unless --manager is %s", finemem.Name)}
	case c.ClientBudget != 0 && c.ClientBudget < c.Chunk:
		return wrong("client-budget", c.ClientBudget)
	}
	return nil
}

func (c *NodeConfig) memnode() memnode.Config {
	m := memnode.Config{
		Lend:         c.Lend,
		ChunkSize:    int(c.Chunk),
		ClientBudget: c.ClientBudget,
		Grace:        c.Grace,
		Manager:      c.Manager,
		Logger:       c.Logger,

		ServiceSecret: c.secret,
	}
	if isUnix(c.Listen) {
		m.Manager = memnode.MemFD
	}
	return m
}

// RunNode lends memory until ctx is done.
func RunNode(ctx context.Context, cfg NodeConfig) (err error) {
	p := newProcess("node", cfg.Common)
	defer p.close(&err)

	if err := cfg.check(); err != nil {
		return err
	}
	if !isUnix(cfg.Listen) {
		if err := cfg.Security.Check("listen", cfg.Listen); err != nil {
			return err
		}
	}
	serverTLS, _, err := cfg.Security.TLS()
	if err != nil {
		return err
	}
	if err := p.listenAdmin(); err != nil {
		return err
	}
	newDevice := tcp.NewDevice
	if isUnix(cfg.Listen) {
		newDevice = shm.NewDevice
	}
	dev, err := newDevice(softnic.Config{})
	if err != nil {
		return err
	}
	p.onClose(dev.Close)
	if cfg.secret, err = readSecret(cfg.SecretFile); err != nil {
		return err
	}
	node, err := p.node(dev, cfg)
	if err != nil {
		return err
	}
	var lis verbs.Listener
	if isUnix(cfg.Listen) {
		lis, err = p.listenUnix(dev, cfg.Listen)
	} else {
		lis, err = tcp.Listen(dev, cfg.Listen, tcp.Config{TLS: serverTLS, Insecure: cfg.Security.Insecure})
	}
	if err != nil {
		return listen.Explain("listen", cfg.Listen, err)
	}
	p.spawn("the node stopped serving", func() error { return node.Serve(lis) })
	p.addrs[ServiceVerbs] = lis.Addr()
	if err := p.serveAdmin(); err != nil {
		return err
	}
	title := fmt.Sprintf("polder node lends %s in chunks of %s", config.FormatSize(cfg.Lend), config.FormatSize(cfg.Chunk))
	if err := p.ready(title, "polder serve --far "+lis.Addr()); err != nil {
		return err
	}
	return p.wait(ctx)
}

// node makes the memory node on dev.
func (p *process) node(dev verbs.Device, cfg NodeConfig) (*memnode.Node, error) {
	cfg.Logger = p.Logger
	node, err := memnode.New(dev, cfg.memnode())
	if err != nil {
		return nil, err
	}
	p.onClose(node.Close)
	p.collectors = append(p.collectors, prometheus.Collector(memnode.NewCollector(node)))
	p.reports = append(p.reports, func(s *Status) {
		stats := node.Stats()
		s.Node, s.Clients = &stats, node.Clients()
	})
	return node, nil
}
