package resp

import (
	"fmt"
	"strings"
	"testing"

	"polder/resp/feed"
)

// TestPublishAndSubscribeAreThoseOfRedis plays the same scene at both, by each driver and version of the protocol.
func TestPublishAndSubscribeAreThoseOfRedis(t *testing.T) {
	scene := []string{ // who says what, and how many replies and messages it then reads
		"sub 3 SUBSCRIBE a b a", "pub 1 PUBLISH a hello", "sub 1", "pub 1 PUBLISH c nobody", "pub 1 PUBSUB NUMSUB a b c", "pub 1 PUBSUB CHANNELS [ac]*",
		"sub 2 PSUBSCRIBE a* [xy]z", "pub 1 PUBSUB NUMPAT", "pub 1 PUBLISH a twice", "sub 2", "pub 1 PUBLISH xz once", "sub 1",
		"sub 1 PING", "sub 1 PING hi", "sub 1 GET k", "sub 1 PUBSUB NUMPAT", "sub 1 SUBSCRIBE",
		"sub 1 UNSUBSCRIBE a", "pub 1 PUBLISH a pattern", "sub 1", "sub 1 UNSUBSCRIBE", "sub 1 UNSUBSCRIBE", "sub 1 PUNSUBSCRIBE nosuch",
		"sub 1 PUNSUBSCRIBE a*", "sub 1 PUNSUBSCRIBE", "sub 1 GET k", "pub 1 PUBLISH a gone", "sub 1 SUBSCRIBE b", "sub 1 RESET", "pub 1 PUBLISH b gone", "sub 1 PING",
		"pub 1 MULTI", "pub 1 PUBLISH a x", "pub 1 EXEC", "pub 1 PUBSUB nosuch", "pub 1 PUBLISH a",
		"sub 3 SSUBSCRIBE a b a", "pub 1 SPUBLISH a hello", "sub 1", "pub 1 SPUBLISH c nobody", "pub 1 PUBLISH a nobody", "pub 1 PUBSUB SHARDNUMSUB a b c", "pub 1 PUBSUB SHARDCHANNELS a*",
		"pub 1 PUBSUB NUMSUB a", "pub 1 PUBSUB CHANNELS", "sub 1 GET k", "sub 1 SUBSCRIBE a", "sub 1 PSUBSCRIBE *", "pub 1 SPUBLISH a once", "sub 1", "pub 1 PUBLISH a twice", "sub 2",
		"pub 1 MULTI", "pub 1 SPUBLISH a x", "pub 1 EXEC", "sub 1", "sub 1 SUNSUBSCRIBE nosuch", "sub 1 UNSUBSCRIBE", "sub 1 SUNSUBSCRIBE a", "sub 1 PUNSUBSCRIBE", "sub 1 SUNSUBSCRIBE", "sub 1 SUNSUBSCRIBE",
		"sub 1 GET k", "sub 1 SSUBSCRIBE b", "sub 1 RESET", "pub 1 SPUBLISH b gone", "pub 1 SPUBLISH a", "pub 1 COMMAND GETKEYS SPUBLISH a x", "pub 1 COMMAND GETKEYS SSUBSCRIBE a b",
	}
	drivers(t, func(t *testing.T, cfg Config) {
		_, addr := startServer(t, roomy, cfg)
		redis := startRedis(t)
		for _, ver := range []string{"2", "3"} {
			var seen [2][]string
			for i, addr := range []string{addr, redis} {
				by := map[string]*client{"sub": dial(t, addr), "pub": dial(t, addr)}
				for _, c := range by {
					c.do("HELLO", ver)
				}
				for _, line := range scene {
					words := strings.Fields(line)
					c := by[words[0]]
					if len(words) > 2 {
						c.send(encode(words[2:]...))
					}
					for range words[1][0] - '0' {
						r := c.recv()
						seen[i] = append(seen[i], line+": "+r.String())
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

// TestMessagesComeInOrderAndBehindTheSubscription has several publish while others subscribe and go. Each subscriber
// is told that it is one before anything else, and then what each publisher has published since, in order.
func TestMessagesComeInOrderAndBehindTheSubscription(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, addr := startServer(t, roomy, cfg)
		const publishers = 3
		quit := make(chan struct{})
		ended := make(chan struct{}, publishers)
		for p := range publishers {
			c := dial(t, addr)
			go func() {
				defer func() { ended <- struct{}{} }()
				for n := 0; ; n++ {
					select {
					case <-quit:
						return
					default:
						c.do("PUBLISH", "news", fmt.Sprintf("%d %d", p, n))
					}
				}
			}()
		}
		for range 20 {
			c := dial(t, addr)
			c.send(encode("PING") + encode("SUBSCRIBE", "news") + strings.Repeat(encode("PING"), 2000)) // it is a while till the replies are sent
			if r := c.recv().String(); r != "+PONG" {
				t.Fatalf("got %s before the reply to PING", r)
			}
			if r := c.recv().String(); r != `["subscribe" "news" :1]` {
				t.Fatalf("got %s before the reply to SUBSCRIBE", r)
			}
			var last [publishers]int
			for i := 0; i < 100; {
				r := c.recv()
				if r.elems[0].bulk == "pong" {
					continue
				}
				i++
				var p, n int
				if len(r.elems) != 3 || r.elems[0].bulk != "message" {
					t.Fatalf("got %s, want a message", r)
				}
				if _, err := fmt.Sscan(r.elems[2].bulk, &p, &n); err != nil {
					t.Fatal(err)
				}
				if last[p] != 0 && n != last[p]+1 {
					t.Fatalf("message %d of publisher %d follows %d", n, p, last[p])
				}
				last[p] = n
			}
			c.c.Close()
		}
		close(quit)
		for range publishers {
			<-ended
		}
	})
}

// TestMessagesComeBeforeTheEndOfTheirSubscription: whoever has been told that it has ended takes what comes for replies.
func TestMessagesComeBeforeTheEndOfTheirSubscription(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, addr := startServer(t, roomy, cfg)
		c := dial(t, addr)
		c.do("HELLO", "3") // so that a subscriber may publish
		c.send(encode("SUBSCRIBE", "a", "b", "c") + encode("PUBLISH", "a", "1") + encode("PUBLISH", "c", "2") + encode("UNSUBSCRIBE", "a", "x", "b") +
			encode("PUBLISH", "c", "3") + encode("CLIENT", "REPLY", "OFF") + encode("UNSUBSCRIBE") + encode("CLIENT", "REPLY", "ON"))
		for _, want := range []string{
			`>["subscribe" "a" :1]`, `>["subscribe" "b" :2]`, `>["subscribe" "c" :3]`, ":1", ":1",
			`>["message" "a" "1"]`, `>["message" "c" "2"]`, `>["unsubscribe" "a" :2]`, `>["unsubscribe" "x" :2]`, `>["unsubscribe" "b" :1]`,
			":1", `>["message" "c" "3"]`, `>["unsubscribe" "c" :0]`, "+OK",
		} {
			if got := c.recv().String(); got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
		}
	})
}

// TestSubscribersAreToldWhateverClientReplyAsks: as by Redis.
func TestSubscribersAreToldWhateverClientReplyAsks(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, addr := startServer(t, roomy, cfg)
		for _, addr := range []string{addr, startRedis(t)} {
			c := dial(t, addr)
			c.do("HELLO", "3")
			c.send(encode("CLIENT", "REPLY", "OFF") + encode("SUBSCRIBE", "a", "b") + encode("PSUBSCRIBE", "c") + encode("UNSUBSCRIBE", "a") + encode("PING") +
				encode("CLIENT", "REPLY", "ON") + encode("CLIENT", "REPLY", "SKIP") + encode("UNSUBSCRIBE") + encode("ECHO", "end"))
			for _, want := range []string{
				`>["subscribe" "a" :1]`, `>["subscribe" "b" :2]`, `>["psubscribe" "c" :3]`, `>["unsubscribe" "a" :2]`, "+OK", `>["unsubscribe" "b" :1]`, `"end"`,
			} {
				if got := c.recv().String(); got != want {
					t.Fatalf("got %s, want %s", got, want)
				}
			}
		}
	})
}

// TestASubscriberThatDoesNotReadHoldsNobodyUp: it is disconnected, and publishers go on.
func TestASubscriberThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OutputLimit = 64 << 10
		srv, addr := startServer(t, roomy, cfg)
		expect(t, dial(t, addr), "SUBSCRIBE news", `["subscribe" "news" :1]`)
		pub := dial(t, addr)
		message := strings.Repeat("m", 10_000)
		eventually(t, "the subscriber to go", func() bool {
			return pub.do("PUBLISH", "news", message).line == ":0"
		})
		if n := srv.Stats().OutputDrops; n != 1 {
			t.Errorf("%d clients were dropped for what they do not read, want 1", n)
		}
		if n := len(srv.channels.Names(feed.Channel, nil)); n != 0 {
			t.Errorf("%d channels are left", n)
		}
	})
}

// TestManySubscriptionsCount: what a client subscribes to counts as what it holds.
func TestManySubscriptionsCount(t *testing.T) {
	srv, addr := startServer(t, roomy, Config{})
	c := dial(t, addr)
	args := []string{"SUBSCRIBE"}
	for i := range 2000 {
		args = append(args, fmt.Sprint("channel", i))
	}
	c.send(encode(args...))
	for range 2000 {
		c.recv()
	}
	eventually(t, "2,000 subscriptions to count", func() bool { // it is counted behind the answer
		return srv.cfg.ClientMemory.Held() >= 2000*400
	})
	c.c.Close()
	eventually(t, "the subscriptions to be gone", func() bool {
		return dial(t, addr).do("PUBSUB", "CHANNELS").line == "*0" && srv.cfg.ClientMemory.Held() < 2000*400
	})
}
