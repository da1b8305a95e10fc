package robustness

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testcert"
)

// hangUp sends SIGHUP, waits until the daemon has reloaded, and returns what it
// has logged meanwhile.
func hangUp(t *testing.T, p *child.Process) (said string) {
	t.Helper()
	before := len(p.Stderr())
	if err := p.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	proctest.Until(t, "it has reloaded", func() bool {
		said = p.Stderr()[before:]
		return strings.Contains(said, "reloaded after SIGHUP") && strings.HasSuffix(said, "\n")
	})
	return said
}

// TestCertificatesAreReplacedUnderTraffic gives a node and a server new
// certificates, and new authorities of nodes and clients, while clients read and
// write what is mostly far. Their connections see nothing of it. Who comes later is
// shown the new certificate, and is let in by the new authorities only; so the
// server's connection to the node, which is cut at last, is made again with the new
// ones.
func TestCertificatesAreReplacedUnderTraffic(t *testing.T) {
	t.Parallel()
	type authorities struct{ nodes, clients *testcert.Authority }
	old := authorities{testcert.NewAuthority(t, "nodes"), testcert.NewAuthority(t, "clients")}
	next := authorities{testcert.NewAuthority(t, "nodes"), testcert.NewAuthority(t, "clients")}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	install := func(a authorities) {
		cert, key := a.nodes.Issue(t, "polder")
		for name, from := range map[string]string{"crt": cert, "key": key, "nodes": a.nodes.File, "clients": a.clients.File} {
			b, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path(name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	install(old)
	flags := []string{"--tls-cert", path("crt"), "--tls-key", path("key"), "--tls-ca", path("nodes")}
	node := startNode(t, "64MiB", append([]string{"--grace", "1m"}, flags...)...)
	proxy := newCutter(t, node.Addr("verbs"))
	server := startServer(t, proxy.lis.Addr().String(), "4MiB", append([]string{"--tls-client-ca", path("clients")}, flags...)...)
	dial := func(cfg *tls.Config) *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: server.Addr("redis"), TLSConfig: cfg, MaxRetries: -1, PoolSize: 1,
			ReadTimeout: hang, WriteTimeout: hang})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}

	ctx, cancel := context.WithCancel(t.Context())
	var going sync.WaitGroup
	stop := func() { cancel(); going.Wait() }
	defer stop()
	const clients, keys = 2, 500
	var requests atomic.Int64
	for i := range clients {
		c := dial(old.clients.Client(t, "application", old.nodes))
		going.Go(func() {
			if n, err := readAndWrite(ctx, c, fmt.Sprint(i), keys, 8<<10, &requests); err != nil {
				t.Errorf("client %d, after %d requests: %v", i, n, err)
				cancel() // there is nothing to wait for
			}
		})
	}
	goOn := func(when string) {
		t.Helper()
		from := requests.Load()
		proctest.Until(t, "the traffic goes on "+when, func() bool { return ctx.Err() != nil || requests.Load() > from+2*clients*keys })
	}

	goOn("at first")
	install(next)
	for _, p := range []*child.Process{node, server} {
		if said := hangUp(t, p); !strings.Contains(said, "the authority of --tls-ca and the certificate of --tls-cert") &&
			!strings.Contains(said, "the authority of --tls-ca and the authority of --tls-client-ca and the certificate of --tls-cert") {
			t.Errorf("got %s, want it to say what is new", said)
		}
	}
	for _, a := range []authorities{old, next} {
		if err := dial(a.clients.Client(t, "application", next.nodes)).Ping(ctx).Err(); (err == nil) != (a == next) {
			t.Errorf("a Redis client that came later, with a certificate of the new authority: %v: got %v", a == next, err)
		}
		if err := visitNode(node.Addr("verbs"), a.nodes.Client(t, "server", next.nodes)); (err == nil) != (a == next) {
			t.Errorf("a node's client that came later, with a certificate of the new authority: %v: got %v", a == next, err)
		}
	}
	goOn("with new certificates")
	proxy.left.Store(1)
	goOn("when the connection to the node has been cut")
	if got := proxy.cuts.Load(); got != 1 {
		t.Errorf("got %d cuts of the connection to the node, want 1", got)
	}
	stop()
}

// readAndWrite writes keys of its own and reads them again, in turn and always
// over one connection, until ctx is done. It counts the requests that were
// answered.
func readAndWrite(ctx context.Context, c *redis.Client, name string, keys, size int, answered *atomic.Int64) (n int, err error) {
	conn := c.Conn()
	defer func() { _ = conn.Close() }()
	background := context.WithoutCancel(ctx) // a request is seen to its end
	for ; ctx.Err() == nil; n++ {
		k := fmt.Sprintf("%s:%d", name, n%keys)
		if round := n / keys; round > 0 {
			got, err := conn.Get(background, k).Result()
			if err != nil || got != value(k, round-1, size) {
				return n, fmt.Errorf("%s: got %d bytes, %w, want what was written", k, len(got), err)
			}
		}
		if err := conn.Set(background, k, value(k, n/keys, size), 0).Err(); err != nil {
			return n, err
		}
		answered.Add(1)
	}
	return n, nil
}

// visitNode connects to a node over TLS. The node speaks first: it says hello once
// the certificate is good.
func visitNode(addr string, cfg *tls.Config) error {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: hang}, "tcp", addr, cfg)
	if err != nil {
		return err
	}
	if err := c.SetDeadline(time.Now().Add(hang)); err != nil {
		return errors.Join(err, c.Close())
	}
	_, err = io.ReadFull(c, make([]byte, 8))
	return errors.Join(err, c.Close())
}

