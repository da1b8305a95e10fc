package config

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"

	"github.com/spf13/pflag"

	"polder/internal/scheme"
)

// clusterName is what a cluster in etcd may be called.
var clusterName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// ParseEtcd reads etcd://HOST:PORT[,HOST:PORT...]/NAME: where etcd is, and the name of a cluster there.
func ParseEtcd(s string) (endpoints []string, cluster string, err error) {
	rest, ok := strings.CutPrefix(s, scheme.Etcd)
	hosts, cluster, slash := strings.Cut(rest, "/")
	if !ok || !slash {
		return nil, "", errors.New("expected etcd://HOST:PORT/NAME such as etcd://10.0.0.5:2379/production, several HOST:PORT with commas between")
	}
	for _, e := range strings.Split(hosts, ",") {
		e = strings.TrimSpace(e)
		if err := checkAddress(e); err != nil {
			return nil, "", fmt.Errorf("%w between etcd:// and /", err)
		}
		if host, _, _ := net.SplitHostPort(e); net.ParseIP(host) == nil && !dnsName.MatchString(host) {
			return nil, "", errors.New("expected a host before the colon between etcd:// and /")
		}
		endpoints = append(endpoints, e)
	}
	if !clusterName.MatchString(cluster) {
		return nil, "", errors.New("expected the name of a cluster after etcd://HOST:PORT/: up to 64 letters, digits, dots, dashes and underscores, of which the first is a letter or a digit")
	}
	return endpoints, cluster, nil
}

// Etcd is a flag value that names a cluster in etcd.
type Etcd struct{ p *string }

var _ pflag.Value = (*Etcd)(nil)

// NewEtcd makes a flag value that stores into p, which holds the default. ParseEtcd reads what it holds.
func NewEtcd(p *string) *Etcd { return &Etcd{p} }

// Set parses s.
func (v *Etcd) Set(s string) error {
	if _, _, err := ParseEtcd(s); err != nil {
		return err
	}
	*v.p = s
	return nil
}

func (v *Etcd) String() string {
	if v.p == nil {
		return ""
	}
	return *v.p
}

// Type names the value in usage texts.
func (v *Etcd) Type() string { return "address" }
