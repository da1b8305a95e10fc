package finemem_test

import (
	"testing"

	"polder/pool/finemem"
)

// TestEveryInterleaving: two clients on a small pool, in every order of their steps
// and the node's, with a crash of one of them before every step.
func TestEveryInterleaving(t *testing.T) {
	for _, c := range []struct {
		chunks  uint64
		crashes int
		scripts []string
	}{
		{32, 0, []string{"0f", "0f"}},
		{32, 1, []string{"0", "0"}},
	} {
		for _, policy := range []finemem.Policy{finemem.Paper} {
			e := explore(t, func() *world { return newWorld(t, c.chunks, c.crashes, policy, c.scripts...) })
			t.Logf("%d chunks, %v, scripts %q: %d states, %d runs, %d ends, %d crashes",
				c.chunks, policy, c.scripts, len(e.seen), e.runs, e.ends, e.crashes)
		}
	}
}
