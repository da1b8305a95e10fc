package directory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"polder/internal/etcd"
)

// A Node is what a memory node says about itself.
type Node struct {
	Address  string `json:"address"`        // HOST:PORT, where clients connect
	Zone     string `json:"zone,omitempty"` // nodes of the same zone fail together
	Capacity int64  `json:"capacity"`       // bytes that it lends
	Free     int64  `json:"free"`           // bytes of Capacity that are not lent, about
	ID       string `json:"id"`             // chosen at random when its process started
	Host     string `json:"host"`           // the name of its machine
}

// Bounds of a directory.
const (
	MaxNodes = 256
	maxEntry = 1 << 10 // bytes
	maxText  = 255     // bytes
)

// host is a DNS name.
var host = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)

// CheckAddress refuses an address to which nobody can connect.
func CheckAddress(addr string) error {
	name, port, err := net.SplitHostPort(addr)
	ip := net.ParseIP(name)
	switch {
	case err != nil || len(addr) > maxText || ip == nil && !host.MatchString(name):
		return errors.New("expected HOST:PORT such as 10.0.0.7:7070")
	case ip.IsUnspecified() || ip.IsMulticast():
		return fmt.Errorf("expected an address of one machine, and %s is none", name)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return errors.New("expected a port from 1 to 65535 after the colon")
	}
	return nil
}

// check refuses what no node says about itself.
func (n *Node) check() error {
	switch {
	case n.Capacity < 0 || n.Free < 0 || n.Free > n.Capacity:
		return fmt.Errorf("%d bytes of %d are free", n.Free, n.Capacity)
	case n.ID == "":
		return errors.New("it has no id")
	}
	for _, text := range []string{n.Zone, n.ID, n.Host} {
		if len(text) > maxText || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			return fmt.Errorf("it has a name of more than %d bytes, or of other things than letters", maxText)
		}
	}
	return CheckAddress(n.Address)
}

// decode decodes the entry of the node at addr.
func decode(addr string, entry []byte) (n Node, err error) {
	if len(entry) > maxEntry {
		return n, fmt.Errorf("it has %d bytes, and an entry at most %d", len(entry), maxEntry)
	}
	if err := json.Unmarshal(entry, &n); err != nil {
		return n, err
	}
	if n.Address != addr {
		return n, fmt.Errorf("it says that its address is %q", n.Address)
	}
	return n, n.check()
}

func (n *Node) encode() []byte {
	b, err := json.Marshal(n)
	if err != nil {
		panic("BUG: " + err.Error()) // cannot fail: there are only texts and numbers
	}
	return b
}

// A Directory is the directory of a cluster in etcd.
type Directory struct {
	client *etcd.Client
	prefix string
}

// New returns the directory of a cluster. client stays the caller's.
func New(client *etcd.Client, cluster string) *Directory {
	return &Directory{client: client, prefix: "/polder/" + cluster + "/nodes/"}
}

// Nodes returns the nodes in the directory, in the order of their addresses, at most MaxNodes. wrong has an error for
// every entry that was left out.
func (d *Directory) Nodes(ctx context.Context) (nodes []Node, wrong []error, err error) {
	kvs, more, err := d.client.List(ctx, d.prefix, MaxNodes)
	if err != nil {
		return nil, nil, err
	}
	if more {
		wrong = append(wrong, fmt.Errorf("there are more than %d nodes below %s, of which the others are not seen", MaxNodes, d.prefix))
	}
	for _, kv := range kvs {
		addr, ok := bytes.CutPrefix(kv.Key, []byte(d.prefix))
		if !ok {
			return nil, nil, fmt.Errorf("cannot list %s in etcd: the answer is about something else", d.prefix)
		}
		n, err := decode(string(addr), kv.Value)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("the entry %q below %s is not a node's: %w", cut(string(addr)), d.prefix, err))
			continue
		}
		nodes = append(nodes, n)
	}
	return nodes, wrong, nil
}

// cut is the beginning of a text that may be too long.
func cut(s string) string { return s[:min(len(s), maxText)] }

// Watch calls changed when it has begun to watch, and again when the list of nodes may have changed, until ctx ends
// or the watch breaks off. Then it may be called again; see etcd.Client.Watch.
func (d *Directory) Watch(ctx context.Context, changed func()) error {
	return d.client.Watch(ctx, d.prefix, changed)
}
