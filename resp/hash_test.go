package resp

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"polder/far"
	"polder/internal/invariants"
)

// checkHash checks that the hash under key is what want says, by all commands
// that show it whole.
func checkHash(t *testing.T, c *client, key string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	all := c.do("HGETALL", key).elems
	for i := 0; i+1 < len(all); i += 2 {
		got[all[i].bulk] = all[i+1].bulk
	}
	if !maps.Equal(got, want) || len(all) != 2*len(want) {
		t.Fatalf("HGETALL %s: %d fields in %d elements, want %d fields", key, len(got), len(all), len(want))
	}
	if n := c.do("HLEN", key).String(); n != fmt.Sprint(":", len(want)) {
		t.Fatalf("HLEN %s: %s, want %d", key, n, len(want))
	}
	got = map[string]string{}
	for cursor := "0"; ; {
		r := c.do("HSCAN", key, cursor, "COUNT", "50")
		page := r.elems[1].elems
		for i := 0; i+1 < len(page); i += 2 {
			got[page[i].bulk] = page[i+1].bulk
		}
		if cursor = r.elems[0].bulk; cursor == "0" {
			break
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("HSCAN %s: %d fields, want %d", key, len(got), len(want))
	}
}

// TestLargeHashes grows a hash into blocks and shrinks it again, with random
// commands, and checks it against a map.
func TestLargeHashes(t *testing.T) {
	if invariants.Enabled {
		return // one client does much; "make plain" runs it
	}
	for _, local := range []int64{roomy, far.MinLocal} {
		t.Run(fmt.Sprint(local>>20, "MiB"), func(t *testing.T) {
			heap := newHeap(t, local)
			push := newChurn(heap)
			srv, addr := startOn(t, heap, Config{Loops: 1})
			c := dial(t, addr)
			r := rand.New(rand.NewPCG(3, 4))
			want := map[string]string{}
			field := func() string { return "field:" + strconv.Itoa(r.IntN(3000)) }
			for i := range 6000 {
				f := field()
				switch _, there := want[f]; {
				case i < 4000 && r.IntN(10) > 0 || i >= 4000 && r.IntN(10) == 0:
					v := strings.Repeat("v", r.IntN(200))
					if got, want := c.do("HSET", "h", f, v).String(), fmt.Sprint(":", b2i(!there)); got != want {
						t.Fatalf("HSET %s: got %s, want %s", f, got, want)
					}
					want[f] = v
				case r.IntN(2) == 0:
					if got, want := c.do("HDEL", "h", f).String(), fmt.Sprint(":", b2i(there)); got != want {
						t.Fatalf("HDEL %s: got %s, want %s", f, got, want)
					}
					delete(want, f)
				default:
					if got := c.do("HGET", "h", f); got.bulk != want[f] || (got.line == "$-1") == there {
						t.Fatalf("HGET %s: got %s, want %q", f, got, want[f])
					}
				}
				if local < roomy && i%50 == 0 {
					push.evict(t)
				}
				if i%1500 == 1499 {
					checkHash(t, c, "h", want)
				}
			}
			if srv.Stats().LargeHashes != 1 {
				t.Errorf("%d large hashes, want 1: the test has not tested what it should", srv.Stats().LargeHashes)
			}
			if got := c.words("OBJECT ENCODING h"); got != `"hashtable"` {
				t.Errorf("encoding: %s", got)
			}
			// RENAME and COPY keep all of it.
			expect(t, c, "RENAME h g", "+OK")
			expect(t, c, "EXISTS h", ":0")
			checkHash(t, c, "g", want)
			expect(t, c, "COPY g h", ":1")
			checkHash(t, c, "h", want)
			expect(t, c, "HSET h extra 1", ":1")
			checkHash(t, c, "g", want)
			if srv.Stats().LargeHashes != 2 {
				t.Errorf("%d large hashes, want 2", srv.Stats().LargeHashes)
			}
			// HRANDFIELD gives what is there.
			for _, e := range c.words2("HRANDFIELD g 10").elems {
				if _, ok := want[e.bulk]; !ok {
					t.Errorf("HRANDFIELD gave %q, which is not there", e.bulk)
				}
			}
			if _, ok := want[c.words2("HRANDFIELD g").bulk]; !ok {
				t.Errorf("HRANDFIELD gave a field that is not there")
			}
			// Removing the fields one by one removes the key.
			for f := range want {
				c.do("HDEL", "g", f)
			}
			expect(t, c, "EXISTS g", ":0")
			expect(t, c, "DEL h", ":1")
			eventually(t, "the end of all blocks", func() bool { st := srv.Stats(); return st.HashBlocks == 0 && st.LargeHashes == 0 })
		})
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// words2 is words with the whole reply.
func (c *client) words2(line string) answer {
	c.t.Helper()
	return c.do(strings.Fields(line)...)
}

// TestLargeHashesFreeTheirBlocks ends large hashes in every way there is.
func TestLargeHashesFreeTheirBlocks(t *testing.T) {
	srv, addr := startServer(t, roomy, Config{})
	c := dial(t, addr)
	grow := func(key string) {
		args := []string{"HSET", key}
		for i := range 1000 {
			args = append(args, "f"+strconv.Itoa(i), strings.Repeat("v", 50))
		}
		c.do(args...)
	}
	for _, end := range []string{"DEL h", "UNLINK h", "SET h v", "MSET a 1 h 2", "RENAME small h", "COPY small h REPLACE",
		"COPY other h REPLACE", "RENAME other h", "PEXPIRE h 20", "EXPIRE h -1", "FLUSHALL", "SET h v PX 10"} {
		c.do("FLUSHALL")
		c.do("SET", "small", "v")
		grow("h")
		grow("other")
		if st := srv.Stats(); st.LargeHashes != 2 || st.HashBlocks < 20 {
			t.Fatalf("before %s: %d large hashes with %d blocks", end, st.LargeHashes, st.HashBlocks)
		}
		c.words(end)
		c.words("DEL other")
		eventually(t, "after "+end+", the end of the blocks", func() bool {
			st := srv.Stats()
			if strings.Contains(end, "other h") {
				return st.LargeHashes == 1 && st.HashBlocks < 40
			}
			return st.LargeHashes == 0 && st.HashBlocks == 0
		})
	}
}

// TestHScanMissesNothing scans a large hash while it grows to many times its
// size: what was there from the beginning must come.
func TestHScanMissesNothing(t *testing.T) {
	_, addr := startServer(t, roomy, Config{})
	c := dial(t, addr)
	add := func(prefix string, n int) {
		for i := 0; i < n; i += 100 {
			args := []string{"HSET", "h"}
			for j := i; j < i+100; j++ {
				args = append(args, prefix+strconv.Itoa(j), "0123456789")
			}
			c.do(args...)
		}
	}
	add("old", 2000)
	seen := map[string]bool{}
	round := 0
	for cursor := "0"; ; round++ {
		r := c.do("HSCAN", "h", cursor, "COUNT", "20", "MATCH", "old*")
		page := r.elems[1].elems
		for i := 0; i < len(page); i += 2 {
			seen[page[i].bulk] = true
		}
		if cursor = r.elems[0].bulk; cursor == "0" {
			break
		}
		if round < 50 {
			add(fmt.Sprint("new", round, "-"), 200)
		}
	}
	if len(seen) != 2000 || round < 10 {
		t.Errorf("%d of 2000 fields came in %d steps", len(seen), round)
	}
}
