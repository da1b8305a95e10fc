package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"polder/far"
	"polder/far/copies"
	"polder/far/disk"
	"polder/far/named"
	"polder/far/prom"
	"polder/far/remote"
	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/scheme"
	"polder/pool"
	"polder/pool/memfd"
	"polder/resp/topology"
	"polder/verbs"
	"polder/verbs/ibv"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// BorrowConfig says how a daemon borrows memory, and how much it keeps of its own.
type BorrowConfig struct {
	Disk     string // directory on a disk for all far memory, or, with Witness, for a copy of what nodes have
	DiskSize int64  // the most bytes to use in Disk; 0 is what there is room for
	Heap     string // name of a heap that is there again after a restart; "" for a heap that ends with the process
	// Witness are the witnesses, or one cluster in etcd, that keep the manifest of a named heap in the memory of
	// nodes.
	Witness    []string
	TwoNodes   string        // Stop or GoOn, in place of Witness: the two nodes keep the manifest
	Reads      string        // Lease, which is the default, or Fenced
	Standby    bool          // wait until another process that has the heap is gone
	Checkpoint time.Duration // from one checkpoint of a named heap to the next; 0 takes one only at the end

	Far         []string // nodes to borrow from, or one directory or broker that knows them
	EtcdAuth    string   // file of a name and a password for etcd, if that has the nodes or the manifest; "" for none
	Cluster     string   // the nodes' cluster; "" for none
	Manager     string   // the nodes' way of managing memory; the default if empty
	Device      string   // the RDMA device that reaches the nodes; the only one if empty
	Groups      int      // see pool.Config
	Pairs       int      // see pool.Config
	Copies      int      // copies of evacuated data; 0 is 2 if there are two nodes or more
	MinCopies   int      // see copies.Config.Min; the next two are Late and RepairAfter there
	CopyLate    time.Duration
	RepairAfter time.Duration
	Local       int64 // bytes
	MaxLocal    int64 // the most that Local may become; 0 is four times Local
	OpTimeout   time.Duration
	EndWithin   time.Duration // how long the daemon may take to end, including the last checkpoint
	FarWait     time.Duration // how long to wait at the start for a node to answer
}

// DefaultBorrow returns the defaults, without addresses.
func DefaultBorrow() BorrowConfig {
	return BorrowConfig{MinCopies: 1, CopyLate: copies.DefaultLate, RepairAfter: copies.DefaultRepairAfter, Local: 64 << 20, OpTimeout: 2 * time.Second, EndWithin: DefaultEndWithin, FarWait: 30 * time.Second, Checkpoint: time.Minute}
}

