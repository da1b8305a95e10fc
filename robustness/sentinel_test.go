package robustness

import (
	"bufio"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	heaps "polder/far/named"
	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testpython"
)

// sentinelClient is a client of redis-py's that finds the server by those that stand by. It is told when that was killed, and says
// what it then reads, and after how long.
const sentinelClient = `
import sys, time, redis
from redis.sentinel import Sentinel, MasterNotFoundError
addrs = [tuple(a.rsplit(":", 1)) for a in sys.argv[1:]]
s = Sentinel([(h, int(p)) for h, p in addrs], socket_timeout=5)
m = s.master_for("orders", socket_timeout=5)
print(m.get("who").decode(), flush=True)
sys.stdin.readline()
began = time.monotonic()
while time.monotonic() - began < 60:
    try:
        print("%s %.2f" % (m.get("who").decode(), time.monotonic() - began), flush=True)
        break
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, MasterNotFoundError):
        time.sleep(0.02)
`

// noticed is within which a server on the same machine takes over from one that was killed, with time to spare: without noticing
// it would take named.DefaultPatience and the lease.
const noticed = 4 * time.Second

// TestSentinelClientsFindTheNewServer when the one before is killed: go-redis and redis-py, unmodified, ask the servers that stand
// by, and read what the one before has answered last.
func TestSentinelClientsFindTheNewServer(t *testing.T) {
	t.Parallel() // it waits for leases to end
	ctx := t.Context()
	python, err := testpython.Find("redis")
	if err != nil {
		t.Fatal(err)
	}
	witnesses := startWitnesses(t)
	_, far := startNodes(t, 2)
	first := proctest.Start(t, "serve", named(far, witnesses, "--durable")...)
	owner := first.Addr("redis")
	var standbys []string
	for range 2 {
		addr := keptAddr()
		standbys = append(standbys, addr)
		p, err := child.Start(child.Command{Path: proctest.Binary(), Args: append([]string{"serve", "--listen", addr, "--admin", "127.0.0.1:0", "--standby"}, named(far, witnesses, "--durable")...)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Stop(); err != nil {
				t.Error(err)
			}
		})
		sentinel := redis.NewSentinelClient(&redis.Options{Addr: addr, MaxRetries: -1})
		defer sentinel.Close()
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			if got, err := sentinel.GetMasterAddrByName(ctx, "orders").Result(); err == nil && net.JoinHostPort(got[0], got[1]) == owner {
				break
			} else if time.Since(began) > hang {
				t.Fatalf("a server that stands by says that %q has the heap, %v, want %s", got, err, owner)
			}
		}
	}
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: standbys[1], MaxRetries: -1})
	defer sentinel.Close()
	news := sentinel.Subscribe(ctx, "+switch-master")
	defer news.Close()
	if _, err := news.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "orders", SentinelAddrs: standbys})
	defer c.Close()
	if err := c.Set(ctx, "who", "first", 0).Err(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, python, append([]string{"-c", sentinelClient}, standbys...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if lines.Scan(); lines.Text() != "first" {
		t.Fatalf("redis-py reads %q: %s", lines.Text(), errs.String())
	}

	killed := time.Now() // before anybody can have noticed
	first.Kill()
	<-first.Done()
	fmt.Fprintln(in)
	for {
		who, err := c.Get(ctx, "who").Result()
		if err == nil {
			if who != "first" {
				t.Errorf("go-redis reads %q", who)
			}
			break
		}
		if time.Since(killed) > 2*hang {
			t.Fatalf("go-redis has not found the new server: %v", err)
		}
	}
	byGo := time.Since(killed)
	lines.Scan()
	who, byPython, _ := strings.Cut(lines.Text(), " ")
	if err := cmd.Wait(); err != nil || who != "first" {
		t.Fatalf("redis-py reads %q, %v: %s", lines.Text(), err, errs.String())
	}
	if byGo < heaps.DefaultLease {
		t.Errorf("go-redis was answered after %v, when the lease of the server before was not over", byGo)
	}
	if byGo > noticed {
		t.Errorf("go-redis has waited for %v, want at most %v: the servers have not noticed that the one before is dead", byGo, noticed)
	}
	t.Logf("from the kill to the first answer: go-redis %.2f s, redis-py %s s", byGo.Seconds(), byPython)

	m, err := news.ReceiveMessage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	at, err := sentinel.GetMasterAddrByName(ctx, "orders").Result()
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(owner)
	if want := strings.Join([]string{"orders", host, port, at[0], at[1]}, " "); m.Payload != want {
		t.Errorf("+switch-master says %q, want %q", m.Payload, want)
	}
}
