package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/memnode/wire"
	"polder/pool/broker"
	"polder/pool/manager"
	"polder/verbs"
)

// Manager is a way of managing remote memory. See package manager.
type Manager = manager.Manager

// Defaults of a Config.
const (
	DefaultTimeout = 2 * time.Second
	DefaultBuffer  = 8 << 20
	DefaultGroups  = 1
	DefaultPairs   = 1
)

// Limits of a Config.
const (
	MaxGroups = wire.MaxGroups
	MaxPairs  = wire.MaxPairs
)

// Config says where a Pool borrows, and how.
type Config struct {
	// Device is what the pool reaches nodes with that have no Device of their own. It stays the caller's, and must
	// outlive the pool.
	Device verbs.Device
	// Nodes are the memory nodes, at least one. Add adds others.
	Nodes []NodeConfig
	// Manager is the way of managing memory at nodes that have no Manager of their own; it must be the nodes' way. By
	// default it is the way that memory nodes choose on such a device.
	Manager Manager
	// Timeout bounds every operation and every attempt to connect, by
	// default 2 s.
	Timeout time.Duration
	// Pause is how long operations on a node wait for it, within Timeout, when the connection was lost and cannot be
	// made again: set it to the time in which a node starts again that keeps its memory meanwhile. After Pause,
	// operations fail at once until the node is there again. By default they fail as soon as the first attempt to
	// connect has failed.
	Pause time.Duration
	// Buffer is the size in bytes of the memory that data passes through,
	// by default 8 MiB. It is rounded up to a multiple of 64 KiB.
	Buffer int
	// Cluster is the name of the cluster that the pool belongs to, "" for none. A node of another cluster, or of
	// none, refuses the pool before anything is borrowed.
	Cluster string
	// Groups is how many groups of queue pairs to reach a node's memory over, 1 to MaxGroups, by default
	// DefaultGroups. Chunks are dealt out to the groups, and operations on chunks of different groups share no lock,
	// queue or completion. An RNIC works on several queue pairs at a time, so there it should be the number of cores
	// that use the pool; the software RNIC does not (polder bench verbs has the figures). A node may grant fewer.
	// With the baselines, and in place (unix:), there is one.
	Groups int
	// Pairs is how many pairs of queue pairs to allocate and to free chunks with, 1 to MaxPairs, by default
	// DefaultPairs: as many callers can do so at a time. A client's budget is divided among them. A node may grant
	// fewer. With managers other than onesided there is one, and with native there is one for each group.
	Pairs int
	// OverFabric makes the pool read nothing in place from nodes on this machine at "host:port" that pass their
	// memory for that. It is for a process that locks its memory, including what it maps later (mlockall(2),
	// MCL_FUTURE): mapping what such a node lends would populate all of it at once.
	OverFabric bool
	// Keep, if set, makes what the pool borrows outlive the pool.
	Keep *Keep
	// Logger gets connections and losses; by default nothing is logged.
	Logger *slog.Logger

	owned  []verbs.Device // devices that the pool closes
	broker *broker.Dialer // if set, the pool closes it, too
}

// NodeConfig is one memory node.
type NodeConfig struct {
	// Name is what errors and statistics call it, unique in the pool.
	Name string
	// Dial connects Device to it.
	Dial func(context.Context) (verbs.Conn, error)
	// Device is what the node is reached with, if that is not Config.Device: a pool may have nodes on several
	// fabrics. It stays the caller's, and must outlive the pool.
	Device verbs.Device
	// Manager is the node's way of managing memory. With Config.Device the default is Config.Manager; with another
	// device it is the way that memory nodes choose on such a device.
	Manager Manager
}

