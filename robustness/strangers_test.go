package robustness

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"polder/internal/child"
	"polder/internal/fdpass"
	"polder/internal/proctest"
	"polder/internal/testcert"
)

// TestASilentConnectionDoesNotCloseATLSDoor has more peers than there may be
// clients connect over TLS and say nothing, to the doors for Redis and memcached.
// Clients with a certificate are served, one too many is told so, and SIGTERM ends
// the server while the silent ones are still there.
func TestASilentConnectionDoesNotCloseATLSDoor(t *testing.T) {
	client, flags := certificates(t, "--tls-client-ca")
	p := proctest.Start(t, "serve", append(flags, "--tier", "soft", "--memcached", "127.0.0.1:0", "--max-clients", "2")...)
	for _, door := range []struct{ service, ask, want, refusal string }{
		{"redis", "PING\r\n", "+PONG\r\n", "-ERR max number of clients reached\r\n"},
		{"memcached", "mn\r\n", "MN\r\n", "ERROR Too many open connections\r\n"},
	} {
		addr := p.Addr(door.service)
		for range 20 {
			dialTCP(t, addr)
		}
		talk := func() (string, error) {
			d := &net.Dialer{Timeout: hang}
			c, err := tls.DialWithDialer(d, "tcp", addr, client)
			if err != nil {
				return "", err
			}
			t.Cleanup(func() { _ = c.Close() })
			if err := c.SetDeadline(time.Now().Add(hang)); err != nil {
				return "", err
			}
			_, _ = io.WriteString(c, door.ask) // one too many may be gone already
			return bufio.NewReader(c).ReadString('\n')
		}
		for i, want := range []string{door.want, door.want, door.refusal} {
			if got, err := talk(); got != want {
				t.Errorf("%s: client %d got %q, %v, want %q", door.service, i, got, err, want)
			}
		}
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// certificates makes an authority, which a daemon is told of with flag, and
// returns the flags for a server of it and the configuration of a client.
func certificates(t *testing.T, flag string) (client *tls.Config, flags []string) {
	t.Helper()
	a := testcert.NewAuthority(t, "strangers")
	cert, key := a.Issue(t, "server")
	return a.Client(t, "client", a), []string{"--tls-cert", cert, "--tls-key", key, flag, a.File}
}

func dialTCP(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, hang)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// logCount counts what a daemon logs.
type logCount struct{ bytes, shortages atomic.Int64 }

func (l *logCount) Write(b []byte) (int, error) {
	l.bytes.Add(int64(len(b)))
	l.shortages.Add(int64(strings.Count(string(b), "cannot accept")))
	return len(b), nil
}

// startCounted is proctest.Start for any daemon, without flags that not all have.
func startCounted(t *testing.T, args ...string) (*child.Process, *logCount) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	l := &logCount{}
	p, err := child.StartReady(ctx, child.Command{Path: proctest.Binary(), Args: args, Stderr: l})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("polder %s wrote: %s", args[0], p.Stderr())
		}
	})
	return p, l
}

