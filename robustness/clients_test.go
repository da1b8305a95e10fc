package robustness

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"polder/internal/listen"
	"polder/internal/proctest"
	"polder/internal/testcert"
)

// TestRedisBenchmarkRunsUnchanged lets Redis's own load generator loose on a
// server with little local memory.
func TestRedisBenchmarkRunsUnchanged(t *testing.T) {
	node := startNode(t, "256MiB")
	server := startServer(t, node.Addr("verbs"), "4MiB")
	_, port, err := net.SplitHostPort(server.Addr("redis"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pipeline := range []string{"1", "16"} {
		out, err := exec.Command("redis-benchmark", "-p", port, "-t", "set,get,incr,mset,hset", "-P", pipeline,
			"-n", "5000", "-r", "10000", "-d", "1024", "--csv").CombinedOutput()
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

// TestTheExamplesRun runs the programs that newcomers copy.
func TestTheExamplesRun(t *testing.T) {
	node := startNode(t, "512MiB")
	up := proctest.Start(t, "up", "--local", "8MiB", "--lend", "64MiB")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"polder/examples/farmap", "-node", node.Addr("verbs")}, "32768 pages, 128 MiB, all read back"},
		{[]string{"polder/examples/softcache"}, "the cache may use 32 MiB now"},
		{[]string{"polder/examples/redisclient", "-addr", up.Addr("redis")}, "user:7 has 8 visits"},
	} {
		out, err := exec.Command("go", append([]string{"run"}, tt.args...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: %v, got %q, want it to contain %q", tt.args[0], err, out, tt.want)
		}
	}
}

// TestEverythingRunsOverTLS uses certificates for the node, the Redis front
// end and the administrative addresses, and does without on none of them.
func TestEverythingRunsOverTLS(t *testing.T) {
	s := listen.Security{}
	s.CertFile, s.KeyFile = testcert.New(t)
	s.CAFile = s.CertFile
	args := []string{"--tls-cert", s.CertFile, "--tls-key", s.KeyFile, "--tls-ca", s.CAFile}
	node := startNode(t, "64MiB", args...)
	server := startServer(t, node.Addr("verbs"), "4MiB", args...)
	_, client, err := s.TLS()
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: server.Addr("redis"), TLSConfig: client, MaxRetries: -1})
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

	stdout, stderr, code := proctest.Output(t, nil, append([]string{"status", "--admin", server.Addr("admin") + "," + node.Addr("admin")}, args...)...)
	if code != 0 || !strings.Contains(stdout, "polder serve") || !strings.Contains(stdout, "polder node") {
		t.Errorf("polder status: exit code %d\n%s%s", code, stdout, stderr)
	}

	// Whoever has no certificate gets nowhere.
	if err := connect(t, server).Ping(ctx).Err(); err == nil {
		t.Error("a client without TLS was served")
	}
	if _, _, code := proctest.Output(t, nil, "status", "--admin", node.Addr("admin")); code == 0 {
		t.Error("status without TLS was answered")
	}
	if _, stderr, code := proctest.Output(t, nil, "serve", "--far", node.Addr("verbs"), "--far-wait", "0s", "--listen", "127.0.0.1:0", "--admin", "off"); code == 0 {
		t.Errorf("a node lent memory to a server without TLS: %s", stderr)
	}
}
