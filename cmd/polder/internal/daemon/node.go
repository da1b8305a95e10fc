package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"polder/holder"
	"polder/holder/witness"
	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/internal/scheme"
	"polder/memnode"
	"polder/memnode/component"
	"polder/memnode/ledger"
	"polder/memnode/wire"
	"polder/pool/finemem"
	"polder/verbs"
	"polder/verbs/ibv"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// NodeConfig configures a memory node.
type NodeConfig struct {
	*operator.Control
	Listen       []string // where clients connect: HOST:PORT or unix:PATH
	Lend         int64    // bytes; if there are both kinds of address, each gets half
	Idle         bool     // lend no more of Lend than the host does not need
	Overcommit   bool     // lend more than there is memory for
	Chunk        int64    // bytes
	ClientBudget int64    // bytes; HalfOfAll, or 0 for all
	Grace        time.Duration
	Zone         string        // what the node fails together with, such as a rack, or ""
	Cluster      string        // whose clients the node lends to, or ""
	Drain        time.Duration // before the end, how long clients have to move what they hold; 0 ends at once
	Directory    string        // the cluster in etcd in which to announce the node, or ""
	Advertise    string        // the address to announce; where it listens if empty
	EtcdAuth     string        // file of a name and a password for etcd; "" for none
	Manager      string        // way of managing memory; the default if empty
	Fabric       string        // FabricTCP or FabricRDMA; FabricTCP if empty
	Device       string        // the RDMA device; the only one if empty
	TrustClients bool          // see memnode.Config
	Groups       int           // the most groups of a client, see memnode.Config; the default if 0
	Pairs        int           // the most pairs of a client, likewise
	MaxClients   int           // the default if 0
	Components   component.Config
	SecretFile   string // file of the secret that brokers must show; "" for none
	InPlace      bool   // clients on this machine read in place what they write over TCP
	Keep         bool   // run under a keeper
	Dir          string // where a new keeper finds the node, or ""

	outliving *ledger.Outliving     // the memory that nodeElsewhere lends; nil if it ends with the process
	secret    [wire.SecretSize]byte // from SecretFile
}

// Check refuses values that are valid by themselves but not together.
func (c *NodeConfig) Check() error {
	size := config.FormatSize
	chunk := size(c.Chunk)
	here, elsewhere := c.places()
	switch {
	case c.both() && c.Lend < 2*c.Chunk:
		return refuse("lend", size(c.Lend), "at least two chunks of %s, one for clients at sockets and one for others", chunk)
	case c.Idle && c.both():
		return refuse("listen", strings.Join(c.Listen, ","), "one kind of address with --lend idle:, HOST:PORT or unix:PATH: start a node for each")
	case c.Idle && c.Overcommit:
		return refuse("overcommit", "true", "none with --lend idle:, which lends no more than there is")
	case c.Lend < c.Chunk:
		return refuse("lend", size(c.Lend), "at least one chunk, which --chunk says is %s", chunk)
	case len(here) > 0 && len(elsewhere) == 0 && c.Manager != "":
		return refuse("manager", c.Manager, "none with a Unix socket, where memory is lent by %s", memnode.MemFD)
	case c.Fabric == FabricRDMA && len(elsewhere) == 0:
		return refuse("listen", strings.Join(c.Listen, ","), "a HOST:PORT with --fabric rdma")
	case c.Fabric != FabricRDMA && c.Device != "":
		return refuse("device", c.Device, "none without --fabric rdma")
	case len(c.Zone) > wire.MaxZone:
		return refuse("zone", c.Zone, "a name of at most %d bytes", wire.MaxZone)
	case c.InPlace && len(elsewhere) == 0:
		return refuse("in-place", "true", "a HOST:PORT among --listen: at a Unix socket, memory is read and written in place without")
	case c.InPlace && c.Fabric == FabricRDMA:
		return refuse("in-place", "true", "none with --fabric rdma, whose clients read through the RDMA device")
	case c.InPlace && !c.fences():
		return refuse("in-place", "true", "none with the manager %s, whose clients could not be kept from believing what they read", c.Manager)
	case c.InPlace && c.Keep:
		return refuse("in-place", "true", "none with --keep: memory that outlives the node has the secrets of its clients beside it")
	case c.Keep && c.Idle:
		return refuse("keep", "true", "none with --lend idle:, of which some may be dropped")
	case c.Keep && !c.keeps():
		return refuse("keep", "true", "none with the manager %s, whose memory cannot outlive the node", c.Manager)
	case c.Keep && len(here) > 0:
		return refuse("keep", "true", "no Unix socket among --listen: what clients map cannot outlive the node")
	case c.SecretFile != "" && c.Manager != finemem.Name:
		return refuse("service-secret-file", c.SecretFile, "none unless --manager is %s", finemem.Name)
	case c.ClientBudget > 0 && c.ClientBudget < c.Chunk:
		return refuse("client-budget", size(c.ClientBudget), "at least one chunk, which --chunk says is %s", chunk)
	}
	if err := c.checkDirectory(); err != nil {
		return err
	}
	k := c.components()
	switch {
	case k.Memory != 0 && k.Memory < component.MinClientMemory:
		return refuse("component-memory", size(k.Memory), "0 or at least %s", size(component.MinClientMemory))
	case c.both() && k.Memory != 0 && k.Memory/2 < component.MinClientMemory:
		return refuse("component-memory", size(k.Memory), "0 or at least %s, half of it for clients at sockets", size(2*component.MinClientMemory))
	case c.both() && k.Memory > c.Lend-2*c.Chunk:
		return refuse("component-memory", size(k.Memory), "to leave at least two chunks of --lend, which is %s", size(c.Lend))
	case k.Memory > c.Lend-c.Chunk:
		return refuse("component-memory", size(k.Memory), "to leave at least one chunk of --lend, which is %s", size(c.Lend))
	case c.ClientBudget > 0 && k.ClientMemory > c.ClientBudget-c.Chunk:
		return refuse("component-client-memory", size(k.ClientMemory), "to leave at least one chunk of --client-budget, which is %s", size(c.ClientBudget))
	}
	return nil
}