// Check refuses values that are valid by themselves but not together.
func (c *BorrowConfig) Check() error {
	switch {
	case c.Disk != "" && len(c.Far) > 0 && len(c.Witness) == 0:
		return refuse("disk", c.Disk, "none with --far but for a heap with a name (--heap and --witness), of which the disk then has a copy: far memory is either on a disk or at nodes")
	case c.onDisk() && c.Cluster != "":
		return refuse("cluster", c.Cluster, "none with --disk, where there are no nodes")
	case c.onDisk() && c.Manager != "":
		return refuse("manager", c.Manager, "none with --disk, where there are no nodes")
	case c.Disk == "" && c.DiskSize != 0:
		return refuse("disk-size", config.FormatSize(c.DiskSize), "none without --disk")
	case c.onDisk() && c.Copies > 1:
		return refuse("copies", strconv.Itoa(c.Copies), "none with --disk, where there are no nodes")
	case c.Copies > 0 && c.MinCopies > c.Copies:
		return refuse("min-copies", strconv.Itoa(c.MinCopies), "at most --copies, which is %d", c.Copies)
	case len(c.Far) > 0 && c.Copies > len(c.Far) && !slices.ContainsFunc(c.Far, isBroker) && !slices.ContainsFunc(c.Far, isDirectory):
		return refuse("copies", strconv.Itoa(c.Copies), "at most as many as there are nodes to borrow from, which are %d", len(c.Far))
	case c.TwoNodes != "" && c.Heap == "":
		return refuse("two-nodes", c.TwoNodes, "none without --heap: only a heap with a name is kept")
	case c.TwoNodes != "" && c.Disk != "":
		return refuse("two-nodes", c.TwoNodes, "none with --disk, where the heap's manifest is on the disk, or kept by --witness")
	case c.TwoNodes != "" && len(c.Witness) > 0:
		return refuse("two-nodes", c.TwoNodes, "none with --witness, which keeps the manifest")
	case c.TwoNodes != "" && (len(c.Far) != 2 || scheme.Of(c.Far[0]) != scheme.TCP || scheme.Of(c.Far[1]) != scheme.TCP):
		return refuse("two-nodes", c.TwoNodes, "two nodes at HOST:PORT in --far, which keep the manifest; with others --witness does")
	case c.keptAtNodes() && len(c.Witness) == 0 && c.TwoNodes == "" && len(c.Far) == 2:
		return refuse("heap", c.Heap, "--witness with it, or --two-nodes to say what becomes of the heap when one of its two nodes does not answer: "+
			"%s, it does not change and writing ends until both answer; %s, the server goes on with one, and no other takes over until both answer or an operator says so", Stop, GoOn)
	case c.keptAtNodes() && len(c.Witness) == 0 && c.TwoNodes == "":
		return refuse("heap", c.Heap, "none without --disk, or --witness for a heap in the memory of nodes")
	case c.Heap == "" && len(c.Witness) > 0:
		return refuse("witness", strings.Join(c.Witness, ","), "none without --heap: only a heap with a name is kept")
	case !c.keptAtNodes() && c.Standby:
		return refuse("standby", "true", "none without --heap and --witness: there is nobody to take over from")
	case c.keptAtNodes() && slices.ContainsFunc(c.Far, lendsNoName):
		return refuse("far", strings.Join(c.Far, ","), "nodes at HOST:PORT or %sHOST:PORT with --witness: who writes to their memory in place cannot be kept from that; "+
			"at the HOST:PORT of a node on this machine that was started with --in-place, it is read in place", scheme.RDMA)
	case c.Heap != "" && !config.IsName(c.Heap):
		return refuse("heap", c.Heap, "up to 64 letters, digits, dots, dashes and underscores, of which the first is a letter or a digit")
	}
	if err := c.checkHolder(); err != nil {
		return err
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
	case slices.ContainsFunc(c.Far, isDirectory) && len(c.Far) > 1:
		return refuse("far", strings.Join(c.Far, ","), "a directory alone, which has the addresses of all nodes: a name in the DNS, or a cluster in etcd")
	case c.EtcdAuth != "" && by != scheme.Etcd && !c.inEtcd():
		return refuse("etcd-auth-file", c.EtcdAuth, "none unless --far or --witness names a cluster in etcd")
	case c.Device != "" && !slices.ContainsFunc(c.Far, func(a string) bool { return scheme.Of(a) == scheme.RDMA }):
		return refuse("device", c.Device, "none without nodes at %sHOST:PORT", scheme.RDMA)
	case c.Manager != "" && same && by == scheme.Unix:
		return refuse("manager", c.Manager, "none with nodes at Unix sockets, which lend by %s", memfd.Name)
	}
	return nil
}

// With TwoNodes, what a server does while one of the two nodes that keep its heap's manifest does not answer: Stop
// writing, or GoOn with the other node.
const (
	Stop = "stop"
	GoOn = "go-on"
)

// keptAtNodes reports whether the heap outlives the process in the memory of nodes.
func (c *BorrowConfig) keptAtNodes() bool { return c.Heap != "" && !c.onDisk() }

// lendsNoName reports whether what is borrowed at addr cannot outlive the borrower.
func lendsNoName(addr string) bool { return isBroker(addr) || scheme.Of(addr) == scheme.Unix }

// copiesOf is how many copies a heap should have at so many nodes. joins says that more nodes may join later.
func (c *BorrowConfig) copiesOf(nodes int, joins bool) (int, error) {
	n := c.Copies
	switch {
	case n == 0 && joins:
		n = copies.DefaultCopies
	case n == 0:
		n = min(copies.DefaultCopies, nodes)
	}
	switch {
	case n > nodes && !joins:
		return 0, refuse("copies", strconv.Itoa(n), "at most as many as there are nodes to borrow from, which are %d", nodes)
	case c.MinCopies > n:
		return 0, refuse("min-copies", strconv.Itoa(c.MinCopies), "at most --copies, which is %d", n)
	}
	return n, nil
}

// noName is the directory of a heap without a name.
const noName = "_unnamed"

// onDisk reports whether the disk is all the far memory that there is.
func (c *BorrowConfig) onDisk() bool { return c.Disk != "" && len(c.Witness) == 0 }

