// Package daemon assembles the floors into the long-running subcommands: a
// memory node, a Redis front end over borrowed memory, both, or one over soft
// memory.
//
// Each Run function starts everything, says where it listens, waits until its
// context is done or a part fails, and ends everything in reverse order. When a Run
// function returns, all its goroutines have ended, unless a part did not end in time
// (ending.go): then the error names that part.
//
// # Files
//
// All daemons: daemon (starting), ending (within a time limit, or when nothing is lent any more), memory (of the Go
// runtime), swap (being a process that the kernel's reclaim may wait for), secret, tempdir, unix, stats.
//
// What is lent: node, idle (what the host does not need), outlive (memory that outlives a node), here (a node within
// a server's process).
//
// What is borrowed: borrow (from nodes, or a disk), ahead (connections), directory, dns and etcd (which nodes there
// are), registers (manifests), named (heaps that outlive the process), heap and save (the tools for them), witness.
//
// Who uses it: serve, partitions, cache, origin, files, block, pager, broker.
package daemon

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"polder/internal/admin"
	"polder/internal/config"
	"polder/internal/console"
	"polder/internal/listen"
	"polder/internal/operator"
	"polder/internal/scheme"
)

// Names of services, as keys of addresses.
const (
	ServiceRedis     = "redis"
	ServiceMemcached = "memcached"
	ServiceVerbs     = "verbs"  // where a node's clients connect: the first address
	ServiceSocket    = "socket" // the Unix socket for clients on this machine, unless ServiceVerbs is that
	ServiceAdmin     = "admin"
	ServiceBroker    = "broker" // a socket's path after broker:
)

// refuse is the error about the value of a flag: it says what was expected.
func refuse(flag, value, expected string, args ...any) error {
	return &config.Error{Source: "--" + flag, Value: value, Err: fmt.Errorf("expected "+expected, args...)}
}

// process is what all running daemons have in common.
type process struct {
	*operator.Control
	kind    string
	started time.Time
	addrs   map[string]string                            // not changed once the administrative address is served
	redis   net.Listener                                 // nil in a node
	reached string                                       // address that other servers tell clients; or ""
	owner   string                                       // its name as the owner of a heap; "" for its address
	gone    func(ctx context.Context, owner string) bool // see named.Config; nil to ask at the owner's address
	// manifests and mine are set only for a partition, which is one of several in a server: the registers of all
	// partitions, which the server closes, and a channel that is closed when the partition is this server's.
	manifests  Registers
	mine       <-chan struct{}
	admin      net.Listener // nil if none is wanted
	closers    []closer
	ends       *ending    // how long closing may take
	failed     chan error // why a part ended; the first error ends the daemon
	wg         sync.WaitGroup
	answers    *admin.Server // at the administrative address; nil until it is served
	collectors []prometheus.Collector
	// drain, lend and forget are Drain, Lend and Forget of admin.Config.
	drain  func(ctx context.Context, within time.Duration, force bool) (lost, err error)
	lend   func(ctx context.Context, most int64, within time.Duration) (said string, err error)
	forget func(heap string) (said string, err error)

	mu      sync.Mutex
	reports []func(*console.State) // each adds what no metric says; guarded by mu once answers is set
	health  func() error           // guarded by mu once answers is set
}

func newProcess(kind string, c *operator.Control) *process {
	return &process{
		Control: c,
		kind:    kind,
		started: time.Now(),
		addrs:   map[string]string{},
		ends:    &ending{within: DefaultEndWithin},
		failed:  make(chan error, 1),
		health:  func() error { return nil },
	}
}

// spawn runs serve in a goroutine. If serve returns an error, the daemon ends.
func (p *process) spawn(what string, serve func() error) {
	p.wg.Go(func() {
		if err := serve(); err != nil {
			select {
			case p.failed <- fmt.Errorf("%s: %w", what, err):
			default: // the first failure is the one to report
			}
		}
	})
}

// listenAdmin opens the administrative address, if one is wanted, but answers
// nobody yet: a wrong address should be reported before anything is started.
func (p *process) listenAdmin() error {
	if p.Admin == "" {
		return nil
	}
	lis, err := p.Security.Listen(listen.Admin, ServiceAdmin, p.Admin)
	if err != nil {
		return err
	}
	p.admin = lis
	p.onClose(func() error { _ = lis.Close(); return nil }) // the admin server closes it first, if one was started
	p.addrs[ServiceAdmin] = listen.Address(lis)
	return nil
}

// serveAdmin answers at the administrative address, until close. Whatever it is to show
// must be set before, or be added by nowShow.
func (p *process) serveAdmin() error {
	if p.admin == nil {
		return nil
	}
	s, err := p.StartAdmin(p.admin, admin.Config{
		About:      console.About{Service: p.kind, Version: Version(), Started: p.started, Addresses: p.addrs},
		Health:     p.healthNow,
		Report:     p.report,
		Collectors: p.collectors,
		Drain:      p.drain,
		Lend:       p.lend,
		Forget:     p.forget,
	})
	if err != nil {
		return err
	}
	p.answers = s
	return nil
}

// nowShow has the administrative address, if it is served, show more from now on.
func (p *process) nowShow(health func() error, report func(*console.State), collectors ...prometheus.Collector) error {
	p.mu.Lock()
	p.health, p.reports = health, append(p.reports, report)
	p.mu.Unlock()
	if p.answers == nil {
		return nil
	}
	return p.answers.Collect(collectors...)
}

func (p *process) healthNow() error {
	p.mu.Lock()
	health := p.health
	p.mu.Unlock()
	return health()
}

func (p *process) report(s *console.State) {
	p.mu.Lock()
	reports := slices.Clone(p.reports)
	p.mu.Unlock()
	for _, add := range reports {
		add(s)
	}
}

// ready prints the title, the addresses and what to try, and writes the ready file.
func (p *process) ready(title string, try ...string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", title)
	for _, service := range slices.Sorted(maps.Keys(p.addrs)) {
		if addr := p.addrs[service]; service == ServiceAdmin {
			fmt.Fprintf(&b, "  %-9s %s  (console; /metrics, /status, /healthz)\n", service, p.Security.URL(addr))
		} else {
			fmt.Fprintf(&b, "  %-9s %s\n", service, addr)
		}
	}
	if len(try) > 0 {
		b.WriteString("\nTry:\n")
		for _, line := range try {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	b.WriteString("\nCtrl-C ends it.\n")
	if _, err := io.WriteString(p.Out, b.String()); err != nil {
		return fmt.Errorf("cannot print where it listens: %w", err)
	}
	return p.Ready(p.addrs)
}

// wait returns nil when ctx is done, or with the first part that failed.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		p.Logger.Info("ending", "why", context.Cause(ctx))
		return nil
	case err := <-p.failed:
		return err
	}
}

// redisCLI is the redis-cli command that talks to addr.
func (p *process) redisCLI(addr string) string {
	if path, ok := strings.CutPrefix(addr, scheme.Unix); ok {
		return "redis-cli -s " + path
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "redis-cli"
	}
	cli := "redis-cli"
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() && host != "127.0.0.1" {
		cli += " -h " + host
	}
	if port != "6379" {
		cli += " -p " + port
	}
	if c := p.Security.Certificates; c != nil && c.Has(listen.Client) {
		cli += " --tls --cert CERT --key KEY --cacert AUTHORITY"
	}
	return cli
}

// Version is the module's version, or the commit that the program was built
// from, or "devel".
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}