// keeps reports whether memory that is lent as c says could outlive the process. Memory that the node may drop does
// not outlive it: the borrower might not have been told that it was dropped. Nor does memory that is read in place:
// the node passes clients the whole file, and memory that outlives the node has its clients' secrets in the same
// file.
func (c *NodeConfig) keeps() bool { return !c.Idle && !c.InPlace && c.fences() }

// fences reports whether the manager can cut a client off from everything that the client has borrowed.
func (c *NodeConfig) fences() bool {
	entry, ok := wire.ManagerNamed(c.Manager)
	return c.Manager == "" || ok && entry.Keeps // the default managers can
}

// places divides the addresses into Unix sockets on this machine and the others.
func (c *NodeConfig) places() (here, elsewhere []string) {
	for _, a := range c.Listen {
		if isUnix(a) {
			here = append(here, a)
		} else {
			elsewhere = append(elsewhere, a)
		}
	}
	return here, elsewhere
}

// Elsewhere are the addresses where clients of other machines could connect.
func (c *NodeConfig) Elsewhere() []string {
	_, elsewhere := c.places()
	return elsewhere
}

// both reports whether there are both kinds of address. If so, each kind gets half of Lend.
func (c *NodeConfig) both() bool {
	here, elsewhere := c.places()
	return len(here) > 0 && len(elsewhere) > 0
}

// components is c.Components with its values made consistent: a client's memory is at most
// all the components' memory, and if there is none, everything is zero.
func (c *NodeConfig) components() component.Config {
	k := c.Components
	if k.Memory == 0 {
		return component.Config{}
	}
	k.ClientMemory = min(k.ClientMemory, k.Memory)
	return k
}

// HalfOfAll as ClientBudget is half of what the node that the client borrows from lends.
const HalfOfAll = -1

// budget is the budget in bytes of a client of a node that lends c.Lend; 0 for all.
// With HalfOfAll, it is at least a chunk beside the client's part of the components'
// memory, however little the node lends.
func (c *NodeConfig) budget() int64 {
	if c.ClientBudget != HalfOfAll {
		return c.ClientBudget
	}
	return max(c.Lend/2, c.components().ClientMemory+c.Chunk)
}

func (c *NodeConfig) memnode() memnode.Config {
	return memnode.Config{
		Lend:         c.Lend,
		Idle:         c.Idle,
		ChunkSize:    int(c.Chunk),
		ClientBudget: c.budget(),
		Grace:        c.Grace,
		Zone:         c.Zone,
		Cluster:      c.Cluster,
		Manager:      c.Manager,
		TrustClients: c.TrustClients,
		MaxGroups:    c.Groups,
		MaxPairs:     c.Pairs,
		MaxClients:   c.MaxClients,
		Components:   c.components(),
		Logger:       c.Logger,

		InPlace:       c.InPlace,
		ServiceSecret: c.secret,
		Outliving:     c.outliving,
	}
}

