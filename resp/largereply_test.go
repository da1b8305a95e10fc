package resp

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"polder/far"
	"polder/resp/clientmem"
	"polder/resp/keyspace"
	"polder/resp/reply"
)

// TestLargeRepliesAreWholeAndFreed has clients ask for large values and small ones in all
// ways, while much of that is far, and checks every byte that they get. What replies were in
// is freed.
func TestLargeRepliesAreWholeAndFreed(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OutputLimit, cfg.ClientMemory = 4<<20, clientmem.New(1<<30)
		_, addr := startServer(t, far.MinLocal+4<<20, cfg)
		c := dial(t, addr)
		r := rand.New(rand.NewPCG(1, 2))
		sizes := []int{0, 100, 5000, 70 << 10, 300<<10 + 1, 1<<20 + 7}
		values := map[string]string{}
		for i := range 18 {
			key, n := fmt.Sprint("k", i), sizes[i%len(sizes)]
			values[key] = strings.Repeat(fmt.Sprintf("%08x", r.Uint32()), n/8+1)[:n]
			c.do("SET", key, values[key])
		}
		c.do("HSET", "hash", "f", "v")
		key := func() string { return fmt.Sprint("k", r.IntN(19)) } // there is no k18
		value := func(key string) string {
			if v, ok := values[key]; ok {
				return fmt.Sprintf("$%d\r\n%s\r\n", len(v), v)
			}
			return "$-1\r\n"
		}
		before := addressSpace(t)
		for range 60 {
			var in, want strings.Builder
			for range 1 + r.IntN(6) {
				k, l := key(), key()
				switch r.IntN(7) {
				case 0:
					in.WriteString(encode("MGET", k, "hash", l, k))
					want.WriteString("*4\r\n" + value(k) + "$-1\r\n" + value(l) + value(k))
				case 1:
					in.WriteString(encode("MULTI") + encode("GET", k) + encode("GET", "hash") + encode("GET", l) + encode("PING") + encode("EXEC"))
					want.WriteString("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n" + value(k) + "-" + string(reply.ErrWrongType) + "\r\n" + value(l) + "+PONG\r\n")
				case 2:
					in.WriteString(encode("CLIENT", "REPLY", "SKIP") + encode("GET", k) + encode("PING"))
					want.WriteString("+PONG\r\n")
				case 3:
					in.WriteString(encode("GETEX", k) + encode("ECHO", "x"))
					want.WriteString(value(k) + "$1\r\nx\r\n")
				default:
					in.WriteString(encode("GET", k))
					want.WriteString(value(k))
				}
			}
			c.send(in.String())
			if r.IntN(3) == 0 {
				time.Sleep(time.Millisecond) // the sockets' buffers fill
			}
			got := make([]byte, want.Len())
			if n, err := io.ReadFull(c.r, got); err != nil {
				t.Fatalf("got %d bytes of %d: %v", n, len(got), err)
			}
			if string(got) != want.String() {
				t.Fatalf("got other bytes than were to come, for %.100q", in.String())
			}
		}
		if grown := addressSpace(t) - before; grown > 128<<20 {
			t.Errorf("the process has %d MiB more mapped than before", grown>>20)
		}
	})
}

// TestATransactionsErrorLeavesOthersRepliesAlone: in front of a client's replies there may be
// those of others whose turn was before it. One of its commands moves its replies to memory
// of their own, and then fails.
func TestATransactionsErrorLeavesOthersRepliesAlone(t *testing.T) {
	srv, _ := startServer(t, far.MinLocal+4<<20, Config{Loops: -1})
	s := srv.newSession()
	defer s.close()
	s.Tries = keyspace.MaxTries + 1 // it may wait
	s.feed([]byte(encode("HSET", "hash", "f", strings.Repeat("v", 300<<10))))
	const others = "+what others are told\r\n"
	s.Out, s.Base = []byte(others), len(others)
	s.in = []byte(encode("MULTI") + encode("PING") + encode("GET", "hash") + encode("ECHO", "x") + encode("EXEC"))
	s.Tries = keyspace.MaxTries + 1
	if st := s.run(); st != needInput {
		t.Fatalf("got status %v, want that it needs input", st)
	}
	got := string(s.Out[s.Base:])
	if large := s.TakeLarge(); large != nil {
		got = string(large)
	}
	if want := "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+PONG\r\n-" + string(reply.ErrWrongType) + "\r\n$1\r\nx\r\n"; got != want {
		t.Errorf("got %.200q, want %q", got, want)
	}
	if string(s.Out) != others {
		t.Errorf("others' replies are %q, want %q", s.Out, others)
	}
}

// addressSpace is the size of the process's mappings, in bytes.
func addressSpace(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[0])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
