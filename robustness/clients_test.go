package robustness

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"polder/internal/proctest"
	"polder/internal/testcert"
	"polder/internal/testpython"
)

// TestRedisBenchmarkRunsUnchanged lets Redis's own load generator loose on a
// server with little local memory.
func TestRedisBenchmarkRunsUnchanged(t *testing.T) {
	t.Parallel()
	node := startNode(t, "256MiB")
	server := startServer(t, node.Addr("verbs"), "4MiB")
	host, port, err := net.SplitHostPort(server.Addr("redis"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pipeline := range []string{"1", "16"} {
		out, err := exec.Command("redis-benchmark", "-h", host, "-p", port, "-t", "set,get,incr,mset,hset", "-P", pipeline,
			"-n", "2000", "-r", "10000", "-d", "1024", "--csv").CombinedOutput()
		if err != nil {
			t.Fatalf("redis-benchmark -P %s: %v\n%s", pipeline, err, out)
		}
		for _, test := range []string{"SET", "GET", "INCR", "HSET", "MSET (10 keys)"} {
			if !strings.Contains(string(out), `"`+test+`","`) {
				t.Errorf("redis-benchmark -P %s gives no result for %s:\n%s", pipeline, test, out)
			}
		}
		if strings.Contains(string(out), "rror") {
			t.Errorf("redis-benchmark -P %s reports errors:\n%s", pipeline, out)
		}
	}
}

// TestTheExamplesRun runs the programs that newcomers copy, as the documents do not: over far memory of other processes.
func TestTheExamplesRun(t *testing.T) {
	t.Parallel()
	node := startNode(t, "512MiB")
	_, pager := startPager(t, node)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"polder/examples/farmap", "-node", node.Addr("verbs")}, "32768 pages, 128 MiB, all read back"},
		{[]string{"polder/examples/pagesort", "-pager", pager, "-size", "16", "-local", "4"}, "in order, with all that was there before: 16 of 16 MiB"},
	} {
		out, err := exec.Command("go", append([]string{"run"}, tt.args...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: %v, got %q, want it to contain %q", tt.args[0], err, out, tt.want)
		}
	}
}

// TestTheExampleInPythonRuns on an array of four times its local memory.
func TestTheExampleInPythonRuns(t *testing.T) {
	t.Parallel()
	python, err := testpython.Find("numpy")
	if err != nil {
		t.Fatal(err)
	}
	_, pager := startPager(t, startNode(t, "128MiB"))
	cmd := exec.CommandContext(t.Context(), python, "-B", "-W", "error", "examples/pagekmeans/kmeans.py",
		"--pager", pager, "--size", "8", "--local", "2", "--rounds", "2")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "PYTHONPATH=clients/python")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "all centers found") {
		t.Errorf("%v, got %q, want that all centers are found", err, out)
	}
}

// TestEverythingRunsOverTLS uses certificates for the node, the Redis front
// end and the administrative addresses, and does without on none of them. A
// certificate for one of them opens none of the others.
func TestEverythingRunsOverTLS(t *testing.T) {
	nodes, clients, admins := testcert.NewAuthority(t, "nodes"), testcert.NewAuthority(t, "clients"), testcert.NewAuthority(t, "admins")
	args := func(a *testcert.Authority, name string, more ...string) []string {
		cert, key := a.Issue(t, name)
		return append([]string{"--tls-cert", cert, "--tls-key", key, "--tls-ca", nodes.File}, more...)
	}
	node := startNode(t, "64MiB", args(nodes, "node", "--tls-admin-ca", admins.File)...)
	server := startServer(t, node.Addr("verbs"), "4MiB", args(nodes, "server", "--tls-client-ca", clients.File, "--tls-admin-ca", admins.File)...)
	c := redis.NewClient(&redis.Options{Addr: server.Addr("redis"), TLSConfig: clients.Client(t, "application", nodes), MaxRetries: -1})
	defer func() { _ = c.Close() }()
	ctx := context.Background()
	const keys, size = 2000, 8 << 10
	if err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) {
		k := fmt.Sprint("key:", i)
		p.Set(ctx, k, value(k, 1, size), 0)
	}, func(_ int, cmd redis.Cmder) error { return cmd.Err() }); err != nil {
		t.Fatal(err)
	}
	if err := pipelined(ctx, c, keys, func(p redis.Pipeliner, i int) { p.Get(ctx, fmt.Sprint("key:", i)) },
		func(i int, cmd redis.Cmder) error {
			k := fmt.Sprint("key:", i)
			if got, err := cmd.(*redis.StringCmd).Result(); err != nil || got != value(k, 1, size) {
				return fmt.Errorf("%s: got %d bytes, %v", k, len(got), err)
			}
			return nil
		}); err != nil {
		t.Error(err)
	}

	status := func(args ...string) (said string, code int) {
		stdout, stderr, code := proctest.Output(t, nil, append([]string{"status", "--admin", server.Addr("admin") + "," + node.Addr("admin")}, args...)...)
		return stdout + stderr, code
	}
	said, code := status(args(admins, "administrator")...)
	if code != 0 || !strings.Contains(said, "polder serve") || !strings.Contains(said, "polder node") {
		t.Errorf("polder status: exit code %d\n%s", code, said)
	}

	// Whoever has no certificate gets nowhere, and who has one for something else
	// not there.
	if err := connect(t, server).Ping(ctx).Err(); err == nil {
		t.Error("a client without TLS was served")
	}
	if said, code := status(); code == 0 {
		t.Errorf("status without TLS was answered: %s", said)
	}
	borrow := func(args ...string) (said string, code int) {
		_, said, code = proctest.Output(t, nil, append([]string{"serve", "--far", node.Addr("verbs"), "--far-wait", "0s", "--listen", "127.0.0.1:0", "--admin", "off"}, args...)...)
		return said, code
	}
	if said, code := borrow(); code == 0 {
		t.Errorf("a node lent memory to a server without TLS: %s", said)
	}
	for _, a := range []*testcert.Authority{nodes, clients, admins} {
		stranger := redis.NewClient(&redis.Options{Addr: server.Addr("redis"), TLSConfig: a.Client(t, "application", nodes), MaxRetries: -1})
		if err := stranger.Ping(ctx).Err(); (err == nil) != (a == clients) {
			t.Errorf("a Redis client with a certificate of %s: got %v", a.File, err)
		}
		_ = stranger.Close()
		if said, code := status(args(a, "administrator")...); (code == 0) != (a == admins) {
			t.Errorf("status with a certificate of %s: exit code %d: %s", a.File, code, said)
		}
		if a == nodes {
			continue // the server has borrowed with one
		}
		if said, code := borrow(args(a, "application")...); code == 0 {
			t.Errorf("a node lent memory to a server with a certificate of %s: %s", a.File, said)
		}
	}
}
