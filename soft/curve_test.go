package soft

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestTheCurveKnowsWhatMoreMemoryWouldSave(t *testing.T) {
	h := open(t, 8)
	h.curve.init(256 << 20)
	m := newMap[uint64, [1000]byte](t, h)
	const keys = 60000 // about 60 MiB, of which 16 fit
	r := rand.New(rand.NewPCG(1, 1))
	accesses := 0
	for range 10 * keys {
		k := r.Uint64N(keys)
		accesses++
		if _, ok := m.Get(k); !ok {
			if err := m.SetCost(k, [1000]byte{}, time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := h.curve.interval(1, uint64(accesses))
	now, all := c.At(h.Budget()), c.At(80<<20)
	if all < 3*now {
		t.Errorf("80 MiB would save %.1f s, what there is saves %.1f: want several times more", all, now)
	}
	if want := 0.001 * float64(accesses); all < 0.7*want || all > 1.3*want {
		t.Errorf("80 MiB would save %.1f s, want about %.1f", all, want)
	}
}
