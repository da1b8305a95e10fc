package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"polder/far/copies"
	"polder/far/remote"
	"polder/internal/scheme"
	"polder/pool"
)

func isDNS(addr string) bool { return scheme.Of(addr) == scheme.DNS }

// A directory is a name in the DNS that has the addresses of nodes, such as that of a headless service: with a port its
// A and AAAA records, without one its SRV records.
type directory struct {
	name, port string
	resolver   *net.Resolver
	node       func(addr string) pool.NodeConfig
}

// newDirectory makes what addr names, which package config has checked: dns://[SERVER/]NAME[:PORT].
func newDirectory(addr string) *directory {
	d := &directory{resolver: net.DefaultResolver}
	server, name, ok := strings.Cut(strings.TrimPrefix(addr, scheme.DNS), "/")
	if !ok {
		server, name = "", server
	}
	d.name = name
	if host, port, err := net.SplitHostPort(name); err == nil {
		d.name, d.port = host, port
	}
	if server != "" {
		if _, _, err := net.SplitHostPort(server); err != nil {
			server = net.JoinHostPort(server, "53")
		}
		d.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server)
		}}
	}
	return d
}

// lookup returns the addresses of the nodes that there are now, at least one.
func (d *directory) lookup(ctx context.Context) (addrs []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if d.port != "" {
		hosts, err := d.resolver.LookupHost(ctx, d.name)
		if err != nil {
			return nil, err
		}
		for _, h := range hosts {
			addrs = append(addrs, net.JoinHostPort(h, d.port))
		}
	} else {
		_, records, err := d.resolver.LookupSRV(ctx, "", "", d.name)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			addrs = append(addrs, net.JoinHostPort(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port))))
		}
	}
	slices.Sort(addrs)
	if addrs = slices.Compact(addrs); len(addrs) == 0 {
		return nil, fmt.Errorf("%s has no addresses", d.name)
	}
	return addrs, nil
}

// resolve returns what to connect to for one of the addresses that lookup has returned, and whose certificate
// to expect there: that of the name in an SRV record, or of the name with the A and AAAA records.
func (d *directory) resolve(ctx context.Context, addr string) (ip, host string, err error) {
	if d.port != "" {
		return addr, d.name, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "", err
	}
	ips, err := d.resolver.LookupHost(ctx, host)
	if err != nil {
		return "", "", err
	}
	return net.JoinHostPort(ips[0], port), host, nil
}

const (
	lookupTimeout = 10 * time.Second
	lookupEvery   = 5 * time.Second
	// absentFor is for how long a node must not have been named until it is forgotten, if nothing is borrowed from it.
	absentFor = time.Minute
)

// await waits until there are nodes, for as long as wait says.
func (d *directory) await(ctx context.Context, p *process, wait time.Duration) (nodes []pool.NodeConfig, err error) {
	defer p.Waiting("looking for nodes")()
	deadline := time.Now().Add(wait)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		addrs, err := d.lookup(ctx)
		if err == nil {
			for _, addr := range addrs {
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

// members keeps a pool and a store over it in agreement with a directory: nodes that are new join, and those that
// are gone for long are forgotten.
type members struct {
	directory *directory
	lent      *pool.Pool
	copies    *copies.Store
	log       *slog.Logger

	absent map[string]time.Time // since when nodes are not named
	said   map[string]string    // what was last said of a node, or of the directory, ""
}

// follow does so until ctx ends.
func (m *members) follow(ctx context.Context) {
	tick := time.NewTicker(lookupEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		addrs, err := m.directory.lookup(ctx)
		if ctx.Err() != nil {
			return
		}
		m.say("", err)
		if err == nil {
			m.update(time.Now(), addrs)
		}
	}
}

// say warns of err, once.
func (m *members) say(node string, err error) {
	if err == nil {
		delete(m.said, node)
		return
	}
	if text := err.Error(); m.said[node] != text {
		m.said[node] = text
		m.log.Warn("the nodes are not all as the directory has them", "directory", m.directory.name, "error", err)
	}
}

// update takes note of the nodes that there are.
func (m *members) update(now time.Time, addrs []string) {
	known := append(m.lent.Nodes(), m.copies.Places()...)
	for _, addr := range addrs {
		delete(m.absent, addr)
		m.say(addr, m.join(addr))
	}
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

func (m *members) join(addr string) error {
	if !slices.Contains(m.lent.Nodes(), addr) {
		if err := m.lent.Add(m.directory.node(addr)); err != nil {
			return err
		}
	}
	if slices.Contains(m.copies.Places(), addr) {
		return nil
	}
	return m.copies.Add(remote.Place(m.lent, addr))
}

// forget removes a node that is of no use any more. It is asked again if it is.
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
