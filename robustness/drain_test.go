package robustness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testaddr"
)

// TestANodeIsDrained: of three nodes, one after the other is drained and started again, while clients read and write, who see no
// error. When too few are left for another to be drained, that is said, and it stays until it is forced. With one copy it
// is the same as long as there is another node.
func TestANodeIsDrained(t *testing.T) {
	t.Parallel()
	for _, copies := range []int{2, 1} {
		t.Run(fmt.Sprintf("%d of each segment", copies), func(t *testing.T) {
			token := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			start := func(addr string) *child.Process {
				return startNode(t, "128MiB", "--listen", addr, "--drain", "2s", "--admin-token-file", token)
			}
			procs, addrs := make([]*child.Process, 3), make([]string, 3)
			for i := range procs {
				procs[i] = start(testaddr.Host() + ":0")
				addrs[i] = procs[i].Addr("verbs")
			}
			server := startServer(t, strings.Join(addrs, ","), "4MiB", "--copies", strconv.Itoa(copies))
			stop := make(chan struct{})
			var wg sync.WaitGroup
			var done, slowest atomic.Int64
			failed := make(chan error, 2)
			end := sync.OnceFunc(func() { close(stop); wg.Wait() })
			defer end()
			for w := range cap(failed) {
				wg.Go(func() {
					if err := copiesLoad(t.Context(), connect(t, server), w, 1500, stop, &done, &slowest); err != nil {
						failed <- err
					}
				})
			}
			until := func(what string, cond func() bool) {
				t.Helper()
				proctest.Until(t, what, func() bool {
					select {
					case err := <-failed:
						t.Fatal(err)
					default:
					}
					return cond()
				})
			}
			borrowed := func(i int) int64 {
				return proctest.State(t, server).Metrics.Int("polder_pool_borrowed_bytes", "node="+addrs[i])
			}
			drain := func(i int, args ...string) (said string, code int) {
				t.Helper()
				args = append([]string{"drain", procs[i].Addr("admin"), "--admin-token-file", token}, args...)
				out, errs, code := proctest.Output(t, nil, args...)
				return out + errs, code
			}
			for i := range 2*copies - 1 {
				until("each node has something", func() bool { return borrowed(i) > 0 })
				var said string
				var code int
				if i == 0 { // by a signal
					if err := procs[i].Signal(syscall.SIGTERM); err != nil {
						t.Fatal(err)
					}
				} else if said, code = drain(i); code != 0 || !strings.Contains(said, "drained: it ends") {
					t.Fatalf("drain: exit code %d, %s", code, said)
				}
				<-procs[i].Done()
				if err := procs[i].Err(); err != nil || borrowed(i) != 0 {
					t.Fatalf("a node that was drained ends with %v, and %d bytes", err, borrowed(i))
				}
				from := done.Load()
				until("the load goes on", func() bool { return done.Load() >= from+200 })
				procs[i] = start(addrs[i])
				until("it is there again", func() bool {
					return proctest.State(t, server).Metrics.Int("polder_pool_node_up", "node="+addrs[i]) == 1
				})
			}
			for i := range 3 - copies { // the others do without them
				if said, code := drain(i); code != 0 {
					t.Fatalf("drain: exit code %d, %s", code, said)
				}
			}
			if said, code := drain(2, "--within", "1s"); code != 1 || !strings.Contains(said, "still lent") {
				t.Fatalf("drain of a node that cannot be done without: exit code %d, %s", code, said)
			}
			if err := procs[2].Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			until("it is said why the node stays", func() bool { return strings.Contains(procs[2].Stderr(), "a second signal ends it") })
			from := done.Load()
			until("the load goes on", func() bool { return done.Load() >= from+200 })
			end()
			select {
			case err := <-failed:
				t.Fatal(err)
			default:
			}
			if s := statusOf(t, server); s.Heap.Lost != 0 || s.Redis.Lost != 0 {
				t.Errorf("%d entries were lost", s.Heap.Lost)
			}
			if said, code := drain(2, "--within", "100ms", "--force"); code != 0 || !strings.Contains(said, "ended by force") {
				t.Fatalf("drain by force: exit code %d, %s", code, said)
			}
			<-procs[2].Done()
			if err := server.Stop(); err != nil { // before the nodes that are left, which would stay
				t.Error(err)
			}
			t.Logf("%d operations; the slowest took %d ms", done.Load(), slowest.Load()/1e6)
		})
	}
}
