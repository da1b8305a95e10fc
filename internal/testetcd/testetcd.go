// Package testetcd runs real etcd servers for tests: Debian's etcd-server, which .ci/deps installs.
package testetcd

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/testaddr"
)

// A Member is one server of a cluster. It has its own directory and addresses, and keeps them when it is started
// again.
type Member struct {
	Addr string // where clients connect, HOST:PORT

	tb   testing.TB
	args []string
	tls  bool
	p    *child.Process
}

// New starts a cluster of this many members. They answer when it returns, and end with the test. args are added to
// the command line of each. With --cert-file among them the members speak TLS with clients.
func New(tb testing.TB, members int, args ...string) []*Member {
	tb.Helper()
	dir, host := tb.TempDir(), testaddr.Host()
	secure := slices.Contains(args, "--cert-file")
	if secure {
		host = "127.0.0.1" // which package testcert's certificates are for
	}
	ports := freePorts(tb, host, 2*members)
	var cluster []string
	for i := range members {
		cluster = append(cluster, fmt.Sprintf("m%d=http://%s", i, ports[2*i+1]))
	}
	var list []*Member
	for i := range members {
		m := &Member{Addr: ports[2*i], tb: tb, tls: secure}
		client, peer := "http://"+m.Addr, "http://"+ports[2*i+1]
		if m.tls {
			client = "https://" + m.Addr
		}
		name := fmt.Sprint("m", i)
		m.args = append([]string{
			"--name", name, "--data-dir", filepath.Join(dir, name),
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-token", dir,
			"--logger", "zap", "--log-level", "error",
		}, args...)
		list = append(list, m)
		m.Start()
	}
	tb.Cleanup(func() {
		for _, m := range list {
			m.Kill()
		}
	})
	for _, m := range list {
		m.Await()
	}
	return list
}

// freePorts returns addresses of host that nobody uses.
func freePorts(tb testing.TB, host string, n int) (addrs []string) {
	tb.Helper()
	for range n {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			tb.Fatal(err)
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// Start starts the member, which has ended.
func (m *Member) Start() {
	m.tb.Helper()
	// One processor: it shares the machine with what is tested.
	p, err := child.Start(child.Command{Path: "etcd", Args: m.args, Env: []string{"GOMAXPROCS=1"}, Stdout: os.Stderr})
	if err != nil {
		m.tb.Fatalf("%v: .ci/deps installs etcd-server", err)
	}
	m.p = p
}

// Kill ends the member with SIGKILL, if it runs.
func (m *Member) Kill() {
	if m.p != nil {
		m.p.Kill()
		m.p = nil
	}
}

// Pause stops the member, which keeps its connections and answers nobody.
func (m *Member) Pause() { m.signal(syscall.SIGSTOP) }

// Continue has a member that is paused go on.
func (m *Member) Continue() { m.signal(syscall.SIGCONT) }

func (m *Member) signal(s syscall.Signal) {
	m.tb.Helper()
	if err := m.p.Signal(s); err != nil {
		m.tb.Fatal(err)
	}
}

// Await waits until the member answers, which takes a majority of its cluster.
func (m *Member) Await() {
	m.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for !m.healthy(ctx) {
		select {
		case <-m.p.Done():
			m.tb.Fatalf("etcd has ended: %v", m.p.Err())
		case <-ctx.Done():
			m.tb.Fatalf("etcd at %s does not answer: %s", m.Addr, m.p.Stderr())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// healthy asks the member. With TLS it only connects to it.
func (m *Member) healthy(ctx context.Context) bool {
	if m.tls {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", m.Addr)
		if err != nil {
			return false
		}
		c.Close()
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Addr+"/health", nil)
	if err != nil {
		m.tb.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
