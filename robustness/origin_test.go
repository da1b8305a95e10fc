package robustness

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testcert"
)

// startOrigin runs a Redis for others to cache.
func startOrigin(t *testing.T, args ...string) (*child.Redis, *redis.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	r, err := child.StartRedis(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	c := redis.NewClient(&redis.Options{Addr: r.Addr, MaxRetries: -1, ReadTimeout: hang, WriteTimeout: hang})
	t.Cleanup(func() { _ = c.Close() })
	return r, c
}

// startTLSOrigin runs a Redis, and returns where it speaks TLS.
func startTLSOrigin(t *testing.T, args ...string) (addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	for range 3 { // Redis chooses no port itself, and somebody may be faster
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr = lis.Addr().String()
		_, port, err := net.SplitHostPort(addr)
		if err := errors.Join(err, lis.Close()); err != nil {
			t.Fatal(err)
		}
		r, err := child.StartRedis(ctx, slices.Concat([]string{"--tls-port", port}, args)...)
		if err == nil {
			t.Cleanup(func() { _ = r.Close() })
			return addr
		}
		t.Log(err)
	}
	t.Fatal("no Redis with TLS can be started")
	return ""
}

// startReadThrough runs a cache before the origin, and waits until it caches.
func startReadThrough(t *testing.T, args ...string) *child.Process {
	t.Helper()
	p := proctest.Start(t, "serve", append([]string{"--tier", "soft", "--coordinator", "off", "--budget", "16MiB", "--op-timeout", "20s", "--origin-lag", "10s"}, args...)...)
	cachesOrigin(t, p)
	return p
}

func cachesOrigin(t *testing.T, p *child.Process) {
	t.Helper()
	proctest.Until(t, "the origin is cached", func() bool { return origin(t, p, "up") == 1 })
}

func origin(t *testing.T, p *child.Process, metric string) int64 {
	t.Helper()
	return proctest.State(t, p).Metrics.Int("polder_origin_" + metric)
}

// TestACacheBeforeARedisStaysTrueThroughItsMisfortunes has the real program cache a real
// Redis, of which connections are killed, which stops, is flushed, and dies. Counters that
// others raise at the Redis itself are never seen to fall, and what is acknowledged is seen.
func TestACacheBeforeARedisStaysTrueThroughItsMisfortunes(t *testing.T) {
	t.Parallel()
	redisServer, direct := startOrigin(t)
	server := startReadThrough(t, "--origin", "redis://"+redisServer.Addr)
	c, ctx := connect(t, server), t.Context()
	get := func(key string) int {
		n, err := c.Get(ctx, key).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return -1 // the connection was killed
		}
		return n
	}
	misfortunes := []func() error{
		func() error { return nil },
		func() error { return direct.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err() },
		func() error {
			return errors.Join(redisServer.Signal(syscall.SIGSTOP), redisServer.Signal(syscall.SIGCONT))
		},
	}
	seen := 0
	for i := range 60 {
		n := i + 1
		if err := errors.Join(direct.Set(ctx, "theirs", n, 0).Err(), misfortunes[i%len(misfortunes)]()); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			switch got := get("theirs"); {
			case got == -1:
			case got < seen || got > n:
				t.Fatalf("got %d after %d, and %d was written", got, seen, n)
			default:
				seen = got
			}
		}
		if c.Set(ctx, "ours", n, 0).Err() == nil {
			if got := get("ours"); got != n && got != -1 {
				t.Fatalf("got %d after the acknowledged %d", got, n)
			}
		}
	}
	proctest.Until(t, "the last one is seen", func() bool { return get("theirs") == 60 })
	if h := origin(t, server, "hits_total"); h == 0 {
		t.Error("nothing was answered from the cache")
	}
	cachesOrigin(t, server)
	get("theirs")
	if err := direct.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	proctest.Until(t, "the flush is seen", func() bool { return get("theirs") == 0 })
	if err := redisServer.Close(); err != nil {
		t.Fatal(err)
	}
	proctest.Until(t, "the origin is missed", func() bool { return origin(t, server, "up") == 0 })
	if err := connect(t, server).Get(ctx, "ours").Err(); err == nil || !strings.Contains(err.Error(), "the origin cannot be reached") {
		t.Errorf("without an origin: got %v", err)
	}
}

