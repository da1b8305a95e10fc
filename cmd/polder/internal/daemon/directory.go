package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"polder/far/copies"
	"polder/far/remote"
	"polder/internal/scheme"
	"polder/pool"
)

// isDirectory reports whether addr names a directory of nodes. Its nodes may change.
func isDirectory(addr string) bool {
	by := scheme.Of(addr)
	return by == scheme.DNS || by == scheme.Etcd
}

// A nodeDirectory knows the nodes that there are.
type nodeDirectory interface {
	// String is the directory's name.
	String() string
	// lookup returns the addresses of the nodes that there are now, at least one.
	lookup(ctx context.Context) (addrs []string, err error)
	// node is how to connect to a node that lookup has named.
	node(addr string) pool.NodeConfig
	// watch calls changed when the nodes may have changed, until ctx ends. The watch of a directory that cannot tell
	// does nothing: its users also call lookup every lookupEvery.
	watch(ctx context.Context, changed func())
}

const (
	lookupTimeout = 10 * time.Second
	lookupEvery   = 5 * time.Second
	// absentFor is how long after the directory last named a node the node is forgotten, unless it is in use.
	absentFor = time.Minute
)

// await waits until the directory names nodes, but no longer than wait.
func await(ctx context.Context, p *process, d nodeDirectory, wait time.Duration) (nodes []pool.NodeConfig, err error) {
	defer p.Waiting("looking for nodes")()
	deadline := time.Now().Add(wait)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		addrs, err := d.lookup(ctx)
		if err == nil {
			for _, addr := range addrs[:min(len(addrs), copies.MaxPlaces)] {
				nodes = append(nodes, d.node(addr))
			}
			return nodes, nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nil, fmt.Errorf("cannot find nodes: %w", err)
		}
		if pause == firstPause {
			p.Logger.Warn("no nodes are found yet", "trying again for", left.Round(time.Second), "error", err)
		}
		select {
		case <-time.After(min(pause, left)):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// members makes a pool, and a store over it, follow a directory: new nodes join, and nodes that the directory has not
// named for absentFor are forgotten.
type members struct {
	directory nodeDirectory
	lent      *pool.Pool
	copies    *copies.Store
	log       *slog.Logger

	absent map[string]time.Time // by node, since when the directory has not named it
	// said is the last warning about each node. Under "" it is about the directory, under "too many" about nodes that
	// cannot join since there are too many.
	said map[string]string

	named   atomic.Int64 // how many nodes the directory named when it last answered
	answers atomic.Bool  // whether the directory answered when it was last asked
}

// newMembers makes members for a pool whose present nodes have joined already.
func newMembers(d nodeDirectory, lent *pool.Pool, store *copies.Store, log *slog.Logger) *members {
	m := &members{directory: d, lent: lent, copies: store, log: log, absent: map[string]time.Time{}, said: map[string]string{}}
	m.named.Store(int64(len(lent.Nodes())))
	m.answers.Store(true)
	return m
}

// collectors are metrics of the directory: how many nodes it named, and whether it answers.
func (m *members) collectors() []prometheus.Collector {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "polder_directory_" + name, Help: help}, value)
	}
	return []prometheus.Collector{
		gauge("nodes", "Nodes that the directory named when it last answered.", func() float64 { return float64(m.named.Load()) }),
		gauge("answers", "1 if the directory answered when it was last asked.", func() float64 {
			if m.answers.Load() {
				return 1
			}
			return 0
		}),
	}
}

// follow keeps the pool and the store up to date until ctx ends.
func (m *members) follow(ctx context.Context) {
	tick := time.NewTicker(lookupEvery)
	defer tick.Stop()
	changed := make(chan struct{}, 1)
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() {
		m.directory.watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default: // a lookup is due already
			}
		})
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-changed:
		}
		addrs, err := m.directory.lookup(ctx)
		if ctx.Err() != nil {
			return
		}
		m.say("", err)
		m.answers.Store(err == nil)
		if err == nil {
			m.named.Store(int64(len(addrs)))
			m.update(time.Now(), addrs)
		}
	}
}

// say logs err as a warning, unless it was the last warning about the node. A nil err forgets the last warning.
func (m *members) say(node string, err error) {
	if err == nil {
		delete(m.said, node)
		return
	}
	if text := err.Error(); m.said[node] != text {
		m.said[node] = text
		m.log.Warn("the nodes are not all as the directory has them", "directory", m.directory.String(), "error", err)
	}
}

// update has new nodes join, and forgets nodes that have been absent for long. addrs are the nodes that there are.
func (m *members) update(now time.Time, addrs []string) {
	var tooMany error
	known := append(m.lent.Nodes(), m.copies.Places()...)
	for _, addr := range addrs {
		delete(m.absent, addr)
		err := m.join(addr)
		if errors.Is(err, errTooMany) {
			tooMany = err
			continue
		}
		m.say(addr, err)
	}
	m.say("too many", tooMany)
	for _, name := range known {
		if slices.Contains(addrs, name) {
			continue
		}
		since, ok := m.absent[name]
		if !ok {
			m.absent[name] = now
		} else if now.Sub(since) >= absentFor {
			m.forget(name)
		}
	}
}

var errTooMany = fmt.Errorf("there are more than %d nodes, of which the others do not join", copies.MaxPlaces)

func (m *members) join(addr string) error {
	if nodes := m.lent.Nodes(); !slices.Contains(nodes, addr) {
		if len(nodes) >= copies.MaxPlaces {
			return errTooMany
		}
		if err := m.lent.Add(m.directory.node(addr)); err != nil {
			return err
		}
	}
	if slices.Contains(m.copies.Places(), addr) {
		return nil
	}
	return m.copies.Add(remote.Place(m.lent, addr))
}

// forget removes a node that is not used any more. If the node is still in use, it stays, and the next update tries
// again.
func (m *members) forget(name string) {
	if m.lent.Forget(name) != nil && slices.Contains(m.lent.Nodes(), name) {
		return
	}
	if m.copies.Remove(name) != nil && slices.Contains(m.copies.Places(), name) {
		return
	}
	delete(m.absent, name)
	m.log.Info("a node is forgotten: it does not answer, and the directory does not name it any more", "node", name)
}