func (c Config) withDefaults() (Config, error) {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Buffer == 0 {
		c.Buffer = DefaultBuffer
	}
	if c.Groups == 0 {
		c.Groups = DefaultGroups
	}
	if c.Pairs == 0 {
		c.Pairs = DefaultPairs
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.Device == nil && slices.ContainsFunc(c.Nodes, func(n NodeConfig) bool { return n.Device == nil }):
		return c, errors.New("no device")
	case len(c.Nodes) == 0:
		return c, errors.New("no nodes")
	case c.Pause < 0:
		return c, fmt.Errorf("the pause is %v, want it positive", c.Pause)
	case c.Timeout < 0:
		return c, fmt.Errorf("the timeout is %v, want it positive", c.Timeout)
	case c.Groups < 1 || c.Groups > MaxGroups:
		return c, fmt.Errorf("%d groups of queue pairs, want 1 to %d", c.Groups, MaxGroups)
	case c.Pairs < 1 || c.Pairs > MaxPairs:
		return c, fmt.Errorf("%d pairs of queue pairs to allocate and to free with, want 1 to %d", c.Pairs, MaxPairs)
	case c.Buffer < 0 || c.Buffer > 1<<31:
		return c, fmt.Errorf("the buffer has %d bytes, want at most 2 GiB", c.Buffer)
	}
	names := make(map[string]bool)
	c.Nodes = slices.Clone(c.Nodes)
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if err := n.complete(&c, func(name string) bool { return names[name] }); err != nil {
			return c, fmt.Errorf("node %d: %w", i, err)
		}
		names[n.Name] = true
	}
	return c, nil
}

// complete fills in the fields that n leaves to the pool's configuration. It returns an error if n is wrong, or if
// its name is taken.
func (n *NodeConfig) complete(c *Config, taken func(name string) bool) error {
	if err := n.check(taken); err != nil {
		return err
	}
	if n.Device == nil || n.Device == c.Device {
		n.Device, n.Manager = c.Device, cmp.Or(n.Manager, c.Manager)
	}
	if n.Device == nil {
		return errors.New("it has no device")
	}
	if n.Manager == nil {
		n.Manager = managerFor(n.Device.Attr())
	}
	if c.Keep != nil {
		return c.Keep.check(n.Manager)
	}
	return nil
}

// check returns an error if c is wrong, or if its name is taken.
func (c *NodeConfig) check(taken func(name string) bool) error {
	switch {
	case c.Name == "":
		return errors.New("it has no name")
	case taken(c.Name):
		return fmt.Errorf("another one is named %q", c.Name)
	case c.Dial == nil:
		return errors.New("it has no Dial")
	}
	return nil
}

// A Pool borrows memory from one or more nodes. See the package comment.
type Pool struct {
	cfg   Config
	log   *slog.Logger
	slab  *slab
	nodes atomic.Pointer[[]*node] // replaced as a whole, with callMu held
	ctx   context.Context         // parent of those of the keepers
	stop  context.CancelCauseFunc
	wg    sync.WaitGroup // keepers

	superseded atomic.Pointer[error] // ErrSuperseded with the reason; nil until the pool is superseded

	keptMu sync.Mutex
	kept   map[string]Session // guarded by keptMu: what Sessions returns; nil if the pool is not kept

	sizeMu    sync.Mutex
	chunkSize int // 0 until the first node has told it

	callMu  sync.Mutex
	fabrics []*fabric
	calls   []*call  // for reuse
	ones    []*[1]Op // batches of one operation, for reuse
	running int      // calls that are in use, and calls of components
	closing bool
	drained chan struct{} // closed when closing is set and running is 0
	closed  chan struct{} // closed when Close has finished
	err     error         // of Close; valid once closed is closed
}

// Open connects to the nodes of cfg. It fails unless at least one can be
// reached; the others are tried again in the background.
func Open(ctx context.Context, cfg Config) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("cannot open a pool: %w", err)
	}
	p := &Pool{
		cfg: cfg, log: cfg.Logger,
		drained: make(chan struct{}), closed: make(chan struct{}),
	}
	if p.slab, err = newSlab(cfg.Buffer); err != nil {
		return nil, fmt.Errorf("cannot open a pool: %w", err)
	}
	for _, n := range cfg.Nodes {
		if _, err := p.fabricOf(n.Device); err != nil {
			return nil, fmt.Errorf("cannot open a pool: %w", errors.Join(err, p.closeFabrics()))
		}
	}
	if cfg.Keep != nil {
		p.kept = make(map[string]Session)
		maps.Copy(p.kept, cfg.Keep.Sessions)
	}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	p.nodes.Store(new([]*node))
	for _, c := range cfg.Nodes {
		if err := p.join(c); err != nil {
			panic("BUG: " + err.Error()) // its fabric is there
		}
	}
	if err := p.waitFirst(ctx); err != nil {
		p.Close()
		return nil, fmt.Errorf("cannot open a pool: %w", err)
	}
	return p, nil
}

