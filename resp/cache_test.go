package resp

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/resp/keyspace"
	"polder/resp/reply"
	"polder/soft"
	"polder/soft/coordinator"
)

func TestACacheReportsItsBudgetAsMaxmemory(t *testing.T) {
	_, heap, addr := startCache(t, Config{}, soft.Config{Budget: roomy, Max: 4 * roomy})
	c := dial(t, addr)
	for _, tt := range []struct{ command, want string }{
		{"config get maxmemory", `["maxmemory" "67108864"]`},
		{"config get maxmemory-policy", `["maxmemory-policy" "allkeys-lru"]`},
		{"config set maxmemory 32mb", "+OK"},
		{"config get maxmemory", `["maxmemory" "33554432"]`},
		{"config set maxmemory 1", "-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - cannot set a budget of 1 bytes: want 16777216 to 268435456"},
		{"config set maxmemory 64mib", "-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - argument must be a memory value"},
		{"config set maxmemory 9999999999999gb", "-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - argument must be a memory value"},
		{"config set timeout 5", "+OK"},
		{"config get timeout", `["timeout" "5"]`},
	} {
		if got := c.words(tt.command); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.command, got, tt.want)
		}
	}
	if err := heap.SetBudget(48 << 20); err != nil {
		t.Fatal(err)
	}
	info := c.do("info", "memory").bulk
	for _, want := range []string{"maxmemory:50331648\r\n", "maxmemory_human:48.00M\r\n", "maxmemory_policy:allkeys-lru\r\n"} {
		if !strings.Contains(info, want) {
			t.Errorf("INFO memory has no %q:\n%s", want, info)
		}
	}
}

func TestParseMemoryReadsSizesAsRedisDoes(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "100": 100, "7b": 7, "100k": 100_000, "100KB": 102_400, "2m": 2_000_000, "2Mb": 2 << 20, "3g": 3_000_000_000, "3gb": 3 << 30,
	} {
		if got, ok := parseMemory([]byte(in)); !ok || got != want {
			t.Errorf("%q: got %d, %v, want %d", in, got, ok, want)
		}
	}
	for _, in := range []string{"", "x", "-1", "1x", "1 kb", "kb", "99999999999999999999", "9223372036854775807gb"} {
		if got, ok := parseMemory([]byte(in)); ok {
			t.Errorf("%q: got %d, want none", in, got)
		}
	}
}

func TestACacheRefusesWhatItCannotKeepTogether(t *testing.T) {
	_, _, addr := startCache(t, Config{}, soft.Config{Budget: roomy})
	c := dial(t, addr)
	args := []string{"hset", "h"}
	for i := range keyspace.SmallFields {
		args = append(args, "f"+strconv.Itoa(i), "v")
	}
	if got := c.do(args...).String(); got != fmt.Sprint(":", keyspace.SmallFields) {
		t.Fatalf("%d fields: got %s", keyspace.SmallFields, got)
	}
	if got := c.words("hset h one more"); got != "-"+string(reply.ErrHashTooLarge) {
		t.Errorf("one more: got %s", got)
	}
	if got := c.words("hlen h"); got != fmt.Sprint(":", keyspace.SmallFields) {
		t.Errorf("after the refusal: got %s", got)
	}
}

// evict uses other keys, and more of them than there is memory for, until key
// is gone.
func evict(t *testing.T, c *client, key string) {
	t.Helper()
	value := strings.Repeat("x", 64<<10)
	eventually(t, "the eviction of "+key, func() bool {
		for i := range 512 {
			name := "filler" + strconv.Itoa(i)
			c.do("set", name, value)
			c.do("get", name)
			c.do("get", name)
		}
		return c.words("exists "+key) == ":0"
	})
}

func TestWhatIsEvictedIsAMissAndEndsWatch(t *testing.T) {
	_, heap, addr := startCache(t, Config{}, soft.Config{Budget: soft.MinBudget})
	c, other := dial(t, addr), dial(t, addr)
	c.words("set k 5")
	c.words("watch k")
	evict(t, other, "k")
	c.words("multi")
	c.words("incr k")
	if got := c.words("exec"); got != "*nil" {
		t.Errorf("EXEC after the watched key was evicted: got %s, want a null array", got)
	}
	if got := c.words("get k"); got != "nil" {
		t.Errorf("GET: got %s, want nil", got)
	}
	if s := heap.Stats(); s.EvictedObjects == 0 {
		t.Error("nothing was evicted: the test has not tested what it should")
	}
	info := c.do("info", "stats").bulk
	if strings.Contains(info, "evicted_keys:0\r\n") {
		t.Errorf("INFO says that nothing was evicted:\n%s", info)
	}
}

func TestAValueLargerThanTheCacheIsNotKept(t *testing.T) {
	_, _, addr := startCache(t, Config{MaxBulk: 64 << 20}, soft.Config{Budget: soft.MinBudget})
	c := dial(t, addr)
	c.words("set k small")
	if got := c.do("set", "k", strings.Repeat("x", 40<<20)).String(); got != "+OK" && !strings.HasPrefix(got, "-") {
		t.Errorf("SET: got %.80s", got)
	}
	if got := c.words("get k"); got != "nil" {
		t.Errorf("GET: got %.80s, want nil: neither the old value nor a part of the new one", got)
	}
	if got := c.words("set k again") + c.words("get k"); got != `+OK"again"` {
		t.Errorf("afterwards: got %s", got)
	}
}

