package resp

import (
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"polder/far"
	"polder/soft"
)

// gather returns the server's metrics by name.
func gather(t *testing.T, srv *Server) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(srv.Collector()); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return got
}

// hitsAndMisses returns what INFO says of lookups: hits, misses.
func hitsAndMisses(c *client) (got [2]string) {
	c.t.Helper()
	for line := range strings.Lines(c.do("INFO", "stats").bulk) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "keyspace_hits":
			got[0] = value
		case "keyspace_misses":
			got[1] = value
		}
	}
	return got
}

// TestKeyspaceHitsAreThoseOfRedis: after each of these commands, in far memory and as a cache.
func TestKeyspaceHitsAreThoseOfRedis(t *testing.T) {
	_, farAddr := startServer(t, roomy, Config{})
	_, _, softAddr := startCache(t, Config{}, soft.Config{Budget: roomy})
	redis := dial(t, startRedis(t))
	for name, addr := range map[string]string{"far": farAddr, "cache": softAddr} {
		redis.do("FLUSHALL")
		redis.do("CONFIG", "RESETSTAT")
		ours := dial(t, addr)
		for _, line := range []string{
			"GET a", "SET a 1", "GET a", "MGET a b a", "EXISTS a b", "TTL a", "PTTL b", "TYPE a", "TYPE b", "STRLEN a", "GETRANGE b 0 1",
			"SET a 2 GET", "GETSET a 3", "GETSET n 3", "GETEX a", "GETEX b", "GETDEL n", "GETDEL n",
			"INCR c", "APPEND c 1", "SETNX c 1", "EXPIRE c 100", "DEL c", "DEL c", "RENAME b a",
			"HSET h f v", "HGET h f", "HGET h g", "HGET b f", "HGETALL h", "HLEN b", "HEXISTS h f", "HDEL h f", "GET h", "HGET a f",
			"WATCH a b", "UNWATCH", "MULTI", "GET a", "SET b 1", "GET b", "GETEX c", "EXEC", "TOUCH a c", "RANDOMKEY", "DBSIZE", "SCAN 0", "KEYS *",
		} {
			want, got := redis.words(line), ours.words(line)
			if line != "RANDOMKEY" && line != "SCAN 0" && line != "KEYS *" && got != want {
				t.Fatalf("%s: %s: got %s, want %s", name, line, got, want)
			}
			if strings.Contains(want, "QUEUED") || line == "MULTI" {
				continue
			}
			if got, want := hitsAndMisses(ours), hitsAndMisses(redis); got != want {
				t.Errorf("%s: after %s: got %s hits and misses, want %s", name, line, got, want)
			}
		}
	}
}

// TestAKeyThatIsFetchedIsOneHit, although its command runs again when it has come.
func TestAKeyThatIsFetchedIsOneHit(t *testing.T) {
	srv, addr := startServer(t, far.MinLocal, Config{})
	c := dial(t, addr)
	const keys = 4000
	value := strings.Repeat("v", 1000)
	for i := range keys {
		c.do("SET", "key:"+strconv.Itoa(i), value)
	}
	for i := range keys {
		c.do("MGET", "key:"+strconv.Itoa(i), "none")
	}
	if got := hitsAndMisses(c); got != [2]string{strconv.Itoa(keys), strconv.Itoa(keys)} || srv.Stats().Fetches == 0 {
		t.Errorf("got %s hits and misses in %d fetches, want %d each", got, srv.Stats().Fetches, keys)
	}
}