// TestAnOriginsPasswordIsShownToNobody looks for it where it could have leaked.
func TestAnOriginsPasswordIsShownToNobody(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse-battery"
	redisServer, direct := startOrigin(t)
	if err := direct.ConfigSet(t.Context(), "requirepass", secret).Err(); err != nil {
		t.Fatal(err)
	}
	url := "redis://:" + secret + "@" + redisServer.Addr
	out, stderr, code := proctest.Output(t, nil, "serve", "--tier", "soft", "--listen", "127.0.0.1:0", "--admin", "off", "--origin", url)
	if code == 0 || !strings.Contains(stderr, "--origin-password-file") || strings.Contains(out+stderr, secret) {
		t.Errorf("a password on the command line: code %d, %s", code, stderr)
	}
	out, stderr, _ = proctest.Output(t, []string{"POLDER_ORIGIN=" + url}, "config", "serve", "--tier", "soft")
	if !strings.Contains(out, "origin is set and not shown") || strings.Contains(out+stderr, secret) {
		t.Errorf("polder config prints %s%s", out, stderr)
	}

	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := startReadThrough(t, "--origin", "redis://"+redisServer.Addr, "--origin-password-file", file, "--log-level", "debug")
	stranger := connect(t, server)
	if err := stranger.Get(t.Context(), "k").Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("who shows no password is answered %v", err)
	}
	c := redis.NewClient(&redis.Options{Addr: server.Addr("redis"), Password: secret, ReadTimeout: hang})
	defer func() { _ = c.Close() }()
	for range 3 {
		if err := c.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("who shows the password is answered %v", err)
		}
	}
	if origin(t, server, "hits_total") == 0 {
		t.Error("who shows the password is not answered from the cache")
	}
	if err := direct.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err(); err != nil { // for the log
		t.Fatal(err)
	}
	proctest.Until(t, "the cut is noticed", func() bool { return origin(t, server, "flushes_total") > 0 })
	cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(server.PID()), "cmdline"))
	if err != nil {
		t.Fatal(err)
	}
	var status strings.Builder
	if err := proctest.State(t, server).Print(&status); err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"the command line": string(cmdline), "the log": server.Stderr(), "the status": status.String()} {
		if strings.Contains(text, secret) {
			t.Errorf("%s has the password: %s", where, text)
		}
	}
}

// TestAnOriginsPasswordIsReplaced: the origin has a new password, and its connections are
// cut. The cache gets in again once it has been told to read the file.
func TestAnOriginsPasswordIsReplaced(t *testing.T) {
	t.Parallel()
	redisServer, direct := startOrigin(t)
	file := filepath.Join(t.TempDir(), "password")
	password := func(secret string) {
		t.Helper()
		if err := errors.Join(direct.ConfigSet(t.Context(), "requirepass", secret).Err(), os.WriteFile(file, []byte(secret), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	cut := func() {
		t.Helper()
		if err := direct.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
			t.Fatal(err)
		}
	}
	password("first")
	server := startReadThrough(t, "--origin", "redis://"+redisServer.Addr, "--origin-password-file", file)
	password("second")
	cut()
	proctest.Until(t, "the first password is refused", func() bool {
		return origin(t, server, "up") == 0 && strings.Contains(server.Stderr(), "WRONGPASS")
	})
	if said := hangUp(t, server); !strings.Contains(said, "the origin's password") {
		t.Errorf("it says %s, want that there is a new password", said)
	}
	cachesOrigin(t, server)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if said := hangUp(t, server); !strings.Contains(said, "origin-password-file") {
		t.Errorf("of an empty file it says %s", said)
	}
	before := origin(t, server, "flushes_total")
	cut()
	proctest.Until(t, "the cut is noticed", func() bool { return origin(t, server, "flushes_total") > before })
	cachesOrigin(t, server) // with the password that it has
}

// TestAnOriginIsVerifiedByItsCertificate, and the cache by its own.
func TestAnOriginIsVerifiedByItsCertificate(t *testing.T) {
	t.Parallel()
	ours, others := testcert.NewAuthority(t, "ours"), testcert.NewAuthority(t, "others")
	cert, key := ours.Issue(t, "origin")
	url := []string{"--origin", "rediss://" + startTLSOrigin(t, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ours.File)}
	shown, shownKey := ours.Issue(t, "cache")
	show := []string{"--origin-cert", shown, "--origin-key", shownKey}

	server := startReadThrough(t, slices.Concat(url, show, []string{"--origin-ca", ours.File})...)
	c := connect(t, server)
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := c.Get(t.Context(), "k").Result(); got != "v" || err != nil {
			t.Errorf("got %q, %v, want v", got, err)
		}
	}
	if n := origin(t, server, "hits_total"); n != 2 {
		t.Errorf("%d reads were answered from the cache, want 2", n)
	}
	for _, wrong := range []struct {
		args []string
		says string
	}{
		{slices.Concat(url, show, []string{"--origin-ca", others.File}), "certificate signed by unknown authority"},
		{slices.Concat(url, []string{"--origin-ca", ours.File}), "certificate required"},
	} {
		p := proctest.Start(t, "serve", append([]string{"--tier", "soft", "--coordinator", "off", "--budget", "16MiB"}, wrong.args...)...)
		proctest.Until(t, "it says "+wrong.says, func() bool { return strings.Contains(p.Stderr(), wrong.says) })
		if err := connect(t, p).Get(t.Context(), "k").Err(); err == nil || origin(t, p, "up") != 0 {
			t.Errorf("%v: got %v, want an error and nothing cached", wrong.args, err)
		}
	}
}
