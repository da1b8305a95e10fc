package robustness

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testcert"
)

// TestEverythingIsOverMutualTLS: witnesses, nodes, and servers that share a heap show each other certificates, and clients theirs. Commands about keys
// elsewhere are forwarded, with WATCH or without, the heap is copied, and nobody without a certificate is let in.
func TestEverythingIsOverMutualTLS(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ours, theirs := testcert.NewAuthority(t, "nodes"), testcert.NewAuthority(t, "clients")
	cert, key := ours.Issue(t, "polder")
	flags := []string{"--tls-cert", cert, "--tls-key", key, "--tls-ca", ours.File}
	with := func(args ...string) []string { return append(args, flags...) }
	var witnesses, nodes []string
	for range 3 {
		witnesses = append(witnesses, proctest.Start(t, "witness", with("--dir", t.TempDir())...).Addr("witness"))
	}
	if out, errs, code := proctest.Output(t, nil, with(append([]string{"witness", "set"}, witnesses...)...)...); code != 0 {
		t.Fatalf("polder witness set: %d, %s%s", code, out, errs)
	}
	for range 2 {
		nodes = append(nodes, startNode(t, "128MiB", flags...).Addr("verbs"))
	}
	serve := func(name string, more ...string) *child.Process {
		t.Helper()
		return proctest.Start(t, "serve", with(append([]string{"--far", strings.Join(nodes, ","), "--heap", name, "--witness", strings.Join(witnesses, ","),
			"--local", "8MiB", "--op-timeout", "20s", "--tls-client-ca", theirs.File}, more...)...)...)
	}
	dial := func(p *child.Process, by *testcert.Authority) *redis.Client {
		o := &redis.Options{Addr: p.Addr("redis"), MaxRetries: -1, DialerRetries: 1, PoolSize: 1, ReadTimeout: hang, WriteTimeout: hang, TLSConfig: by.Client(t, "client", ours)}
		c := redis.NewClient(o)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	servers := []*child.Process{serve("orders", "--partitions", "2", "--durable"), serve("orders", "--partitions", "2", "--durable")}
	clients := []*redis.Client{dial(servers[0], theirs), dial(servers[1], theirs)}
	proctest.Until(t, "both have a partition", func() bool {
		shards, err := clients[0].ClusterShards(ctx).Result()
		return err == nil && len(shards) == 2 && len(shards[0].Slots) > 0 && len(shards[1].Slots) > 0
	})
	clients = []*redis.Client{dial(servers[0], theirs), dial(servers[1], theirs)} // which have not asked for the slots
	for i := range 40 {
		name := fmt.Sprint("key", i)
		if err := clients[i%2].Set(ctx, name, i, 0).Err(); err != nil {
			t.Fatal(err)
		}
		err := clients[1-i%2].Watch(ctx, func(tx *redis.Tx) error {
			n, err := tx.Get(ctx, name).Int()
			if err != nil || n != i {
				return fmt.Errorf("it is %d: %w", n, err)
			}
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.IncrBy(ctx, name, 1000).Err() })
			return err
		}, name)
		if n, e := clients[0].Get(ctx, name).Int(); err != nil || e != nil || n != i+1000 {
			t.Fatalf("%s is %d, %v, after %v", name, n, e, err)
		}
	}
	whole := serve("whole", "--durable")
	c := dial(whole, theirs)
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}

	for name, server := range map[string]*child.Process{"orders": servers[0], "whole": whole} {
		other := testcert.NewAuthority(t, "another")
		if err := dial(server, other).Ping(ctx).Err(); err == nil {
			t.Errorf("%s: a certificate of another authority is let in", name)
		}
		if err := dial(server, ours).Ping(ctx).Err(); err != nil {
			t.Errorf("%s: one of the nodes' authority: %v", name, err)
		}
		file := filepath.Join(t.TempDir(), name)
		save := with("heap", "save", name, "--witness", strings.Join(witnesses, ","), "-o", file)
		if name == "whole" { // the server of a partition is tried for longer
			if out, errs, code := proctest.Output(t, nil, save...); code == 0 {
				t.Errorf("it was saved without TLS: %s%s", out, errs)
			}
		}
		save = append(save, "--server", "rediss://"+server.Addr("redis"))
		if out, errs, code := proctest.Output(t, nil, save...); code != 0 {
			t.Errorf("%s: %d, %s%s", name, code, out, errs)
		}
	}
}
