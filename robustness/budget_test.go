package robustness

import (
	"fmt"
	"testing"

	"polder/internal/proctest"
)

// TestASecondClientFindsRoom: the first one takes all it can get of a node whose
// operator has said nothing of budgets.
func TestASecondClientFindsRoom(t *testing.T) {
	node := proctest.Start(t, "node", "--lend", "48MiB")
	first, second := startServer(t, node.Addr("verbs"), "4MiB"), startServer(t, node.Addr("verbs"), "4MiB")
	greedy, modest := connect(t, first), connect(t, second)
	const size = 256 << 10
	full := false
	for i := 0; i < 48*mib/size && !full; i++ {
		k := fmt.Sprint("key:", i)
		err := greedy.Set(t.Context(), k, value(k, 1, size), 0).Err()
		if full = refusal(err) == "OOM"; err != nil && !full {
			t.Fatal(err)
		}
	}
	if !full {
		t.Errorf("a client stored all that the node lends, want it to be refused at half")
	}
	for i := range 12 * mib / size {
		k := fmt.Sprint("key:", i)
		if err := modest.Set(t.Context(), k, value(k, 1, size), 0).Err(); err != nil {
			t.Fatalf("a second client stored %d values: %v", i, err)
		}
	}
}