// closeFabrics releases what the devices have of the pool, and then the slab.
func (p *Pool) closeFabrics() error {
	var errs []error
	for _, f := range p.fabrics {
		errs = append(errs, f.close())
	}
	return errors.Join(append(errs, p.slab.close())...)
}

// all returns the nodes. Nobody changes the slice.
func (p *Pool) all() []*node { return *p.nodes.Load() }

// join adds a node. p.callMu must be held once others can see p.
func (p *Pool) join(c NodeConfig) error {
	f, err := p.fabricOf(c.Device)
	if err != nil {
		return err
	}
	n := newNode(p, f, c)
	ctx, forget := context.WithCancel(p.ctx)
	n.forget = forget
	nodes := append(slices.Clone(p.all()), n)
	p.nodes.Store(&nodes)
	p.wg.Go(func() {
		defer forget()
		n.keep(ctx)
	})
	return nil
}

// Add adds a node and connects to it in the background. Alloc waits for the node until the first attempt to connect
// has ended.
func (p *Pool) Add(c NodeConfig) error {
	p.callMu.Lock()
	defer p.callMu.Unlock()
	err := c.complete(&p.cfg, func(name string) bool { return p.named(name) != nil })
	if p.closing {
		err = ErrClosed
	}
	if err == nil {
		err = p.join(c)
	}
	if err != nil {
		return fmt.Errorf("cannot add node %q: %w", c.Name, err)
	}
	return nil
}

// Forget removes the node of that name from the pool and ends the attempts to connect to it. It fails with ErrInUse
// if the node is connected, if something of it is borrowed, or if it is the last node.
func (p *Pool) Forget(name string) error {
	p.callMu.Lock()
	defer p.callMu.Unlock()
	n, all := p.named(name), p.all()
	var err error
	switch {
	case p.closing:
		err = ErrClosed
	case n == nil:
		err = errors.New("the pool has none of that name")
	case len(all) == 1:
		err = fmt.Errorf("%w: it is the only one", ErrInUse)
	default:
		err = n.end()
	}
	if err != nil {
		return fmt.Errorf("cannot forget node %q: %w", name, err)
	}
	nodes := slices.DeleteFunc(slices.Clone(all), func(o *node) bool { return o == n })
	p.nodes.Store(&nodes)
	return nil
}

// named is the node of that name, or nil.
func (p *Pool) named(name string) *node {
	for _, n := range p.all() {
		if n.name == name {
			return n
		}
	}
	return nil
}