// TestDaemonsSurviveWithoutDescriptors takes the descriptors of every kind of
// daemon away, fills each of its doors with connections, and keeps it so for a
// second. It says so once at each door; and when the connections have gone, it
// accepts others.
func TestDaemonsSurviveWithoutDescriptors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	node, nodeLog := startCounted(t, "node", "--lend", "64MiB", "--listen", "127.0.0.1:0,unix:"+path("node"), "--admin", "127.0.0.1:0",
		"--manager", "finemem", "--chunk", "256KiB")
	cache, cacheLog := startCounted(t, "serve", "--tier", "soft", "--listen", "127.0.0.1:0", "--memcached", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	broker, brokerLog := startCounted(t, "broker", "--far", node.Addr("verbs"), "--listen", path("broker"), "--admin", "127.0.0.1:0")
	coordinator, coordinatorLog := startCounted(t, "coordinator", "--socket", path("soft"), "--admin", "127.0.0.1:0")
	share, shareLog := startCounted(t, "share", "--dir", path("share.d"), "--socket", path("share"), "--pool", "memfd:16MiB",
		"--listen", "127.0.0.1:0", "--insecure", "--admin", "127.0.0.1:0")
	witness, witnessLog := startCounted(t, "witness", "--dir", path("witness"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	for _, door := range []struct {
		name string
		p    *child.Process
		log  *logCount
		addr string // of a TCP listener, unix: and the path of a socket, or the path of one for messages
	}{
		{"node", node, nodeLog, node.Addr("verbs")},
		{"node's socket", node, nodeLog, "unix:" + path("node")},
		{"node's admin", node, nodeLog, node.Addr("admin")},
		{"redis", cache, cacheLog, cache.Addr("redis")},
		{"memcached", cache, cacheLog, cache.Addr("memcached")},
		{"broker", broker, brokerLog, path("broker")},
		{"coordinator", coordinator, coordinatorLog, path("soft")},
		{"share", share, shareLog, path("share")},
		{"witness", witness, witnessLog, witness.Addr("witness")},
		{"share's remote", share, shareLog, share.Addr("remote")},
	} {
		t.Run(door.name, func(t *testing.T) {
			before := door.log.shortages.Load()
			restore := starve(t, door.p, 4)
			var crowd []io.Closer
			proctest.Until(t, "it is short of descriptors", func() bool {
				if c, err := visit(door.addr); err == nil {
					crowd = append(crowd, c)
				}
				return door.log.shortages.Load() > before
			})
			select { // time to fill the log, or to end
			case <-time.After(time.Second):
			case <-door.p.Done():
				t.Fatalf("it ended: %v", door.p.Err())
			}
			if got := door.log.shortages.Load() - before; got != 1 {
				t.Errorf("it said %d times within a second that it cannot accept, want once", got)
			}
			for _, c := range crowd {
				_ = c.Close() // some it has closed itself
			}
			restore()
			proctest.Until(t, "it accepts again", func() bool { return accepts(t, door.addr) })
		})
	}
}

// starve lets a process have spare more descriptors than it has, until restore is
// called.
func starve(t *testing.T, p *child.Process, spare int) (restore func()) {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	limit := unix.Rlimit{Cur: uint64(len(open) + spare)}
	if err := unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	limit.Max = old.Max
	if err := unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &old, nil); err != nil {
			t.Error(err)
		}
	}
}

// visit connects to a door, and says nothing.
func visit(addr string) (io.Closer, error) {
	if filepath.IsAbs(addr) {
		return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: addr, Net: "unixpacket"})
	}
	return dialStream(addr)
}

// dialStream connects to a door that is no socket for messages.
func dialStream(addr string) (net.Conn, error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return net.DialTimeout("unix", path, time.Second)
	}
	return net.DialTimeout("tcp", addr, time.Second)
}

// accepts reports whether a door takes a connection in: one that talks nonsense is
// closed, or answered; one that nobody accepts is neither.
func accepts(t *testing.T, addr string) bool {
	t.Helper()
	if filepath.IsAbs(addr) {
		c, err := fdpass.Dial(addr)
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		_ = c.Send([]byte("nonsense")) // it may be gone already
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_, _, err = c.RecvFDs()
		return !errors.Is(err, os.ErrDeadlineExceeded)
	}
	c, err := dialStream(addr)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, strings.Repeat("nonsense\r\n\r\n", 100))
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err = c.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// flood connects to addr so many times a second, sends what is to be said, and
// keeps the connections for two seconds.
type flood struct {
	made atomic.Int64
	stop func()
}

func startFlood(t *testing.T, addr string, perSecond int, say string) *flood {
	t.Helper()
	const workers = 10
	ctx, cancel := context.WithCancel(t.Context())
	f := &flood{}
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			var open []net.Conn
			keep := 2 * perSecond / workers
			tick := time.NewTicker(time.Second * workers / time.Duration(perSecond))
			defer tick.Stop()
			for ctx.Err() == nil {
				d := net.Dialer{Timeout: time.Second}
				if c, err := d.DialContext(ctx, "tcp", addr); err == nil {
					_ = c.(*net.TCPConn).SetLinger(0) // leave no port behind
					_, _ = io.WriteString(c, say)     // it may be gone already
					f.made.Add(1)
					open = append(open, c)
				}
				if len(open) > keep {
					_ = open[0].Close()
					open = open[1:]
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
			for _, c := range open {
				_ = c.Close()
			}
		})
	}
	f.stop = func() { cancel(); running.Wait() }
	t.Cleanup(f.stop)
	return f
}

