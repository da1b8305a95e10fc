package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/accept"
	"polder/internal/fdpass"
	"polder/internal/ratelog"
	"polder/memnode/wire"
	"polder/pool/finemem"
	"polder/verbs"
)

// The moments at which a crash of the broker would hurt, in addition to finemem.Steps.
const (
	StepTaken     = "broker.request-taken"    // before a request is dealt with
	StepAllocated = "broker.allocated"        // before the block belongs to an application
	StepAnswer    = "broker.answer"           // before the answer is written
	StepAnswered  = "broker.answered"         // after the answer is written
	StepFree      = "broker.free"             // before a block that belongs to no application any more is freed
	StepReturn    = "broker.return-abandoned" // before a block of an application that has gone is freed
)

// Steps lists all of them.
var Steps = []string{StepTaken, StepAllocated, StepAnswer, StepAnswered, StepFree, StepReturn}

// Defaults of a Config.
const (
	DefaultTimeout   = 2 * time.Second
	DefaultHeartbeat = time.Second
	DefaultMaxApps   = 1024
	DefaultPerUser   = 256
)

// Config says which applications a Broker serves, and from which nodes.
type Config struct {
	// Device is what the broker connects with. It stays the caller's, and must
	// outlive the broker.
	Device verbs.Device
	// Nodes are the memory nodes, 1 to MaxNodes.
	Nodes []Node
	// Cluster is the name of the cluster that the nodes belong to, "" for none.
	Cluster string
	// Secret is what the nodes require before they open their metadata, if they have a service secret.
	Secret [wire.SecretSize]byte
	// Policy says where to look for memory.
	Policy finemem.Policy
	// Users are the ids of the users that may connect; by default only the broker's own. The socket's permissions
	// must admit them, too.
	Users []int
	// Quota is how many bytes the applications of one user may have in all. 0 means as much as there is.
	Quota int64
	// MaxApps is the most connections, by default 1024. PerUser is the most connections of one user, by default 256.
	MaxApps, PerUser int
	// Timeout bounds everything that is done with a node, by default 2 s.
	Timeout time.Duration
	// Heartbeat is the time between two signs of life to a node, by default 1 s. It must not be longer than the nodes
	// expect (memnode.Config.Heartbeat).
	Heartbeat time.Duration
	// Logger gets connections and losses; by default nothing is logged.
	Logger *slog.Logger
}

// Node is one memory node.
type Node struct {
	// Addr is what applications dial.
	Addr string
	// Dial connects Config.Device to it.
	Dial func(context.Context) (verbs.Conn, error)
}

