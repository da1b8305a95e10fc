package robustness

import (
	"path/filepath"
	"testing"

	"polder/internal/child"
	"polder/internal/load"
	"polder/internal/proctest"
)

// TestAServerReachesNodesInSeveralWays: one at a socket, whose memory it maps, and two over TCP. What is far has two copies, and is read
// from the near one; when that node is lost nothing is.
func TestAServerReachesNodesInSeveralWays(t *testing.T) {
	ctx := t.Context()
	near := "unix:" + filepath.Join(t.TempDir(), "node.sock")
	nearby := startNode(t, "256MiB", "--listen", near, "--listen", "127.0.0.1:0") // half of it over TCP; it has most room, and so a copy of everything
	other, third := startNode(t, "64MiB"), startNode(t, "64MiB")
	far := near + "," + other.Addr("verbs") + "," + third.Addr("verbs")
	server := startServer(t, far, "4MiB")
	c := connect(t, server)
	const keys = 4000
	fill(t, c, keys, 4000)
	borrowed := func(node string) int64 {
		return proctest.State(t, server).Metrics.Int("polder_pool_borrowed_bytes", "node="+node)
	}
	for _, node := range []*child.Process{other, third} {
		proctest.Until(t, "something is at each node", func() bool { return borrowed(near) > 0 && borrowed(node.Addr("verbs")) > 0 })
	}
	read := func() {
		t.Helper()
		for i := range keys {
			if _, err := c.Get(ctx, string(load.Key(uint32(i)))).Result(); err != nil {
				t.Fatal(err)
			}
		}
	}
	read()
	reads := func(node string) int64 {
		return proctest.State(t, server).Metrics.Int("polder_pool_reads_total", "node="+node)
	}
	if n, a, b := reads(near), reads(other.Addr("verbs")), reads(third.Addr("verbs")); n < a+b {
		t.Errorf("%d reads at the node whose memory is mapped, %d and %d at the others", n, a, b)
	}
	nearby.Kill()
	<-nearby.Done()
	read()
}
