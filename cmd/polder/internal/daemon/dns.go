package daemon

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"polder/internal/scheme"
	"polder/pool"
	"polder/verbs"
)

// A dnsDirectory is a name in the DNS that has the addresses of nodes, such as the name of a headless service. With a
// port, the addresses are the name's A and AAAA records; without one, its SRV records.
type dnsDirectory struct {
	name, port string
	resolver   *net.Resolver
	dial       func(ctx context.Context, addr, host string) (verbs.Conn, error) // the node's certificate is for host
}

// newDNSDirectory makes the directory that addr names: dns://[SERVER/]NAME[:PORT]. Package config has checked addr.
func newDNSDirectory(addr string) *dnsDirectory {
	d := &dnsDirectory{resolver: net.DefaultResolver}
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
func (d *dnsDirectory) lookup(ctx context.Context) (addrs []string, err error) {
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

// resolve returns, for an address from lookup, the IP address and port to connect to, and the host for which the
// node's certificate must be: the target of the SRV record, or the name that has the A and AAAA records.
func (d *dnsDirectory) resolve(ctx context.Context, addr string) (ip, host string, err error) {
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

func (d *dnsDirectory) String() string { return d.name }

func (d *dnsDirectory) node(addr string) pool.NodeConfig {
	return pool.NodeConfig{Name: addr, Dial: func(ctx context.Context) (verbs.Conn, error) {
		ip, host, err := d.resolve(ctx, addr)
		if err != nil {
			return nil, err
		}
		return d.dial(ctx, ip, host)
	}}
}

func (d *dnsDirectory) watch(context.Context, func()) {}
