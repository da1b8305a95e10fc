// Package scheme names the schemes of addresses, in one table for flags, pools
// and drivers. An address without a scheme is HOST:PORT over TCP.
package scheme

import (
	"slices"
	"strings"
)

// Of addresses.
const (
	TCP    = ""        // HOST:PORT, over TCP or TLS
	Unix   = "unix:"   // the absolute path of a node's socket on this machine
	RDMA   = "rdma://" // HOST:PORT on an RDMA fabric
	Broker = "broker:" // the absolute path of a broker's socket on this machine
	DNS    = "dns://"  // a name whose addresses are those of nodes: see package config
	Etcd   = "etcd://" // a cluster in etcd, whose nodes have announced themselves there: see package config
)

// all is every scheme but TCP, which is what remains.
var all = []string{Unix, RDMA, Broker, DNS, Etcd}

// Common returns the scheme of all addresses, and false if they differ in it.
func Common(addrs []string) (string, bool) {
	if len(addrs) == 0 {
		return TCP, true
	}
	first := Of(addrs[0])
	return first, !slices.ContainsFunc(addrs, func(a string) bool { return Of(a) != first })
}

// Of returns the scheme of addr.
func Of(addr string) string {
	if i := slices.IndexFunc(all, func(s string) bool { return strings.HasPrefix(addr, s) }); i >= 0 {
		return all[i]
	}
	return TCP
}