// TestSIGHUPReadsSecretsAndTheLogLevelAnew: who comes later is asked for the new
// password and the new token, and what is wrong changes nothing and is logged.
func TestSIGHUPReadsSecretsAndTheLogLevelAnew(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	type files struct {
		config          string
		password, token string
		mode            os.FileMode // of the password file
	}
	install := func(f files) {
		t.Helper()
		for name, text := range map[string]string{"config": f.config, "password": f.password, "token": f.token, "other": "five"} {
			if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(path("password"), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	config := func(level, passwordFile string) string {
		return fmt.Sprintf("log-level: %s\npassword-file: %s\n", level, path(passwordFile))
	}
	const token1, token2 = "the first token of this daemon", "the second token of this daemon"
	install(files{config("info", "password"), "one", token1, 0o600})
	p := proctest.Start(t, "serve", "--tier", "soft", "--memcached", "127.0.0.1:0", "--config", path("config"), "--admin-token-file", path("token"))
	dial := func(password string) *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: p.Addr("redis"), Password: password, MaxRetries: -1, PoolSize: 1, ReadTimeout: hang})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ctx := t.Context()
	kept := dial("one").Conn()
	defer func() { _ = kept.Close() }()
	check := func(when, password, token string) {
		t.Helper()
		for _, shown := range []string{"", "one", "two", "three", "five"} {
			err := dial(shown).Ping(ctx).Err()
			if got := refusal(err); (err == nil) != (shown == password) || err != nil && got != "WRONGPASS" && got != "NOAUTH" {
				t.Errorf("%s: the password is %q, and a client with %q got %v", when, password, shown, err)
			}
		}
		for _, shown := range []string{"", token1, token2} {
			want := http.StatusUnauthorized
			if shown == token {
				want = http.StatusOK
			}
			if got := statusCode(t, p, shown); got != want {
				t.Errorf("%s: the token is %q, and status %d was the answer to %q, want %d", when, token, got, shown, want)
			}
		}
		if err := kept.Ping(ctx).Err(); err != nil {
			t.Errorf("%s: the client that was there got %v", when, err)
		}
	}
	const lost = "a memcached client has gone" // at level debug
	resetMemcached(t, p)
	check("at first", "one", token1)
	if strings.Contains(p.Stderr(), lost) {
		t.Error("a line of level debug was logged, want those from info on")
	}

	for _, tt := range []struct {
		what            string
		files           files
		said            string
		password, token string
	}{
		{"new secrets, level debug", files{config("debug", "password"), "two", token2, 0o600}, "log level: debug", "two", token2},
		{"another password file", files{config("debug", "other"), "three", token2, 0o600}, "secrets: the password", "five", token2},
		{"no YAML", files{"log-level: [", "three", token2, 0o600}, "the configuration file stays as it was read before", "five", token2},
		{"no level", files{config("loud", "password"), "three", token2, 0o600}, "the configuration file stays as it was read before", "five", token2},
		{"a password for all to read", files{config("debug", "password"), "three", token2, 0o644}, "expected a file of mode 0600", "five", token2},
		{"a short token", files{config("debug", "password"), "three", "short", 0o600}, "expected a token of at least 16 characters", "five", token2},
		{"no password", files{"log-level: debug", "three", token2, 0o600}, "cannot cease to ask for a password without a restart", "five", token2},
		{"all is well", files{config("debug", "password"), "three", token1, 0o600}, "the password and the administrative token", "three", token1},
	} {
		install(tt.files)
		if said := hangUp(t, p); !strings.Contains(said, tt.said) {
			t.Errorf("%s: got %s, want %q in it", tt.what, said, tt.said)
		}
		check(tt.what, tt.password, tt.token)
		before := strings.Count(p.Stderr(), lost)
		resetMemcached(t, p)
		proctest.Until(t, "it logs at level debug", func() bool { return strings.Count(p.Stderr(), lost) > before })
	}
}

// statusCode is the answer to a request for /status that shows a token.
func statusCode(t *testing.T, p *child.Process, token string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.Addr("admin")+"/status", nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Timeout: hang, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// resetMemcached is a memcached client that is served, and goes without a word.
func resetMemcached(t *testing.T, p *child.Process) {
	t.Helper()
	c := dialTCP(t, p.Addr("memcached")).(*net.TCPConn)
	if _, err := io.WriteString(c, "mn\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, len("MN\r\n"))); err != nil {
		t.Fatal(err)
	}
	if err := c.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestWeightsAreReadAgain: an operator weighs a cache by its name, changes his mind, and
// makes a mistake.
func TestWeightsAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "weights")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("name:polder serve * = 2\n")
	c := startCoordinator(t, socket, "--weight", "name:nobody=9", "--weights", file)
	startCache(t, socket)
	weight := func() float64 {
		return proctest.State(t, c).Metrics.Sum("polder_coordinator_client_weight")
	}
	proctest.Until(t, "the cache has the weight that the file says", func() bool { return weight() == 2 })
	write("user:12345678 = 7\n\nname:polder* = 3\n")
	if said := hangUp(t, c); weight() != 3 {
		t.Errorf("after SIGHUP the cache has a weight of %v, want 3: %s", weight(), said)
	}
	write("name:polder* = 3\nname:polder = lots\n")
	if said := hangUp(t, c); !strings.Contains(said, "line 2") || weight() != 3 {
		t.Errorf("after a mistake in line 2 the cache has a weight of %v, want 3; it says %s", weight(), said)
	}
}
