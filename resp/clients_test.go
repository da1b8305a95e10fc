package resp

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// dialed is dial with a connection that there is.
func dialed(t testing.TB, c net.Conn) *client {
	c.SetDeadline(time.Now().Add(testTimeout))
	t.Cleanup(func() { c.Close() }) // not before, as the garbage collector might
	return &client{t: t, c: c, r: bufio.NewReader(c)}
}

func selfSigned(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestGoRedis(t *testing.T) {
	for _, version := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", version), func(t *testing.T) { testGoRedis(t, version) })
	}
}

func testGoRedis(t *testing.T, version int) {
	_, addr := startServer(t, roomy, Config{Password: "pw"})
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	c := redis.NewClient(&redis.Options{Addr: addr, Password: "pw", Protocol: version, ClientName: "test"})
	defer c.Close()
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	check("set", c.Set(ctx, "k", "v", time.Minute).Err())
	if v, err := c.Get(ctx, "k").Result(); err != nil || v != "v" {
		t.Errorf("get: %q, %v", v, err)
	}
	if _, err := c.Get(ctx, "nosuch").Result(); !errors.Is(err, redis.Nil) {
		t.Errorf("get of a missing key: %v, want redis.Nil", err)
	}
	if d, err := c.TTL(ctx, "k").Result(); err != nil || d <= 50*time.Second || d > time.Minute {
		t.Errorf("ttl: %v, %v", d, err)
	}
	check("hset", c.HSet(ctx, "h", "a", 1, "b", 2).Err())
	if m, err := c.HGetAll(ctx, "h").Result(); err != nil || len(m) != 2 || m["b"] != "2" {
		t.Errorf("hgetall: %v, %v", m, err)
	}
	if f, err := c.HIncrByFloat(ctx, "h", "a", 0.5).Result(); err != nil || f != 1.5 {
		t.Errorf("hincrbyfloat: %v, %v", f, err)
	}
	if kv, err := c.HRandFieldWithValues(ctx, "h", 5).Result(); err != nil || len(kv) != 2 {
		t.Errorf("hrandfield: %v, %v", kv, err)
	}
	pipe := c.Pipeline()
	incr := pipe.Incr(ctx, "n")
	pipe.Expire(ctx, "n", time.Hour)
	bad := pipe.HGet(ctx, "k", "f")
	if _, err := pipe.Exec(ctx); err == nil || incr.Val() != 1 || !strings.HasPrefix(bad.Err().Error(), "WRONGTYPE") {
		t.Errorf("pipeline: %v, %v, %v", err, incr.Val(), bad.Err())
	}
	cmds, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for range 10 {
			p.Incr(ctx, "n")
		}
		return nil
	})
	if err != nil || len(cmds) != 10 || cmds[9].(*redis.IntCmd).Val() != 11 {
		t.Errorf("transaction: %v, %v", cmds, err)
	}
	err = c.Watch(ctx, func(tx *redis.Tx) error {
		c.Set(ctx, "n", "other", 0)
		_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Set(ctx, "n", "mine", 0).Err() })
		return err
	}, "n")
	if !errors.Is(err, redis.TxFailedErr) {
		t.Errorf("watch: %v, want TxFailedErr", err)
	}
	for i := range 500 {
		check("set", c.Set(ctx, "scan:"+strconv.Itoa(i), i, 0).Err())
	}
	seen := map[string]bool{}
	it := c.Scan(ctx, 0, "scan:*", 20).Iterator()
	for it.Next(ctx) {
		seen[it.Val()] = true
	}
	if it.Err() != nil || len(seen) != 500 {
		t.Errorf("scan: %d keys of 500, %v", len(seen), it.Err())
	}
	if s, err := c.Info(ctx, "server").Result(); err != nil || !strings.Contains(s, "redis_version:7.0.15") {
		t.Errorf("info: %q, %v", s, err)
	}
	if m, err := c.ConfigGet(ctx, "max*").Result(); err != nil || m["maxmemory"] != strconv.Itoa(roomy) {
		t.Errorf("config get: %v, %v", m, err)
	}
	if m, err := c.Command(ctx).Result(); err != nil || m["get"] == nil || m["get"].Arity != 2 || !m["get"].ReadOnly {
		t.Errorf("command: %v, %v", m["get"], err)
	}
	if s, err := c.ClientList(ctx).Result(); err != nil || !strings.Contains(s, "name=test") {
		t.Errorf("client list: %q, %v", s, err)
	}
	if v, err := c.Do(ctx, "POLDER", "STATS").Result(); err != nil || v == nil {
		t.Errorf("polder stats: %v, %v", v, err)
	}
}

// tool runs a program of redis-tools against the server.
func tool(t *testing.T, addr, name string, args ...string) string {
	t.Helper()
	bin, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("this test needs %s, which is not installed (Debian: apt-get install redis-tools): %v", name, err)
	}
	_, port, _ := net.SplitHostPort(addr)
	out, err := exec.Command(bin, append([]string{"-h", "127.0.0.1", "-p", port}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func TestRedisCLI(t *testing.T) {
	_, addr := startServer(t, roomy, Config{})
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"set", "k", "v"}, "OK\n"},
		{[]string{"-3", "hset", "h", "a", "1"}, "1\n"},
		{[]string{"-3", "--json", "hgetall", "h"}, "{\"a\":\"1\"}\n"},
		{[]string{"--scan"}, ""},
		{[]string{"-3", "object", "encoding", "h"}, "listpack\n"},
		{[]string{"--no-raw", "debug", "sleep", "1"}, "(error) ERR DEBUG command not allowed"},
		{[]string{"--no-raw", "memory", "usage", "k"}, "(integer) "},
	} {
		if got := tool(t, addr, "redis-cli", c.args...); !strings.HasPrefix(got, c.want) {
			t.Errorf("redis-cli %q: got %q, want %q", c.args, got, c.want)
		}
	}
}

func TestRedisBenchmark(t *testing.T) {
	srv, addr := startServer(t, roomy, Config{})
	const n = 2000
	for _, pipeline := range []string{"1", "16"} {
		out := tool(t, addr, "redis-benchmark", "-t", "set,get,incr,mset,hset", "-n", strconv.Itoa(n), "-P", pipeline, "-q", "-r", "100")
		for _, name := range []string{"SET", "GET", "INCR", "MSET", "HSET"} {
			if !strings.Contains(out, name) || strings.Contains(strings.ToLower(out), "error") {
				t.Errorf("redis-benchmark -P %s: no figure for %s, or an error:\n%s", pipeline, name, out)
			}
		}
	}
	if st := srv.Stats(); st.Commands < 10*n || st.Errors > 0 {
		t.Errorf("%d commands and %d errors counted, want at least %d and none", st.Commands, st.Errors, 10*n)
	}
}
