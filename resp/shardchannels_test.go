package resp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/partition"
)

// TestChannelsOfSPublishGoWithTheirSlot plays a scene at a server of partitions, and at a Redis of a cluster: their subscribers are told when a
// slot goes to another server, whatever else they have asked for.
func TestChannelsOfSPublishGoWithTheirSlot(t *testing.T) {
	scene := []string{ // who says what, and how many replies and messages it then reads
		"sub 2 SSUBSCRIBE {a}1 {a}2", "sub 1 SSUBSCRIBE {a}1 {b}1", "sub 1 SSUBSCRIBE c", "sub 1 SUBSCRIBE {a}1", "pub 1 SPUBLISH {a}1 hello", "sub 1",
		"pub 1 MULTI", "pub 1 SPUBLISH {a}1 x", "pub 1 SPUBLISH {a}2 y", "pub 1 EXEC", "sub 2", "pub 1 SPUBLISH {b}1 nobody",
		"sub 1 SUNSUBSCRIBE {a}1 c", "sub 1 SUNSUBSCRIBE {a}2",
		"gone", "sub 1", "sub 0 PING", "sub 1", "sub 1 UNSUBSCRIBE {a}1", "sub 1 SUNSUBSCRIBE", "sub 1 SUNSUBSCRIBE", "sub 1 GET {b}k", "pub 1 PUBSUB SHARDCHANNELS",
	}
	drivers(t, func(t *testing.T, cfg Config) {
		for _, ver := range []string{"2", "3"} {
			cl := startCluster(t, 2, 2, roomy/8)
			a, b, c := partition.Slot([]byte("a")), partition.Slot([]byte("b")), partition.Slot([]byte("c"))
			if partition.Of(a, 2) == partition.Of(b, 2) || partition.Of(b, 2) != partition.Of(c, 2) {
				t.Fatal("the slots are not as the test needs them")
			}
			at := partition.Of(b, 2)
			cl.move(1-at, at) // the server has all
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_, port, _ := net.SplitHostPort(ln.Addr().String())
			ln.Close()
			other := startRedis(t, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-port", port)
			expect(t, dial(t, other), "CLUSTER ADDSLOTSRANGE 0 16383", "+OK")
			ask := dial(t, other)
			eventually(t, "the cluster to be up", func() bool { return strings.Contains(ask.do("CLUSTER", "INFO").String(), "cluster_state:ok") })
			var seen [2][]string
			for i, addr := range []string{cl.addrs[at], other} {
				by := map[string]*client{"sub": dial(t, addr), "pub": dial(t, addr)}
				for _, c := range by {
					c.do("HELLO", ver)
				}
				for _, line := range scene {
					words := strings.Fields(line)
					if line == "gone" && i == 0 {
						cl.move(1-at, 1-at)
						continue
					} else if line == "gone" {
						expect(t, dial(t, other), fmt.Sprint("CLUSTER DELSLOTS ", a), "+OK")
						continue
					}
					c := by[words[0]]
					if len(words) > 2 {
						c.send(encode(words[2:]...))
					}
					for range words[1][0] - '0' {
						seen[i] = append(seen[i], line+": "+c.recv().String())
					}
				}
			}
			for k := range seen[0] {
				if seen[0][k] != seen[1][k] {
					t.Errorf("version %s: got %s, Redis says %s", ver, seen[0][k], seen[1][k])
				}
			}
		}
	})
}

// TestAnyServerTakesAShardedMessage: SPUBLISH is forwarded to the server that has the slot, where the subscribers are; who subscribes elsewhere is
// told where that is.
func TestAnyServerTakesAShardedMessage(t *testing.T) {
	c := startCluster(t, 2, 2, roomy/8)
	channel := c.keyIn(1, "news")
	slot := partition.Slot([]byte(channel))
	expect(t, dial(t, c.addrs[0]), "SSUBSCRIBE "+channel, fmt.Sprintf("-MOVED %d %s", slot, c.addrs[1]))
	sub := dial(t, c.addrs[1])
	expect(t, sub, "SSUBSCRIBE "+channel, fmt.Sprintf("[%q %q :1]", "ssubscribe", channel))
	plain := dial(t, c.addrs[0])
	expect(t, plain, "SPUBLISH "+channel+" one", ":1")
	expect(t, plain, "MULTI", "+OK")
	expect(t, plain, "SPUBLISH "+channel+" two", "+QUEUED")
	expect(t, plain, "SET "+channel+" v", "+QUEUED")
	expect(t, plain, "EXEC", "[:1 +OK]")
	for _, m := range []string{"one", "two"} {
		if got, want := sub.recv().String(), fmt.Sprintf("[%q %q %q]", "smessage", channel, m); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	aware := dial(t, c.addrs[0])
	expect(t, aware, "READONLY", "+OK")
	expect(t, aware, "SPUBLISH "+channel+" x", fmt.Sprintf("-MOVED %d %s", slot, c.addrs[1]))
}

// TestAClientOfClustersSubscribesToShards: go-redis, as it is, finds the server of a channel, and finds it again when the slot has gone elsewhere.
func TestAClientOfClustersSubscribesToShards(t *testing.T) {
	c := startCluster(t, 2, 4, roomy/8)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	cl := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.addrs[:1], ClusterStateReloadInterval: 10 * time.Millisecond})
	defer cl.Close()
	say := func(channel, text string) {
		t.Helper()
		eventually(t, "the message to have one reader", func() bool {
			n, err := cl.SPublish(ctx, channel, text).Result()
			return err == nil && n == 1
		})
	}
	for p := range 4 {
		channel := c.keyIn(p, "news")
		for _, move := range []bool{false, true} {
			if move {
				c.move(p, 1-p%2)
			}
			var sub *redis.PubSub
			eventually(t, "the client to have subscribed", func() bool { // it looks at the map behind what moves
				sub = cl.SSubscribe(ctx, channel)
				_, err := sub.Receive(ctx)
				if err != nil {
					sub.Close()
				}
				return err == nil
			})
			say(channel, "hello")
			m, err := sub.ReceiveMessage(ctx)
			if err != nil || m.Channel != channel || m.Payload != "hello" {
				t.Errorf("got %v (%v)", m, err)
			}
			if err := errors.Join(sub.SUnsubscribe(ctx, channel), sub.Close()); err != nil {
				t.Error(err)
			}
		}
	}
}