// copyDir is the directory of the disk's copy of what nodes have. No heap can have its name: a name begins with a
// letter or a digit.
func (c *BorrowConfig) copyDir() string { return filepath.Join(c.Disk, "_copy-"+c.Heap) }

// dir is the directory of the heap.
func (c *BorrowConfig) dir() string { return filepath.Join(c.Disk, cmp.Or(c.Heap, noName)) }

// journalDir is the directory of the journal: the changes that no checkpoint of the heap has yet.
func (c *BorrowConfig) journalDir() string { return filepath.Join(c.dir(), "journal") }

// where says where the far memory is.
func (c *BorrowConfig) where() string {
	switch {
	case !c.onDisk() && c.Disk != "":
		return fmt.Sprintf("%s, where heap %s is kept, with a copy in %s", strings.Join(c.Far, ", "), c.Heap, c.Disk)
	case c.Disk == "" && c.Heap != "":
		return fmt.Sprintf("%s, where heap %s is kept", strings.Join(c.Far, ", "), c.Heap)
	case c.Disk == "":
		return strings.Join(c.Far, ", ")
	case c.Heap == "":
		return c.Disk
	}
	return fmt.Sprintf("%s, where heap %s is kept", c.Disk, c.Heap)
}

// noAnswerYet is what a daemon reports as its health while it waits for its nodes.
func (c *BorrowConfig) noAnswerYet() error {
	if c.onDisk() {
		return fmt.Errorf("%s is being opened", c.Disk)
	}
	return fmt.Errorf("no node has answered yet: %s", strings.Join(c.Far, ", "))
}

const (
	openTimeout = 10 * time.Second
	// restart is how long a node may take to start again with its memory before its
	// borrowers notice.
	restart    = 5 * time.Second
	firstPause = 100 * time.Millisecond // between attempts to open a pool
	lastPause  = 5 * time.Second
)

// memory is a heap over borrowed memory. It is empty until it is open.
type memory struct {
	lent   *pool.Pool    // nil if all far memory is on a disk
	disk   *disk.Store   // nil if nodes lend the far memory
	copies *copies.Store // over lent; nil for an unnamed heap at one node
	beside *disk.Copies  // the disk's copy of what is in lent; nil if there is none
	kept   *kept         // nil unless the heap is in lent and outlives the process
	name   string        // of the heap; "" if it ends with the process
	heap   *far.Heap
	moves  bool                  // another process is about to open the heap: see far.Heap.HandOver
	master func(topology.Master) // is told which process has the heap; nil if nobody wants to know
	// restore, if it is set, fills a new heap from a copy, and the heap is not opened.
	restore func(ctx context.Context, st *named.Store) error
	// closeWithin is how long close may try to take a last checkpoint; 0 is what ends.longest says. It never takes
	// longer than ends allows.
	closeWithin time.Duration
	ends        *ending // the daemon's

	members  *members // follow a directory, if there is one
	unfollow func()   // ends members; nil if there are none
}

// close ends what is open.
func (m *memory) close() (err error) {
	if m.unfollow != nil {
		m.unfollow()
	}
	err = m.closeHeap()
	if m.kept != nil {
		err = errors.Join(err, m.kept.close(m.ends))
	}
	if m.disk != nil {
		err = errors.Join(err, m.disk.Close())
	}
	return err
}

// openDisk opens a heap on a disk.
func (m *memory) openDisk(ctx context.Context, p *process, cfg BorrowConfig, maxValue int) (err error) {
	farCfg := far.Config{Local: cfg.Local, MaxValue: maxValue, CheckpointEvery: cfg.Checkpoint}
	c := disk.Config{Dir: cfg.dir(), Size: cfg.DiskSize, Fresh: cfg.Heap == ""}
	if m.disk, err = disk.Open(c); err != nil {
		return err
	}
	if !m.disk.Direct() {
		p.Logger.Warn("the disk is not read past the page cache, which takes memory beside the budget: its file system has no O_DIRECT", "disk", c.Dir)
	}
	if cfg.Heap == "" {
		m.heap, err = far.NewHeap(m.disk, farCfg)
		return err
	}
	defer p.Waiting("opening heap " + cfg.Heap)()
	m.heap, err = far.Open(ctx, m.disk, farCfg)
	return err
}