// TestAFloodOfStrangersKeepsNobodyOut opens 1,000 silent and 1,000 garbage
// connections a second to a node with TLS. Meanwhile a client with a certificate
// gets in within a second, a server whose connection is cut resumes its session
// and loses nothing, and the node's log stays short while its metrics count what is
// not in it.
func TestAFloodOfStrangersKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	const (
		each  = 1000 // connections a second of either kind
		keys  = 1000 // 8 MiB, most of it far
		size  = 8 << 10
		tries = 20
	)
	config, flags := certificates(t, "--tls-ca")
	node, log := startCounted(t, append([]string{"node", "--lend", "64MiB", "--grace", "10s", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, flags...)...)
	proxy := newCutter(t, node.Addr("verbs"))
	server := startServer(t, proxy.lis.Addr().String(), "4MiB", flags...)
	c := redis.NewClient(&redis.Options{Addr: server.Addr("redis"), MaxRetries: -1, ReadTimeout: hang, WriteTimeout: hang})
	t.Cleanup(func() { _ = c.Close() })
	ctx := t.Context()
	key := func(i int) string { return fmt.Sprint("key:", i) }
	if err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) { p.Set(ctx, key(i), value(key(i), 1, size), 0) },
		func(_ int, cmd redis.Cmder) error { return cmd.Err() }); err != nil {
		t.Fatal(err)
	}

	silent := startFlood(t, node.Addr("verbs"), each, "")
	garbage := startFlood(t, node.Addr("verbs"), each, "GET / HTTP/1.1\r\n\r\n")
	began := time.Now()
	proctest.Until(t, "the flood has come", func() bool { return silent.made.Load() > 3*each && garbage.made.Load() > 3*each })

	var took []time.Duration
	for range tries {
		began := time.Now()
		proctest.Until(t, "a client with a certificate is in", func() bool {
			d := &net.Dialer{Timeout: hang}
			nc, err := tls.DialWithDialer(d, "tcp", node.Addr("verbs"), config)
			if err != nil {
				return false
			}
			defer func() { _ = nc.Close() }()
			// The node speaks first: it says hello once the certificate is good.
			_, err = io.ReadFull(nc, make([]byte, 8))
			return err == nil
		})
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("in after %v to %v, median %v", took[0], took[tries-1], took[tries/2])
	if got := took[tries*3/4]; got > time.Second { // a busy machine may hold up some
		t.Errorf("only after %v were three of four clients with a certificate in, want a second", got)
	}

	proxy.left.Store(1)
	if err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) { p.Get(ctx, key(i)) },
		func(i int, cmd redis.Cmder) error {
			if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != value(key(i), 1, size) {
				return fmt.Errorf("%s: got %d bytes, %v", key(i), len(got), err)
			}
			return nil
		}); err != nil {
		t.Errorf("after the connection was cut: %v", err)
	}
	if proxy.cuts.Load() == 0 {
		t.Error("no connection was cut")
	}
	silent.stop()
	garbage.stop()
	made := silent.made.Load() + garbage.made.Load()
	t.Logf("%d connections in %v, %d bytes logged", made, time.Since(began).Round(time.Millisecond), log.bytes.Load())
	if got := log.bytes.Load(); got > 64<<10 {
		t.Errorf("%d strangers made the node log %d bytes, want at most 64 KiB", made, got)
	}
	if got := logged(t, node.Addr("admin"), "warn", "connection refused"); got < made/2 {
		t.Errorf("%d strangers came, and %d refusals are counted", made, got)
	}
}

// logged is how often a daemon has logged a message, written or not.
func logged(t *testing.T, addr, level, message string) int64 {
	t.Helper()
	client := &http.Client{Timeout: hang, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var n float64
		if _, err := fmt.Sscanf(lines.Text(), fmt.Sprintf("polder_log_messages_total{level=%q,message=%q} %%g", level, message), &n); err == nil {
			return int64(n)
		}
	}
	return 0
}
