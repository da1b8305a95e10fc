package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"polder/internal/config"
	"polder/internal/directory"
	"polder/internal/etcd"
	"polder/internal/listen"
	"polder/memnode"
	"polder/pool"
	"polder/verbs"
)

// etcdClient returns a client for the cluster in etcd that addr, the value of a flag, names. It shows etcd the
// certificate that is shown to nodes. The caller closes the client.
func (p *process) etcdClient(flag, addr, authFile string) (client *etcd.Client, cluster string, err error) {
	endpoints, cluster, err := config.ParseEtcd(addr)
	if err != nil {
		return nil, "", err
	}
	if p.Security.Dial() == nil && !p.Security.Insecure {
		for _, e := range endpoints {
			if here, err := listen.Loopback(e); err != nil || !here {
				return nil, "", refuse(flag, addr, "--tls-cert, --tls-key and --tls-ca with it, or --insecure: %s is on another machine", e)
			}
		}
	}
	cfg := etcd.Config{Endpoints: endpoints, TLS: p.Security.Dial}
	auth, err := config.ReadSecret("etcd-auth-file", authFile)
	if err != nil {
		return nil, "", err
	}
	if auth != "" {
		var ok bool
		if cfg.User, cfg.Password, ok = strings.Cut(auth, ":"); !ok || cfg.User == "" {
			return nil, "", refuse("etcd-auth-file", authFile, "a file with one line, NAME:PASSWORD")
		}
	}
	client, err = etcd.New(cfg)
	return client, cluster, err
}

// openEtcd opens the directory in etcd that addr, the value of a flag, names. The process closes it when it ends.
func (p *process) openEtcd(flag, addr, authFile string) (*directory.Directory, error) {
	client, cluster, err := p.etcdClient(flag, addr, authFile)
	if err != nil {
		return nil, err
	}
	p.onClose(func() error { client.Close(); return nil })
	return directory.New(client, cluster), nil
}

// An etcdDirectory is the nodes that have announced themselves in etcd as members of a cluster.
type etcdDirectory struct {
	name string
	*directory.Directory
	dial  func(ctx context.Context, addr string) (verbs.Conn, error)
	log   *slog.Logger
	known []string // the addresses that lookup returned last; used by lookup only
	wrong string   // the error about the entries that lookup left out then; used by lookup only
}

func (p *process) openEtcdDirectory(cfg BorrowConfig, dial func(ctx context.Context, addr string) (verbs.Conn, error)) (*etcdDirectory, error) {
	d, err := p.openEtcd("far", cfg.Far[0], cfg.EtcdAuth)
	if err != nil {
		return nil, err
	}
	return &etcdDirectory{name: cfg.Far[0], Directory: d, dial: dial, log: p.Logger}, nil
}

func (d *etcdDirectory) String() string { return d.name }

// lookup implements nodeDirectory. One goroutine at a time may call it.
func (d *etcdDirectory) lookup(ctx context.Context) (addrs []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	nodes, wrong, err := d.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(wrong...); err == nil {
		d.wrong = ""
	} else if d.wrong != err.Error() {
		d.wrong = err.Error()
		d.log.Warn("what is wrong in the directory is left out", "directory", d.name, "error", err)
	}
	for _, n := range nodes {
		addrs = append(addrs, n.Address)
		if !slices.Contains(d.known, n.Address) {
			d.log.Info("the directory names a node", "directory", d.name, "node", n.Address, "zone", n.Zone,
				"lends", config.FormatSize(n.Capacity), "free", config.FormatSize(n.Free))
		}
	}
	d.known = addrs
	if len(addrs) == 0 {
		return nil, fmt.Errorf("no node has announced itself in %s: expected polder node --directory %s", d.name, d.name)
	}
	return addrs, nil
}

func (d *etcdDirectory) node(addr string) pool.NodeConfig {
	return pool.NodeConfig{Name: addr, Dial: func(ctx context.Context) (verbs.Conn, error) { return d.dial(ctx, addr) }}
}

// calm is the least time between two calls of changed.
const calm = 200 * time.Millisecond

func (d *etcdDirectory) watch(ctx context.Context, changed func()) {
	pause := func(long time.Duration) {
		timer := time.NewTimer(long)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		err := d.Watch(ctx, func() { changed(); pause(calm) })
		d.log.Debug("the directory is not watched", "directory", d.name, "error", err)
		pause(lookupEvery)
	}
}

// announce announces a node that listens at addr in the directory that cfg names, until close.
func (p *process) announce(cfg NodeConfig, addr string, node *memnode.Node) (*directory.Announcer, error) {
	if cfg.Advertise != "" {
		addr = cfg.Advertise
	}
	if err := directory.CheckAddress(addr); err != nil {
		return nil, refuse("directory", cfg.Directory, "--advertise HOST:PORT with it, at which clients reach the node: nobody can connect to %s", addr)
	}
	d, err := p.openEtcd("directory", cfg.Directory, cfg.EtcdAuth)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil || len(host) > 255 {
		host = ""
	}
	id := rand.Text()
	a := d.Announcer(directory.Config{Logger: p.Logger, Now: func() directory.Node {
		s := node.Stats()
		return directory.Node{
			Address: addr, Zone: cfg.Zone, ID: id, Host: host,
			Capacity: s.Chunks * int64(s.ChunkSize), Free: max(s.Chunks-s.Lent-s.Dirty, 0) * int64(s.ChunkSize),
		}
	}})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	p.onClose(func() error { stop(); <-ended; return nil })
	p.spawn("the node is not announced", func() error {
		defer close(ended)
		return a.Run(ctx)
	})
	p.collectors = append(p.collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "polder_node_announced", Help: "1 if the node is announced in the directory, as far as it knows.",
	}, func() float64 {
		if a.Announced() {
			return 1
		}
		return 0
	}))
	return a, nil
}

// checkDirectory refuses values about the directory that do not go together with the others.
func (c *NodeConfig) checkDirectory() error {
	_, elsewhere := c.places()
	switch {
	case c.Directory == "" && c.Advertise != "":
		return refuse("advertise", c.Advertise, "none without --directory")
	case c.Directory == "" && c.EtcdAuth != "":
		return refuse("etcd-auth-file", c.EtcdAuth, "none without --directory")
	case c.Directory == "":
		return nil
	case len(elsewhere) == 0:
		return refuse("directory", c.Directory, "none with Unix sockets alone, which nobody reaches from elsewhere")
	case c.Fabric == FabricRDMA:
		return refuse("directory", c.Directory, "none with --fabric rdma: its clients find nodes that they reach over TCP")
	case c.Advertise != "":
		if err := directory.CheckAddress(c.Advertise); err != nil {
			return &config.Error{Source: "--advertise", Value: c.Advertise, Err: err}
		}
		return nil
	}
	if host, _, err := net.SplitHostPort(elsewhere[0]); err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		return refuse("directory", c.Directory, "--advertise HOST:PORT with it, at which clients reach the node: --listen %s is every address of this machine", elsewhere[0])
	}
	return nil
}
