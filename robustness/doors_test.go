package robustness

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/console"
	"polder/internal/proctest"
)

// leaveSocket makes what a process that was killed leaves: a socket that nobody serves.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestEveryDoorIsAlsoAUnixSocket: a daemon takes over the sockets that a dead one has
// left, lets nobody but its own user in, and keeps them against another daemon.
func TestEveryDoorIsAlsoAUnixSocket(t *testing.T) {
	t.Parallel()
	node := proctest.Start(t, "node", "--lend", "64MiB", "--manager", "finemem")
	for _, d := range []struct {
		daemon  string
		args    []string
		sockets map[string]string // by flag, such as listen: the service
		plain   bool              // the flags take a path without unix:
	}{
		{daemon: "node", args: []string{"--lend", "64MiB"}, sockets: map[string]string{"listen": "verbs"}},
		{daemon: "up", args: []string{"--lend", "64MiB"}, sockets: map[string]string{"listen": "redis"}},
		{daemon: "serve", args: []string{"--tier", "soft"}, sockets: map[string]string{"listen": "redis", "memcached": "memcached"}},
		{daemon: "broker", args: []string{"--far", node.Addr("verbs")}, sockets: map[string]string{"listen": "broker"}},
		{daemon: "share", args: []string{"--dir", t.TempDir(), "--pool", "memfd:16MiB"}, sockets: map[string]string{"socket": "share"}, plain: true},
		{daemon: "serve files", args: []string{t.TempDir()}, sockets: map[string]string{"listen": "http"}},
		{daemon: "coordinator", sockets: map[string]string{"socket": "socket"}, plain: true},
	} {
		t.Run(d.daemon, func(t *testing.T) {
			dir := t.TempDir()
			args, services := append(strings.Fields(d.daemon), "--admin", "unix:"+filepath.Join(dir, "admin")), []string{"admin"}
			args = append(args, d.args...)
			name := args[strings.Count(d.daemon, " ")] // the last word of the command
			for flag, service := range d.sockets {
				path := filepath.Join(dir, service)
				if !d.plain {
					path = "unix:" + path
				}
				args, services = append(args, "--"+flag, path), append(services, service)
			}
			for _, service := range services {
				leaveSocket(t, filepath.Join(dir, service))
			}
			p := proctest.RunCommand(t, child.Command{Path: proctest.Binary(), Args: args})
			for _, service := range services {
				path := filepath.Join(dir, service)
				if st, err := os.Stat(path); err != nil || st.Mode() != os.ModeSocket|0o600 {
					t.Errorf("%s: got %v, %v, want a socket for its user alone", service, st, err)
				}
				if addr := p.Addr(service); !strings.HasSuffix(addr, path) {
					t.Errorf("%s: it says that it listens at %q, want %s", service, addr, path)
				}
			}
			other := args
			if d.daemon == "share" { // whose directory is locked by itself
				other = append(args[:len(args):len(args)], "--dir", t.TempDir())
			}
			if _, said, code := proctest.Output(t, nil, other...); code != 1 || !strings.Contains(said, "served by another process") {
				t.Errorf("another one at the same sockets: got code %d, want 1, and %s", code, said)
			}
			if s, err := console.Query(t.Context(), nil, "", p.Addr("admin"), 0); err != nil || s.Service != name {
				t.Errorf("its status: got %+v, %v", s, err)
			}
			if out, said, code := proctest.Output(t, nil, "status", "--admin", p.Addr("admin")); code != 0 || !strings.Contains(out, "polder "+name) {
				t.Errorf("polder status: got code %d, %s%s", code, out, said)
			}
			if path, ok := strings.CutPrefix(p.Addr("redis"), "unix:"); ok {
				c := redis.NewClient(&redis.Options{Network: "unix", Addr: path, MaxRetries: -1})
				if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
					t.Error(err)
				}
				if got, err := c.Get(t.Context(), "k").Result(); got != "v" || err != nil {
					t.Errorf("GET: got %q, %v", got, err)
				}
				_ = c.Close()
			}
			if path, ok := strings.CutPrefix(p.Addr("memcached"), "unix:"); ok {
				if got := sayOver(t, path, "set k 0 0 1\r\nv\r\nget k\r\nquit\r\n"); got != "STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n" {
					t.Errorf("memcached: got %q", got)
				}
			}
			if err := p.Signal(syscall.SIGTERM); err != nil || p.Err() != nil {
				t.Errorf("it ends with %v, %v", err, p.Err())
			}
			for _, service := range services {
				if _, err := os.Stat(filepath.Join(dir, service)); err == nil {
					t.Errorf("%s: its socket is left", service)
				}
			}
		})
	}
}

// sayOver says something at a socket and returns the answer.
func sayOver(t *testing.T, path, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestACacheFindsTheCoordinator where one listens by default, and says when it is alone.
func TestACacheFindsTheCoordinator(t *testing.T) {
	t.Parallel()
	run := t.TempDir()
	here := func(daemon string, args ...string) child.Command {
		return child.Command{Path: proctest.Binary(), Args: append([]string{daemon, "--admin", "127.0.0.1:0"}, args...),
			Env: []string{"RUNTIME_DIRECTORY=" + run}}
	}
	cache := []string{"--listen", "127.0.0.1:0", "--tier", "soft"}
	alone := proctest.RunCommand(t, here("serve", cache...))
	proctest.Until(t, "a cache without a coordinator says so", func() bool {
		return strings.Contains(alone.Stderr(), "there is no coordinator: the memory of the cache is fixed")
	})
	coordinator := proctest.RunCommand(t, here("coordinator", "--max", "128MiB", "--grace", "10ms", "--interval", "100ms"))
	proctest.RunCommand(t, here("serve", cache...))
	proctest.Until(t, "a cache has registered", func() bool {
		return proctest.State(t, coordinator).Metrics.Int("polder_coordinator_clients") == 1
	})
	socket := filepath.Join(t.TempDir(), "s")
	early := proctest.RunCommand(t, here("serve", append(cache, "--coordinator", socket)...))
	proctest.Until(t, "a cache whose coordinator is away says so", func() bool {
		return strings.Contains(early.Stderr(), "no coordinator answers; the cache keeps the memory that it has")
	})
	proctest.RunCommand(t, here("coordinator", "--socket", socket, "--max", "128MiB", "--grace", "10ms"))
	proctest.Until(t, "it has registered", func() bool {
		return strings.Contains(early.Stderr(), "registered with the coordinator")
	})
	if n := strings.Count(early.Stderr(), "no coordinator answers"); n != 1 {
		t.Errorf("it said %d times that its coordinator is away, want 1: %s", n, early.Stderr())
	}
}
