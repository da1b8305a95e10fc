package robustness

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/load"
	"polder/internal/proctest"
	"polder/internal/testaddr"
)

// waiting is a server whose nodes are not there, so that it is not ready.
type waiting struct {
	*child.Process
	redis, admin, node string // where it listens, and where it looks for a node
}

func startWaiting(t *testing.T) waiting {
	t.Helper()
	host := testaddr.Host()
	w := waiting{redis: host + ":6379", admin: host + ":7079", node: host + ":7070"}
	p, err := child.Start(child.Command{Path: proctest.Binary(), Args: []string{
		"serve", "--far", w.node, "--listen", w.redis, "--admin", w.admin, "--local", "8MiB", "--op-timeout", "20s"}})
	if err != nil {
		t.Fatal(err)
	}
	w.Process = p
	t.Cleanup(p.Kill)
	return w
}

// health is what the administrative address says, and 0 while it does not answer.
func (w waiting) health() (code int, text string) {
	return page("http://" + w.admin + "/healthz")
}

func page(url string) (code int, text string) {
	client := &http.Client{Timeout: hang, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(b)
}

// TestAServerThatWaitsForNodesSaysSo starts a server before its node. Clients and
// operators get an answer meanwhile, and the same connection works once the node
// is there.
func TestAServerThatWaitsForNodesSaysSo(t *testing.T) {
	server := startWaiting(t)
	proctest.Until(t, "/healthz says why it waits", func() bool {
		code, text := server.health()
		return code == http.StatusServiceUnavailable && strings.Contains(text, "waiting for a node") && strings.Contains(text, server.node)
	})
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: server.redis, MaxRetries: -1, PoolSize: 1, ReadTimeout: hang, WriteTimeout: hang})
	defer func() { _ = client.Close() }()
	const loading = "LOADING Redis is loading the dataset in memory"
	for _, cmd := range [][]any{{"PING"}, {"GET", "k"}, {"SET", "k", "v"}, {"DBSIZE"}, {"FLUSHALL"}, {"SCAN", 0}, {"WATCH", "k"}} {
		if err := client.Do(ctx, cmd...).Err(); err == nil || err.Error() != loading {
			t.Errorf("%v: got %v, want %q", cmd, err, loading)
		}
	}
	if info, err := client.Info(ctx).Result(); err != nil || !strings.Contains(info, "\nloading:1\r") {
		t.Errorf("INFO does not say that the server is loading: %v, %q", err, info)
	}
	for _, url := range []string{"/metrics", "/status"} {
		if code, text := page("http://" + server.admin + url); code != http.StatusOK {
			t.Errorf("%s: got %d %s", url, code, text)
		}
	}

	node := proctest.Start(t, "node", "--lend", "64MiB", "--listen", server.node)
	proctest.Until(t, "the server uses the node", func() bool {
		err := client.Set(ctx, "k", "v", 0).Err()
		if err != nil && err.Error() != loading {
			t.Fatalf("SET: got %v, want success or %q", err, loading)
		}
		return err == nil
	})
	if code, text := server.health(); code != http.StatusOK {
		t.Errorf("/healthz with a node: got %d %s", code, text)
	}
	if code, text := page("http://" + server.admin + "/metrics"); code != http.StatusOK || !strings.Contains(text, "polder_far_local_budget_bytes") {
		t.Errorf("the metrics lack the heap's: %d", code)
	}
	if s := statusOf(t, node); s.Node.Clients != 1 {
		t.Errorf("the node has %d clients, want 1", s.Node.Clients)
	}
	if err := server.Stop(); err != nil {
		t.Error(err)
	}
}

// TestAServerThatWaitsForNodesEndsAtOnce, with the exit code of an end in good
// order.
func TestAServerThatWaitsForNodesEndsAtOnce(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		server := startWaiting(t)
		proctest.Until(t, "it waits", func() bool { code, _ := server.health(); return code == http.StatusServiceUnavailable })
		client := redis.NewClient(&redis.Options{Addr: server.redis, MaxRetries: -1})
		_ = client.Ping(context.Background()) // it has a client
		if err := server.Signal(sig); err != nil {
			t.Fatal(err)
		}
		select {
		case <-server.Done():
		case <-time.After(10 * time.Second):
			t.Fatalf("it has not ended 10 s after %v", sig)
		}
		if code := server.ExitCode(); code != 0 {
			t.Errorf("after %v: got exit code %d, want 0: %s", sig, code, server.Stderr())
		}
		_ = client.Close()
	}
}