// RunNode lends memory until ctx is done.
func RunNode(ctx context.Context, cfg NodeConfig) (err error) {
	p := newProcess("node", cfg.Control)
	defer p.close(&err)

	if err := cfg.Check(); err != nil {
		return err
	}
	here, elsewhere := cfg.places()
	for _, addr := range elsewhere {
		if err := cfg.Security.Check(listen.Node, "listen", addr); err != nil {
			return err
		}
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	populated, err := p.outlive(ctx, &cfg, end)
	if err != nil {
		return err
	}
	check := func() error { return p.checkLend(cfg.Lend-populated, 0, cfg.Overcommit) }
	if cfg.Idle {
		check = func() error { return p.checkIdle(cfg.Lend) }
	}
	if err := check(); err != nil {
		return err
	}
	if err := p.listenAdmin(); err != nil {
		return err
	}
	title := fmt.Sprintf("polder node lends %s in chunks of %s", config.FormatSize(cfg.Lend), config.FormatSize(cfg.Chunk))
	if cfg.Idle {
		title = fmt.Sprintf("polder node lends what this host does not need, at most %s, in chunks of %s", config.FormatSize(cfg.Lend), config.FormatSize(cfg.Chunk))
	}
	if cfg.both() {
		// Memory that clients map and memory that is sent to clients belong to two nodes, and stay there.
		cfg.Lend /= 2
		cfg.Components.Memory /= 2
		title += ", half of it to clients on this machine"
	}
	if b := cfg.budget(); b > 0 {
		title += ", at most " + config.FormatSize(b) + " to each client"
	}
	if cfg.InPlace {
		title += ", to be read in place on this machine"
	}
	if cfg.secret, err = readSecret(cfg.SecretFile); err != nil {
		return err
	}
	var nodes []*memnode.Node
	var addrs []string // in use
	for _, place := range []struct {
		addrs []string
		open  func(NodeConfig, []string) (*memnode.Node, []string, error)
	}{{elsewhere, p.nodeElsewhere}, {here, p.nodeHere}} {
		if len(place.addrs) == 0 {
			continue
		}
		node, list, err := place.open(cfg, place.addrs)
		if err != nil {
			return err
		}
		nodes, addrs = append(nodes, node), append(addrs, list...)
	}
	p.show(nodes...)
	d := newDrainer()
	d.nodes, p.drain = nodes, d.drain
	p.forget = func(heap string) (string, error) { return forget(nodes, heap) }
	if cfg.Directory != "" {
		a, err := p.announce(cfg, addrs[0], nodes[0])
		if err != nil {
			return err
		}
		d.withdraw = a.Withdraw
	}
	p.addrs[ServiceVerbs] = addrs[0]
	if len(nodes) > 1 {
		p.addrs[ServiceSocket] = addrs[len(elsewhere)]
	}
	if err := p.serveAdmin(); err != nil {
		return err
	}
	far := addrs[0]
	if cfg.Fabric == FabricRDMA && len(elsewhere) > 0 {
		far = scheme.RDMA + far
		title += " over RDMA"
	}
	hint := "polder serve --far " + far
	switch {
	case cfg.SecretFile != "": // the node lets only brokers in
		hint = "polder broker --far " + far + " --service-secret-file " + cfg.SecretFile
	case cfg.Manager != "" && len(elsewhere) > 0:
		hint += " --manager " + cfg.Manager
	}
	if err := p.ready(title, hint); err != nil {
		return err
	}
	return p.waitDrained(ctx, d, cfg.Drain)
}

// The fabrics that a node can listen on, besides Unix sockets.
const (
	FabricTCP  = "tcp"
	FabricRDMA = "rdma"
)

// maxManifests is the most heaps whose manifests a node keeps, together with a second node (--two-nodes).
const maxManifests = 64

// nodeElsewhere starts a node for clients anywhere, over cfg.Fabric.
func (p *process) nodeElsewhere(cfg NodeConfig, addrs []string) (*memnode.Node, []string, error) {
	security := tcp.Config{TLS: cfg.Security.Accept(listen.Node), Insecure: cfg.Security.Insecure, Log: p.Logger}
	if cfg.Fabric == FabricRDMA {
		dev, err := ibv.Open(cfg.Device)
		if err != nil {
			return nil, nil, err
		}
		return p.serveNode(dev, cfg, addrs, func(addr string) (verbs.Listener, error) { return ibv.Listen(dev, addr, security) })
	}
	// The manifests of heaps with two nodes are at these nodes, in memory only, like what the nodes lend.
	cells, err := witness.NewCells(witness.Config{Registers: maxManifests, Bytes: maxManifests * (holder.MaxValue + 128), Logger: p.Logger})
	if err != nil {
		return nil, nil, err
	}
	p.onClose(cells.Close)
	security.Guest = cells.Take
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		return nil, nil, err
	}
	return p.serveNode(dev, cfg, addrs, func(addr string) (verbs.Listener, error) { return tcp.Listen(dev, addr, security) })
}