func (c Config) withDefaults() (Config, error) {
	if c.Users == nil {
		c.Users = []int{os.Geteuid()}
	}
	if c.MaxApps == 0 {
		c.MaxApps = DefaultMaxApps
	}
	if c.PerUser == 0 {
		c.PerUser = DefaultPerUser
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = DefaultHeartbeat
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = ratelog.Bound(c.Logger)
	switch {
	case c.Device == nil:
		return c, errors.New("no device")
	case len(c.Nodes) == 0 || len(c.Nodes) > MaxNodes:
		return c, fmt.Errorf("%d memory nodes, want 1 to %d", len(c.Nodes), MaxNodes)
	case c.Quota < 0:
		return c, fmt.Errorf("the quota is %d bytes, want it positive", c.Quota)
	case c.MaxApps < 0 || c.PerUser < 0:
		return c, fmt.Errorf("at most %d connections, and %d of one user: want both positive", c.MaxApps, c.PerUser)
	case c.Timeout < 0 || c.Heartbeat < 0:
		return c, fmt.Errorf("a timeout of %v and a heartbeat every %v: want both positive", c.Timeout, c.Heartbeat)
	}
	seen := make(map[string]bool)
	for i, n := range c.Nodes {
		switch {
		case n.Addr == "" || len(n.Addr) > maxAddress:
			return c, fmt.Errorf("node %d has an address of %d bytes, want 1 to %d", i, len(n.Addr), maxAddress)
		case seen[n.Addr]:
			return c, fmt.Errorf("node %d is at %s, as another one is", i, n.Addr)
		case n.Dial == nil:
			return c, fmt.Errorf("node %d has no Dial", i)
		}
		seen[n.Addr] = true
	}
	return c, nil
}

var (
	errTimeout = errors.New("the memory node does not answer in time")
	errEnding  = errors.New("the broker ends")
)

// counter counts.
type counter = atomic.Uint64

// Broker allocates for the applications of a compute node. See the package comment.
type Broker struct {
	cfg     Config
	log     *slog.Logger
	pd      verbs.PD
	nodes   []*node
	addrs   []string
	watcher *fdpass.Watcher

	ctx     context.Context // parent of those of applications' requests; ends first
	cancel  context.CancelFunc
	apps    sync.WaitGroup  // goroutines of the applications
	last    context.Context // for freeing what the applications had; ends some time after ctx
	giveUp  context.CancelFunc
	stop    context.CancelFunc
	keepers sync.WaitGroup

	refused, violations counter

	mu     sync.Mutex // guards what follows
	closed bool
	lis    []net.Listener
	live   map[*app]struct{}
	users  map[int]*account
	count  int // how many connections there are, including those that shake hands
}

// account is what one user has.
type account struct {
	apps  int
	bytes int64
}

// New returns a broker that has tried once to connect to each of its nodes. It keeps trying to connect to nodes that
// could not be reached.
func New(ctx context.Context, cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("cannot make a broker: %w", err)
	}
	b := &Broker{cfg: cfg, log: cfg.Logger, live: make(map[*app]struct{}), users: make(map[int]*account)}
	if b.pd, err = cfg.Device.AllocPD(); err != nil {
		return nil, fmt.Errorf("cannot make a broker: %w", err)
	}
	if b.watcher, err = fdpass.NewWatcher(); err != nil {
		b.pd.Close()
		return nil, fmt.Errorf("cannot make a broker: %w", err)
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.last, b.giveUp = context.WithCancel(context.Background())
	keepers, stop := context.WithCancel(context.Background())
	b.stop = stop
	var tried sync.WaitGroup
	for _, c := range cfg.Nodes {
		n := newNode(b, c)
		b.nodes, b.addrs = append(b.nodes, n), append(b.addrs, c.Addr)
		tried.Add(1)
		b.keepers.Go(func() { n.keep(keepers, tried.Done) })
	}
	first := make(chan struct{})
	go func() { tried.Wait(); close(first) }()
	select {
	case <-first:
		return b, nil
	case <-ctx.Done():
		b.Close()
		<-first
		return nil, fmt.Errorf("cannot make a broker: %w", context.Cause(ctx))
	}
}

// Listen listens at the path of a socket. It replaces a socket there that nobody serves. If the broker serves other
// users than its own, everybody may connect to the socket: the kernel says who it is.
func (b *Broker) Listen(path string) (*net.UnixListener, error) {
	mode := os.FileMode(0o600)
	if slices.ContainsFunc(b.cfg.Users, func(uid int) bool { return uid != os.Geteuid() }) {
		mode = 0o666
	}
	return fdpass.Listen(path, mode)
}

// Serve serves the applications that connect to l until the broker is closed, and closes l.
func (b *Broker) Serve(l *net.UnixListener) error {
	defer l.Close()
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.lis = append(b.lis, l)
	b.mu.Unlock()
	if err := accept.Each(b.log, l.AcceptUnix, b.accept); b.ctx.Err() == nil {
		return fmt.Errorf("cannot accept: %w", err)
	}
	return nil
}

// accept admits a connection or refuses it.
func (b *Broker) accept(nc *net.UnixConn) {
	sock, err := fdpass.New(nc)
	if err != nil {
		nc.Close()
		return
	}
	peer, err := sock.Peer()
	if err == nil {
		err = b.admit(peer.UID)
	}
	if err != nil {
		b.refused.Add(1)
		b.log.Warn("application refused", "pid", peer.PID, "uid", peer.UID, "error", err)
		_ = sock.TrySend(appendRefusal(nil, err.Error()))
		sock.Close()
		return
	}
	a := newApp(b, sock, peer)
	go func() {
		defer b.apps.Done()
		a.run()
	}()
}

// admit counts in a connection of a user, and in b.apps the goroutine that will serve it, which Close waits for.
func (b *Broker) admit(uid int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.users[uid]
	switch {
	case b.closed:
		return errEnding
	case !slices.Contains(b.cfg.Users, uid):
		return fmt.Errorf("user %d is not served", uid)
	case b.count >= b.cfg.MaxApps:
		return fmt.Errorf("there are %d applications already", b.count)
	case u != nil && u.apps >= b.cfg.PerUser:
		return fmt.Errorf("user %d has %d applications already", uid, u.apps)
	case u == nil:
		u = &account{}
		b.users[uid] = u
	}
	u.apps++
	b.count++
	b.apps.Add(1)
	return nil
}

// dismiss counts a connection out.
func (b *Broker) dismiss(a *app) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.live, a)
	b.count--
	b.users[a.peer.UID].apps--
	b.tidy(a.peer.UID)
}

// tidy forgets a user who has neither applications nor memory.
//
// Preconditions: b.mu is held.
func (b *Broker) tidy(uid int) {
	if u := b.users[uid]; u.apps == 0 && u.bytes == 0 {
		delete(b.users, uid)
	}
}

// enlist adds an application to those that end with the broker. It returns false if the broker has been closed
// already.
func (b *Broker) enlist(a *app) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.live[a] = struct{}{}
	}
	return !b.closed
}

// take takes n bytes of the quota of a's user. It returns false if there are not so many.
func (b *Broker) take(a *app, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.users[a.peer.UID]
	if b.cfg.Quota > 0 && u.bytes+n > b.cfg.Quota {
		return false
	}
	u.bytes += n
	return true
}

// giveBack undoes take.
func (b *Broker) giveBack(a *app, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.users[a.peer.UID].bytes -= n
	b.tidy(a.peer.UID)
}

// left is what is left of the quota of a's user, or -1 if there is no quota.
func (b *Broker) left(a *app) int64 {
	if b.cfg.Quota == 0 {
		return -1
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.users[a.peer.UID]
	if u == nil {
		return b.cfg.Quota
	}
	return max(0, b.cfg.Quota-u.bytes)
}

// closeTime is how long Close takes at most to free what applications have.
const closeTime = 3 * time.Second

// Close disconnects all applications, frees what they have, and ends. It frees only at nodes that can be reached, and
// only for closeTime; the nodes take back the rest after their grace period. Closing twice is a no-op.
func (b *Broker) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	listeners, live := b.lis, make([]*app, 0, len(b.live))
	for a := range b.live {
		live = append(live, a)
	}
	b.mu.Unlock()
	b.cancel()
	defer b.giveUp()
	defer time.AfterFunc(closeTime, b.giveUp).Stop()
	for _, l := range listeners {
		l.Close()
	}
	for _, a := range live {
		a.end()
	}
	b.apps.Wait()
	b.watcher.Close()
	b.stop()
	b.keepers.Wait()
	if err := b.pd.Close(); err != nil {
		return fmt.Errorf("cannot end the broker: %w", err)
	}
	return nil
}
