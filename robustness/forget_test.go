package robustness

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"polder/internal/console"
	"polder/internal/proctest"
)

// TestANodeForgetsAHeap that nobody will open again. It does not as long as the heap's server is connected.
func TestANodeForgetsAHeap(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	node := startNode(t, "64MiB", "--admin-token-file", token)
	server := proctest.Start(t, "serve", named(node.Addr("verbs"), startWitnesses(t))...)
	if err := connect(t, server).Set(t.Context(), "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	lent := func() int64 {
		t.Helper()
		s, err := console.Query(t.Context(), nil, "0123456789abcdef", node.Addr("admin"), 0)
		if err != nil {
			t.Fatal(err)
		}
		return s.Metrics.Int("polder_node_memory_bytes", "use=lent")
	}
	forget := func(heap string, access ...string) (said string, code int) {
		t.Helper()
		out, errs, code := proctest.Output(t, nil, append([]string{"heap", "forget", node.Addr("admin"), heap}, access...)...)
		return out + errs, code
	}
	access := []string{"--admin-token-file", token}
	refused := func(why string, said string, code int) {
		t.Helper()
		if code == 0 || !strings.Contains(said, why) || lent() == 0 {
			t.Fatalf("it ends with %d, says %q, and %d bytes are lent; want a refusal: %s", code, said, lent(), why)
		}
	}
	said, code := forget("orders", access...)
	refused("heap orders is in use", said, code)
	server.Kill()
	<-server.Done()
	said, code = forget("order", access...)
	refused(`nothing is kept here for a heap "order"`, said, code)
	said, code = forget("orders")
	refused("asks for a token", said, code)
	proctest.Until(t, "the node has noticed that the server is gone", func() bool {
		said, code = forget("orders", access...)
		return code == 0 || !strings.Contains(said, "in use")
	})
	if code != 0 || !strings.Contains(said, "heap orders is forgotten here: ") || lent() != 0 {
		t.Errorf("it ends with %d, says %q, and %d bytes are lent; want 0", code, said, lent())
	}
}