// nodeHere starts a node for clients on this machine, which map what they borrow.
func (p *process) nodeHere(cfg NodeConfig, addrs []string) (*memnode.Node, []string, error) {
	dev, err := shm.NewDevice(softnic.Config{})
	if err != nil {
		return nil, nil, err
	}
	cfg.Manager, cfg.outliving, cfg.InPlace = memnode.MemFD, nil, false // its clients map the memory anyway
	return p.serveNode(dev, cfg, addrs, func(addr string) (verbs.Listener, error) { return shm.Listen(dev, addr, shm.Config{Log: p.Logger}) })
}

// serveNode starts a node on dev, and returns the addresses at which the node listens. The
// process closes dev when it ends.
func (p *process) serveNode(dev verbs.Device, cfg NodeConfig, addrs []string, open func(addr string) (verbs.Listener, error)) (*memnode.Node, []string, error) {
	p.onClose(dev.Close)
	node, err := p.node(dev, cfg)
	if err != nil {
		return nil, nil, err
	}
	var found []string
	for _, addr := range addrs {
		lis, err := open(addr)
		if err != nil {
			return nil, nil, listen.Explain("listen", addr, err)
		}
		p.spawn("the node stopped serving", func() error { return node.Serve(lis) })
		found = append(found, lis.Addr())
	}
	return node, found, nil
}

// node makes the memory node on dev.
func (p *process) node(dev verbs.Device, cfg NodeConfig) (*memnode.Node, error) {
	cfg.Control = p.Control
	node, err := memnode.New(dev, cfg.memnode())
	if err != nil {
		return nil, err
	}
	p.onClose(node.Close)
	if cfg.Idle {
		if err := p.lendIdle(node, cfg.Lend); err != nil {
			return nil, err
		}
	}
	return node, nil
}

// show has metrics and the console show the nodes of this process as if they were one.
func (p *process) show(nodes ...*memnode.Node) {
	p.sayMemory()
	p.collectors = append(p.collectors, memnode.NewCollector(nodes...))
	p.reports = append(p.reports, func(s *console.State) {
		for _, n := range nodes {
			chunk := int64(n.Stats().ChunkSize)
			for _, c := range n.Clients() {
				client := console.Client{Name: c.Name(), Bytes: int64(c.Chunks) * chunk}
				if !c.Expires.IsZero() {
					client.Expires = &c.Expires
				}
				s.Clients = append(s.Clients, client)
			}
		}
	})
}

// forget takes back what nodes keep for a heap that nobody will open again, as an operator says. It fails if the
// heap's owner is connected, or nothing is kept.
func forget(nodes []*memnode.Node, heap string) (string, error) {
	var bytes int64
	sessions := 0
	for _, n := range nodes {
		for _, c := range n.Clients() {
			if c.Heap != heap || heap == "" {
				continue
			}
			chunks, err := n.GiveUp(c.Session)
			if err != nil && !errors.Is(err, memnode.ErrNoSession) {
				return "", fmt.Errorf("heap %s is in use: %w; remove it with polder heap rm, or end its server first", heap, err)
			}
			if err == nil {
				sessions, bytes = sessions+1, bytes+int64(chunks)*int64(n.ChunkSize())
			}
		}
	}
	if sessions == 0 {
		return "", fmt.Errorf("nothing is kept here for a heap %q", heap)
	}
	return fmt.Sprintf("heap %s is forgotten here: %s came back", heap, config.FormatSize(bytes)), nil
}