// TestANodeThatWasAbsentAtTheStartIsUsed starts one of two nodes when the server
// has served for a while.
func TestANodeThatWasAbsentAtTheStartIsUsed(t *testing.T) {
	t.Parallel()
	late := testaddr.Host() + ":7070"
	first := startNode(t, "16MiB")
	server := startServer(t, first.Addr("verbs")+","+late, "8MiB", "--op-timeout", "5s", "--copies", "1") // so that two nodes have room for more than one
	client := connect(t, server)
	ctx := context.Background()
	const size = 64 << 10
	stored := 0
	set := func() error {
		k := fmt.Sprint("key:", stored)
		err := client.Set(ctx, k, value(k, 1, size), 0).Err()
		if err == nil {
			stored++
		}
		return err
	}
	for set() == nil {
		if stored > 1000 {
			t.Fatalf("stored %d MiB with 16 MiB lent", stored*size/mib)
		}
	}
	full := stored
	second := proctest.Start(t, "node", "--lend", "64MiB", "--listen", late)
	proctest.Until(t, "twice as much is stored", func() bool {
		for stored < 2*full && set() == nil {
		}
		return stored >= 2*full
	})
	if s := statusOf(t, second).Node; s.Lent == 0 || s.Clients != 1 {
		t.Errorf("the second node has lent %d chunks to %d clients", s.Lent, s.Clients)
	}
	for i := range stored {
		k := fmt.Sprint("key:", i)
		if got, err := client.Get(ctx, k).Result(); err != nil || got != value(k, 1, size) {
			t.Fatalf("%s: got %d bytes, %v", k, len(got), err)
		}
	}
}

// TestWaitingIsShownOnATerminal, and nothing of it in a pipe.
func TestWaitingIsShownOnATerminal(t *testing.T) {
	args := []string{"serve", "--far", "127.0.0.1:1", "--far-wait", "3s", "--listen", "127.0.0.1:0", "--admin", "off"}
	term := openTerminal(t, exec.Command(proctest.Binary(), args...), 80, 24)
	proctest.Until(t, "what it waits for is shown", term.has("waiting for a node to answer: 1 s"))
	proctest.Until(t, "it ends", term.has("is polder node running there?"))
	out, err := exec.Command(proctest.Binary(), args...).CombinedOutput()
	if err == nil || strings.Contains(string(out), "\x1b") || strings.Contains(string(out), "to answer") {
		t.Errorf("in a pipe it says %q, %v", out, err)
	}
}

// TestTheEndIsShownOnATerminal: commands that run come to their end first, and here
// one waits for a node that has stopped.
func TestTheEndIsShownOnATerminal(t *testing.T) {
	node := startNode(t, "64MiB")
	addr := testaddr.Host() + ":6379"
	term := openTerminal(t, exec.Command(proctest.Binary(), "serve", "--far", node.Addr("verbs"), "--local", "8MiB",
		"--listen", addr, "--admin", "off", "--op-timeout", "1m"), 80, 24)
	proctest.Until(t, "it is ready", term.has("Ctrl-C ends it"))
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, PoolSize: 1, ReadTimeout: hang, WriteTimeout: hang})
	defer func() { _ = client.Close() }()
	const keys = 20_000
	fill(t, client, keys, 1000)
	if err := node.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = node.Signal(syscall.SIGCONT) }()
	read := make(chan error, 1)
	var oldest []string
	for i := range 64 {
		oldest = append(oldest, string(load.Key(uint32(i))))
	}
	go func() { read <- client.MGet(context.Background(), oldest...).Err() }()
	select {
	case err := <-read:
		t.Fatalf("the oldest keys are not at the node: %v", err)
	case <-time.After(300 * time.Millisecond): // it has begun by now, or is refused
	}
	if _, err := term.master.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	proctest.Until(t, "what it waits for is shown", term.has("what is under way comes to its end: 1 s"))
	if err := <-read; err == nil {
		t.Error("a node that has stopped has answered")
	}
}

// TestAServerThatWaitsForWitnessesNamesThem, also if it waits for them to learn which partitions are its own.
func TestAServerThatWaitsForWitnessesNamesThem(t *testing.T) {
	for _, more := range [][]string{nil, {"--partitions", "2"}} {
		host := testaddr.Host()
		witnesses := []string{host + ":7079", host + ":7080", host + ":7081"}
		p, err := child.Start(child.Command{Path: proctest.Binary(), Args: append([]string{
			"serve", "--heap", "h", "--witness", strings.Join(witnesses, ","), "--far", host + ":7070",
			"--listen", host + ":6379", "--admin", "off", "--local", "64MiB"}, more...)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		proctest.Until(t, fmt.Sprintf("a server with %q says which witnesses it waits for", more), func() bool {
			said := p.Stderr()
			return strings.Contains(said, "waiting for it") && !slices.ContainsFunc(witnesses, func(w string) bool { return !strings.Contains(said, w+": ") })
		})
		p.Kill() // the next one has its address
	}
}