// stamped is a value that carries its key and a checksum.
func stamped(key, size int, r *rand.Rand) string {
	body := strings.Repeat(fmt.Sprintf("%d:%d;", key, r.Uint32()), size/8+1)
	return fmt.Sprintf("%d %08x %s", key, crc32.ChecksumIEEE([]byte(body)), body)
}

func intact(key int, v string) bool {
	var k int
	var sum uint32
	n, err := fmt.Sscanf(v, "%d %x ", &k, &sum)
	_, body, _ := strings.Cut(v, " ")
	_, body, ok := strings.Cut(body, " ")
	return err == nil && n == 2 && ok && k == key && crc32.ChecksumIEEE([]byte(body)) == sum
}

// putUnderLoad reads and writes from several connections, until stop is called; then it
// returns how many reads there were and how many found something.
func putUnderLoad(t *testing.T, addr string) (stop func() (reads, hits int64)) {
	var reads, hits atomic.Int64
	done := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 4 {
		c := dial(t, addr)
		r := rand.New(rand.NewPCG(uint64(g), 1))
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				key := r.IntN(20000)
				name := "key" + strconv.Itoa(key)
				reads.Add(1)
				switch got := c.do("get", name); {
				case got.line == "$-1":
					if r := c.do("set", name, stamped(key, 1<<r.IntN(14), r)); r.line != "+OK" {
						t.Errorf("SET: got %s", r.line)
						return
					}
				case !intact(key, got.bulk):
					t.Errorf("GET %s: got %.80q, whose checksum is wrong", name, got.bulk)
					return
				default:
					hits.Add(1)
				}
			}
		})
	}
	return func() (int64, int64) {
		close(done)
		wg.Wait()
		return reads.Load(), hits.Load()
	}
}

func TestTheBudgetShrinksUnderLoad(t *testing.T) {
	srv, _, addr := startCache(t, Config{Loops: 2}, soft.Config{Budget: roomy})
	stop := putUnderLoad(t, addr)
	c := dial(t, addr)
	for i, size := range []string{"16mb", "64mb", "20mb", "48mb", "16mb", "64mb"} {
		before := srv.Stats().Commands
		if got := c.words("config set maxmemory " + size); got != "+OK" {
			t.Fatalf("CONFIG SET maxmemory %s: got %s", size, got)
		}
		eventually(t, fmt.Sprintf("more load after change %d", i), func() bool { return srv.Stats().Commands > before+2000 })
	}
	reads, hits := stop()
	if hits == 0 || hits == reads {
		t.Errorf("%d of %d reads were hits: want some and not all", hits, reads)
	}
}

func TestTheCoordinatorEndsAndComesBackUnderLoad(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	start := func(max int64) *coordinator.Coordinator {
		t.Helper()
		c, err := coordinator.New(coordinator.Config{
			Socket: socket, Max: max, Interval: 10 * time.Millisecond, Deadline: 10 * time.Millisecond, Grace: time.Millisecond,
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := start(96 << 20)
	srv, _, addr := startCache(t, Config{Loops: 2}, soft.Config{Budget: soft.MinBudget, Max: 256 << 20, Coordinator: socket})
	c := dial(t, addr)
	maxmemory := func() int64 {
		n, err := strconv.ParseInt(c.do("config", "get", "maxmemory").elems[1].bulk, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	stop := putUnderLoad(t, addr)
	eventually(t, "a grant of 96 MiB", func() bool { return maxmemory() == 96<<20 })
	if got := c.words("config set maxmemory 64mb"); !strings.HasSuffix(got, "cannot set a budget: the coordinator does") {
		t.Errorf("CONFIG SET with a coordinator: got %s", got)
	}
	going := func(what string) {
		t.Helper()
		before := srv.Stats().Commands
		eventually(t, what, func() bool { return srv.Stats().Commands > before+2000 })
	}
	going("load")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	going("load without a coordinator")
	second := start(24 << 20)
	eventually(t, "a grant of at most 24 MiB", func() bool { return maxmemory() <= 24<<20 })
	going("load with the second coordinator")
	reads, hits := stop()
	if hits == 0 || hits == reads {
		t.Errorf("%d of %d reads were hits: want some and not all", hits, reads)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

func TestScanOfACacheMissesNothingWhileItGrows(t *testing.T) {
	_, _, addr := startCache(t, Config{}, soft.Config{Budget: roomy})
	c := dial(t, addr)
	const stay = 1000
	for i := range stay {
		c.words(fmt.Sprintf("set stay%d x", i))
	}
	seen := make(map[string]bool)
	more := 0
	for cursor := "0"; ; {
		r := c.do("scan", cursor, "match", "stay*")
		for _, k := range r.elems[1].elems {
			seen[k.bulk] = true
		}
		var batch bytes.Buffer
		for range 50 {
			more++
			batch.WriteString(encode("set", fmt.Sprint("more", more), "x"))
		}
		if more < 20_000 {
			c.send(batch.String())
			for range 50 {
				c.recv()
			}
		}
		if cursor = r.elems[0].bulk; cursor == "0" {
			break
		}
	}
	if len(seen) != stay {
		t.Errorf("SCAN has found %d of %d keys", len(seen), stay)
	}
}