// waitFirst waits until the first attempt at every node has ended.
func (p *Pool) waitFirst(ctx context.Context) error {
	var errs []error
	up := false
	for _, n := range p.all() {
		state, changed := n.watch()
		for state == nodeConnecting {
			select {
			case <-changed:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			state, changed = n.watch()
		}
		if state == nodeUp {
			up = true
		} else if err := n.unusable(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", n.name, err))
		}
	}
	if err := p.over(); err != nil || up {
		return err
	}
	return errors.Join(errs...)
}

// agreeChunkSize refuses a node whose chunk size is not that of the first node.
func (p *Pool) agreeChunkSize(size int) error {
	p.sizeMu.Lock()
	defer p.sizeMu.Unlock()
	if p.chunkSize == 0 {
		p.chunkSize = size
	}
	if p.chunkSize != size {
		return fmt.Errorf("the node's chunks have %d bytes, the pool's %d", size, p.chunkSize)
	}
	return nil
}

// ChunkSize returns the size in bytes of the units that the nodes lend, of which chunks are made.
func (p *Pool) ChunkSize() int {
	p.sizeMu.Lock()
	defer p.sizeMu.Unlock()
	return p.chunkSize
}

// Alloc borrows size bytes, which may be any number, from the node that has most to lend, and from others what that
// node cannot give. The chunk takes a multiple of the nodes' ChunkSize. If Alloc fails, nothing is borrowed, even if
// there was memory for a part of it.
func (p *Pool) Alloc(ctx context.Context, size int64) (*Chunk, error) {
	c, err := p.alloc(ctx, size, p.all())
	if err != nil {
		return nil, &OpError{Op: "alloc", Err: err}
	}
	return c, nil
}

// AllocAt is Alloc from the node of that name only.
func (p *Pool) AllocAt(ctx context.Context, name string, size int64) (*Chunk, error) {
	n := p.named(name)
	if n == nil {
		return nil, &OpError{Op: "alloc", Err: fmt.Errorf("the pool has no node %q", name)}
	}
	c, err := p.alloc(ctx, size, []*node{n})
	if err != nil {
		return nil, &OpError{Op: "alloc", Node: name, Err: err}
	}
	return c, nil
}

// NodeInfo says how a pool stands with a node.
type NodeInfo struct {
	Up      bool   // it is connected
	Leaving bool   // it will end when nothing is lent any more, or must give memory back: move away what it has lent
	Idle    bool   // it lends what its host does not need; see Chunk.MayVanish
	Space   int64  // bytes that could still be borrowed, as far as is known
	Zone    string // zone that it told when it was last connected, or ""
}

// Node describes the node of that name. If there is none, it is described as not up.
func (p *Pool) Node(name string) (info NodeInfo) {
	n := p.named(name)
	if n == nil {
		return info
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	info.Zone = n.zone
	if n.state == nodeUp {
		s := n.link.session.Space()
		info.Up, info.Leaving = true, n.link.session.Leaving()
		info.Idle = n.link.session.Info().Yielder != nil
		info.Space = int64(min(s.Free, s.Budget)) * int64(p.ChunkSize())
	}
	return info
}

// Nodes returns the names of the nodes.
func (p *Pool) Nodes() (names []string) {
	for _, n := range p.all() {
		names = append(names, n.name)
	}
	return names
}

// allocAttempts is how often alloc tries to make a chunk if a node forgets a part of it before it is complete.
const allocAttempts = 3

func (p *Pool) alloc(ctx context.Context, size int64, from []*node) (*Chunk, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%d bytes wanted, must be at least 1", size)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := p.over(); err != nil {
		return nil, err
	}
	if all, known := capacity(from); known && size > all {
		return nil, fmt.Errorf("%w: %d bytes wanted of nodes that have %d in all", ErrNoMemory, size, all)
	}
	for attempt := 1; ; attempt++ {
		c := newChunk(p, size)
		var err error
		for c.have < size && err == nil && !c.gone.Load() {
			err = p.extend(ctx, c, from)
		}
		if err == nil && c.gone.Load() {
			err = ErrLost
		}
		if err == nil {
			return c, nil
		}
		_ = c.giveBack(ctx) // a node that refuses to take something back does not think that it is ours
		if err != ErrLost || attempt == allocAttempts {
			return nil, err
		}
	}
}

// extend adds memory of one of the nodes to c, which is not complete.
func (p *Pool) extend(ctx context.Context, c *Chunk, from []*node) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, ErrTimeout)
	defer cancel()
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wait, err := tryExtend(ctx, c, from)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case wait == nil && err != errRetry:
			return err
		case wait == nil:
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// capacity is how many bytes the nodes lend in all. It is known only if all of them are connected.
func capacity(nodes []*node) (bytes int64, known bool) {
	for _, n := range nodes {
		l := n.current()
		if l == nil {
			return 0, false
		}
		info := l.session.Info()
		bytes += int64(info.Chunks) * int64(info.ChunkSize)
	}
	return bytes, true
}

// AllocWait is Alloc, but if there is no memory left it waits until a node says that there is some again, for as long
// as ctx lasts. It does not wait if the client's own budget is used up, which only Free restores, nor for nodes whose
// manager cannot say that memory is back.
func (p *Pool) AllocWait(ctx context.Context, size int64) (*Chunk, error) {
	for {
		c, err := p.Alloc(ctx, size)
		if !errors.Is(err, ErrNoMemory) || errors.Is(err, manager.ErrBudget) {
			return c, err
		}
		var returned []<-chan struct{}
		for _, n := range p.all() {
			if ch := n.returned(); ch != nil {
				returned = append(returned, ch)
			}
		}
		if len(returned) == 0 {
			return nil, err
		}
		if err := waitAny(ctx, returned); err != nil {
			return nil, &OpError{Op: "alloc", Err: err}
		}
	}
}

// waitAny waits until one of the channels is closed.
func waitAny(ctx context.Context, chans []<-chan struct{}) error {
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
	for _, ch := range chans {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ch)})
	}
	if i, _, _ := reflect.Select(cases); i == 0 {
		return context.Cause(ctx)
	}
	return nil
}

