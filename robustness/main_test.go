// Package robustness starts the real program, in processes of their own, and
// treats it badly: it kills them, cuts their connections, fills them up and
// does not read what they say. What was acknowledged must be there, or be
// reported as lost; nothing may hang, and nothing may be wrong bytes.
package robustness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/proctest"
)

// TestMain lets the test program be a client of a coordinator, too, or enter a
// control group or namespaces and become another program.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == enterGroup {
		fmt.Fprintln(os.Stderr, enter(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
	if len(os.Args) == 3 && os.Args[1] == softClient {
		fmt.Fprintln(os.Stderr, client(os.Args[2], os.Stdout))
		os.Exit(1)
	}
	if len(os.Args) == 3 && os.Args[1] == softLiar {
		fmt.Fprintln(os.Stderr, lie(os.Args[2]))
		os.Exit(1)
	}
	if len(os.Args) == 3 && os.Args[1] == takeMemory {
		fmt.Fprintln(os.Stderr, take(os.Args[2]))
		os.Exit(1)
	}
	if len(os.Args) == 2 && os.Args[1] == documentShell {
		fmt.Fprintln(os.Stderr, enterDocument())
		os.Exit(1)
	}
	// The tests wait for processes most of the time.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := f.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	proctest.Main(m)
}

const mib = 1 << 20

// hang is when a request counts as hanging. It is far above every deadline of
// the server's.
const hang = time.Minute

// startNode runs a memory node.
func startNode(t *testing.T, lend string, args ...string) *child.Process {
	t.Helper()
	return proctest.Start(t, "node", append([]string{"--lend", lend, "--client-budget", "0"}, args...)...)
}

// startServer runs a server that borrows from the nodes at addr. Its commands wait
// for far memory as long as a busy machine may take, unless args say otherwise.
func startServer(t *testing.T, addr, local string, args ...string) *child.Process {
	t.Helper()
	return proctest.Start(t, "serve", append([]string{"--far", addr, "--local", local, "--op-timeout", "20s"}, args...)...)
}

// connect returns a client that neither retries nor hides errors.
func connect(t *testing.T, server *child.Process) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr:         server.Addr("redis"),
		MaxRetries:   -1,
		PoolSize:     16,
		ReadTimeout:  hang,
		WriteTimeout: hang,
		PoolTimeout:  hang,
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// noise is what values are cut from.
var noise = func() string {
	b := make([]byte, 4*mib)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // never fails
	return string(b)
}()

// value is what belongs to a version of a key: of any length from 0 on, and
// not like any other value. It is at most half as long as the noise.
func value(key string, version, size int) string {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s/%d", key, version)
	sum := strconv.FormatUint(h.Sum64(), 36)
	if size <= len(sum) {
		return sum[:size]
	}
	at := int(h.Sum64() % uint64(len(noise)/2))
	return sum + noise[at:at+size-len(sum)]
}

// Statistics that the tests look at.
type status struct {
	Resident int64
	Memory   struct {
		Total int64
		Bound string
	}
	Node  struct{ Chunks, Lent, Clients, Sessions int64 }
	Heap  struct{ Lost, Corrupt int64 }
	Redis struct{ OutputDrops, Lost, EvictedClients, ClientMemory, MaxClientMemory int64 }
}

func statusOf(t *testing.T, p *child.Process) (s status) {
	t.Helper()
	m := proctest.State(t, p).Metrics
	s.Resident = m.Int("process_resident_memory_bytes")
	s.Memory.Total, s.Memory.Bound = m.Int("polder_memory_limit_bytes"), m.Label("polder_memory_limit_bytes", "bound")
	if chunk := m.Int("polder_node_chunk_bytes"); chunk > 0 {
		s.Node.Chunks, s.Node.Lent = m.Int("polder_node_memory_bytes")/chunk, m.Int("polder_node_memory_bytes", "use=lent")/chunk
	}
	s.Node.Clients, s.Node.Sessions = m.Int("polder_node_clients"), m.Int("polder_node_sessions")
	s.Heap.Lost, s.Heap.Corrupt = m.Int("polder_far_lost_entries_total"), m.Int("polder_far_corrupt_reads_total")
	s.Redis.OutputDrops, s.Redis.Lost = m.Int("polder_resp_output_drops_total"), m.Int("polder_resp_lost_replies_total")
	s.Redis.EvictedClients = m.Int("polder_resp_evicted_clients_total")
	s.Redis.ClientMemory, s.Redis.MaxClientMemory = m.Int("polder_resp_client_memory_bytes"), m.Int("polder_resp_client_memory_limit_bytes")
	return s
}

// refusal is the first word of an error reply, such as LOST or OOM, and ""
// for an error of the connection.
func refusal(err error) string {
	var reply redis.Error
	if errors.As(err, &reply) {
		word, _, _ := strings.Cut(reply.Error(), " ")
		return word
	}
	return ""
}

// pipelined sends commands in batches and gives every reply's error to check.
func pipelined(ctx context.Context, c *redis.Client, n int, add func(p redis.Pipeliner, i int), check func(i int, cmd redis.Cmder) error) error {
	const batch = 64
	for from := 0; from < n; from += batch {
		p := c.Pipeline()
		to := min(from+batch, n)
		for i := from; i < to; i++ {
			add(p, i)
		}
		cmds, err := p.Exec(ctx)
		if len(cmds) != to-from {
			return fmt.Errorf("got %d replies to %d commands: %w", len(cmds), to-from, err)
		}
		for i, cmd := range cmds {
			if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && refusal(err) == "" {
				return err // the connection
			}
			if err := check(from+i, cmd); err != nil {
				return err
			}
		}
	}
	return nil
}