// open opens a pool and a heap over it. It waits for nodes as cfg says. maxValue is the
// heap's longest value in bytes.
func (m *memory) open(ctx context.Context, p *process, cfg BorrowConfig, from lenders, maxValue int) (err error) {
	m.name, m.ends = cfg.Heap, p.ends
	if cfg.onDisk() {
		return m.openDisk(ctx, p, cfg, maxValue)
	}
	poolCfg := from.Config
	poolCfg.Groups, poolCfg.Pairs = cfg.Groups, cfg.Pairs
	poolCfg.Timeout, poolCfg.Logger = cfg.OpTimeout, p.Logger
	poolCfg.Pause = min(cfg.OpTimeout, restart)
	if from.directory != nil {
		if poolCfg.Nodes, err = await(ctx, p, from.directory, cfg.FarWait); err != nil {
			return err
		}
	}
	if cfg.Heap != "" {
		if err := m.openNamed(ctx, p, cfg, from, poolCfg, maxValue); err != nil || from.directory == nil {
			return err
		}
		m.follow(from.directory, p.Logger)
		return nil
	}
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
	store := remote.NewStore(m.lent)
	joins := from.directory != nil
	n, err := cfg.copiesOf(len(m.lent.Nodes()), joins)
	if err != nil {
		return err
	}
	if nodes := len(m.lent.Nodes()); nodes > 1 || joins {
		m.copies, err = copies.Open(copies.Config{
			Places: remote.Places(m.lent), Copies: n, Joins: joins, Min: cfg.MinCopies, Late: cfg.CopyLate, RepairAfter: cfg.RepairAfter, Logger: p.Logger,
		})
		if err != nil {
			return err
		}
		store = m.copies
		if n > 1 {
			p.Logger.Info("what is evacuated is kept at several nodes", "copies", n, "nodes", nodes, "goes on with", cfg.MinCopies)
		} else {
			p.Logger.Warn("what is evacuated is kept at one node, and lost with it", "copies", 1)
		}
	}
	if m.heap, err = far.NewHeap(store, far.Config{Local: cfg.Local, MaxValue: maxValue}); err != nil || !joins {
		return err
	}
	m.follow(from.directory, p.Logger)
	return nil
}

// follow makes nodes join and leave the pool as a directory says, until close.
func (m *memory) follow(d nodeDirectory, log *slog.Logger) {
	m.members = newMembers(d, m.lent, m.copies, log)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.members.follow(ctx)
	}()
	m.unfollow = func() { stop(); <-ended }
}

// show makes the administrative address show the pool and the heap from now on.
func (m *memory) show(p *process) error {
	opened := *m // a copy: the address also shows it while closing m sets its fields to nil
	m = &opened
	state := func(s *console.State) {
		s.Advice = strings.Split(strings.TrimSpace(m.heap.Explain()), "\n")
		if m.copies != nil {
			s.Advice = append(s.Advice, m.copies.Explain()...)
		}
		if m.kept != nil {
			s.Advice = append(s.Advice, m.kept.explain(m.name))
		}
	}
	if m.disk != nil {
		return p.nowShow(m.heap.CheckpointError, state, prom.NewCollector(m.heap))
	}
	show := []prometheus.Collector{pool.NewCollector(m.lent), prom.NewCollector(m.heap)}
	if m.copies != nil {
		show = append(show, prom.NewCopiesCollector(m.copies))
	}
	if m.members != nil {
		show = append(show, m.members.collectors()...)
	}
	if m.kept != nil {
		show = append(show, prom.NewOwnerCollector(m.name, m.kept.owner))
	}
	return p.nowShow(m.usable, state, show...)
}

// usable fails if nothing can be read or written, or if replies wait for evidence that the heap is this process's.
func (m *memory) usable() error {
	if m.kept != nil {
		if st := m.kept.owner.Stats(); !st.Shown {
			return fmt.Errorf("heap %s: for %.1f s nothing has been heard from %v that there is no other owner, and replies wait for that", m.name, st.Evidence, m.kept.registers)
		}
	}
	return anyNodeUp(m.lent.Stats())
}

// lenders says how to open a pool.
type lenders struct {
	pool.Config
	directory nodeDirectory                     // knows the nodes, if Config does not; else nil
	node      func(addr string) pool.NodeConfig // how to reach a node that is not in Config
}