// tryExtend asks the connected nodes one after the other: first the node that c ends on, then the others, those with
// most memory first, and those that are leaving last. If it fails and another attempt may succeed, then either err is
// errRetry, or wait is closed when it is time to try again.
func tryExtend(ctx context.Context, c *Chunk, from []*node) (wait <-chan struct{}, err error) {
	type candidate struct {
		n       *node
		leaving bool
		space   uint32
	}
	candidates := make([]candidate, 0, len(from))
	for _, n := range from {
		state, changed := n.watch()
		switch state {
		case nodeUp:
			space := n.space()
			if k := len(c.extents); k > 0 && c.extents[k-1].node == n {
				space = math.MaxUint32
			}
			candidates = append(candidates, candidate{n, n.leaving(), space})
		case nodeConnecting:
			wait = changed
		default:
			err = n.unusable()
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		if a.leaving != b.leaving {
			if a.leaving {
				return 1
			}
			return -1
		}
		return cmp.Compare(b.space, a.space)
	})
	for _, k := range candidates {
		e := k.n.extend(ctx, c)
		switch {
		case e == nil:
			return nil, nil
		case ctx.Err() != nil:
			return nil, e
		case e == errRetry:
			return nil, errRetry
		}
		err = e
	}
	if err == nil {
		err = errRetry // there is only a connection to wait for, or there was
	}
	return wait, err
}

// Do runs ops, which may be of different kinds and on chunks of different nodes, in as few round trips as it can, and
// sets the Err of each. It returns when all have ended, with the first error in the order of ops. The ops are not
// carried out in any order.
func (p *Pool) Do(ctx context.Context, ops []Op) error {
	c, err := p.getCall()
	if err != nil {
		for i := range ops {
			ops[i].Err = nil
			ops[i].refuse(err)
		}
	} else {
		c.run(ctx, ops)
	}
	for i := range ops {
		if ops[i].Err != nil {
			return ops[i].Err
		}
	}
	return nil
}

// getCall returns a call, which must be run.
func (p *Pool) getCall() (*call, error) {
	p.callMu.Lock()
	defer p.callMu.Unlock()
	if p.closing {
		return nil, ErrClosed
	}
	if err := p.over(); err != nil {
		return nil, err
	}
	p.running++
	if n := len(p.calls); n > 0 {
		c := p.calls[n-1]
		p.calls = p.calls[:n-1]
		return c, nil
	}
	return newCall(p), nil
}

// maxKeptCalls bounds the calls that are kept for reuse.
const maxKeptCalls = 1024

func (p *Pool) putCall(c *call) {
	p.callMu.Lock()
	defer p.callMu.Unlock()
	if len(p.calls) < maxKeptCalls {
		p.calls = append(p.calls, c)
	}
	p.running--
	if p.closing && p.running == 0 {
		close(p.drained)
	}
}

// getOne returns a batch of one. It is separate from the call that runs it, because a call whose caller gives up
// belongs to the link for a while.
func (p *Pool) getOne() *[1]Op {
	p.callMu.Lock()
	defer p.callMu.Unlock()
	if n := len(p.ones); n > 0 {
		ops := p.ones[n-1]
		p.ones = p.ones[:n-1]
		return ops
	}
	return new([1]Op)
}

func (p *Pool) putOne(ops *[1]Op) {
	ops[0] = Op{}
	p.callMu.Lock()
	defer p.callMu.Unlock()
	if len(p.ones) < maxKeptCalls {
		p.ones = append(p.ones, ops)
	}
}

// Close gives every chunk back, unless the pool is kept, and disconnects. Operations in progress fail with ErrClosed.
// It is idempotent.
func (p *Pool) Close() error {
	p.callMu.Lock()
	if p.closing {
		p.callMu.Unlock()
		<-p.closed
		return p.err
	}
	p.closing = true
	if p.running == 0 {
		close(p.drained)
	}
	p.callMu.Unlock()
	p.stop(ErrClosed)
	p.wg.Wait()
	<-p.drained
	errs := []error{p.closeFabrics()}
	if p.cfg.broker != nil {
		errs = append(errs, p.cfg.broker.Close())
	}
	for _, dev := range p.cfg.owned {
		errs = append(errs, dev.Close())
	}
	if err := errors.Join(errs...); err != nil {
		p.err = fmt.Errorf("cannot close the pool: %w", err)
	}
	close(p.closed)
	return p.err
}
