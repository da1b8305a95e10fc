//go:build ibverbs

package pool_test

import (
	"slices"
	"testing"

	"polder/pool"
	"polder/pool/baseline"
	"polder/pool/finemem"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
)

// The attacks that consist in operations and messages, against an RDMA device
// and what it refuses; those on the packets of the software RNIC make no sense
// there. A device that does not check the bounds of windows does not keep a
// client within its chunk, where chunks are windows.
func TestIBVAttack(t *testing.T) {
	managers := []pool.Manager{rpcmw.Manager{}, baseline.RPCMW1{}, finemem.Manager{}, baseline.FineMR{}, baseline.StaticMR{}}
	onPackets := []string{
		"replays the bytes of a neighbour's connection",
		"sends packets twice, with checksums that are right",
		"sends packets with random bytes changed, with checksums that are right",
		"sends bytes that are no packets",
	}
	overBounds := []string{"reads over the end of its chunk", "reads before the beginning of its chunk"}
	// Some devices count keys up, others draw them.
	byLuck := func(a attack, m pool.Manager) bool {
		return a.name == "reads a neighbour's chunk with keys guessed from its own" && m.Name() == type1
	}
	table := &attackTable{}
	for _, a := range attacks {
		if slices.Contains(onPackets, a.name) {
			continue
		}
		for _, m := range managers {
			t.Run(a.name+"/"+m.Name(), func(t *testing.T) {
				s := newScene(t, pooltest.RDMA, m)
				o := a.run(s)
				if o.none {
					return
				}
				want := slices.Contains(a.breaks, m.Name()) || s.boundless() && slices.Contains(overBounds, a.name)
				if o.harm != want && !byLuck(a, m) {
					t.Errorf("got: %s (harm: %v, want %v)", o.got, o.harm, want)
				}
				s.check(secret)
				table.add(a.name, m.Name(), o)
			})
		}
	}
	t.Logf("what attacks on %d managers got:\n%s", len(managers), table)
}