// borrow returns how to open a pool over nodes that listen elsewhere; nothing if all far memory is on a disk.
func (p *process) borrow(ctx context.Context, cfg BorrowConfig) (from lenders, err error) {
	defer func() { from.Cluster = cfg.Cluster }()
	if cfg.onDisk() {
		return from, nil
	}
	if slices.ContainsFunc(cfg.Far, isBroker) {
		from.Config, err = p.borrowBrokered(ctx, cfg)
		return from, err
	}
	manager, err := managerNamed(cfg.Manager)
	if err != nil {
		return from, err
	}
	f := &fabrics{p: p, device: cfg.Device, manager: manager, open: map[string]pool.NodeConfig{}}
	if len(cfg.Far) > 0 && isDirectory(cfg.Far[0]) {
		err := p.borrowFound(cfg, f, &from)
		return from, err
	}
	from.node = f.node
	for _, addr := range cfg.Far {
		if err := f.reach(scheme.Of(addr)); err != nil {
			return from, err
		}
		from.Nodes = append(from.Nodes, f.node(addr))
	}
	return from, nil
}

// borrowFound is borrow for nodes that a directory names. They are reached over TCP.
func (p *process) borrowFound(cfg BorrowConfig, f *fabrics, from *lenders) (err error) {
	if err := f.reach(scheme.TCP); err != nil {
		return err
	}
	dev := f.open[scheme.TCP].Device
	from.Config = pool.Config{Device: dev, Manager: f.manager}
	if scheme.Of(cfg.Far[0]) == scheme.Etcd {
		from.directory, err = p.openEtcdDirectory(cfg, func(ctx context.Context, addr string) (verbs.Conn, error) {
			return tcp.Dial(ctx, dev, addr, p.toNodes())
		})
		if err != nil {
			return err
		}
	} else {
		d := newDNSDirectory(cfg.Far[0])
		d.dial = func(ctx context.Context, addr, host string) (verbs.Conn, error) {
			c := p.toNodes()
			if c.TLS != nil {
				c.TLS = c.TLS.Clone()
				c.TLS.ServerName = host
			}
			return tcp.Dial(ctx, dev, addr, c)
		}
		from.directory = d
	}
	from.node = from.directory.node
	return nil
}

// fabrics are what the nodes of a pool are reached over.
type fabrics struct {
	p       *process
	device  string                     // for RDMA
	manager pool.Manager               // of nodes that are not at a socket; nil for the default
	open    map[string]pool.NodeConfig // by scheme: what all nodes with such an address have in common
}

// reach opens the device for addresses of a scheme, unless it is open.
func (f *fabrics) reach(by string) (err error) {
	if _, ok := f.open[by]; ok {
		return nil
	}
	n := pool.NodeConfig{Manager: f.manager}
	switch by {
	case scheme.Unix:
		n.Manager = memfd.Manager{}
		f.p.warnInPlace()
		n.Device, err = shm.NewDevice(softnic.Config{})
	case scheme.RDMA:
		n.Device, err = ibv.Open(f.device)
	default:
		n.Device, err = tcp.NewDevice(softnic.Config{})
	}
	if err != nil {
		return err
	}
	f.p.onClose(n.Device.Close)
	f.open[by] = n
	return nil
}

// node returns how to reach a node. If this machine does not have the node's fabric, dialling the node fails, as if
// it did not answer.
func (f *fabrics) node(addr string) pool.NodeConfig {
	by := scheme.Of(addr)
	err := f.reach(by)
	n := f.open[by]
	if err != nil {
		for _, n = range f.open { // any device will do, since it is not used
		}
	}
	n.Name = addr
	n.Dial = func(ctx context.Context) (verbs.Conn, error) {
		switch {
		case err != nil:
			return nil, err
		case by == scheme.Unix:
			return shm.Dial(ctx, n.Device, addr, shm.Config{})
		case by == scheme.RDMA:
			return ibv.Dial(ctx, n.Device, strings.TrimPrefix(addr, scheme.RDMA), f.p.toNodes())
		}
		return tcp.Dial(ctx, n.Device, addr, f.p.toNodes())
	}
	return n
}

// toNodes returns how to connect to a node now. It is called for each connection, since
// certificates may have been replaced.
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
// says: the nodes may be just starting, too.
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

// anyNodeUp fails if no node can be used.
func anyNodeUp(s pool.Stats) error {
	var states []string
	for _, n := range s.Nodes {
		if n.State == "up" || n.State == "leaving" {
			return nil
		}
		states = append(states, n.Name+" is "+n.State)
	}
	return fmt.Errorf("no node can be used: %s", strings.Join(states, ", "))
}
