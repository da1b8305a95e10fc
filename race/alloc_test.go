package race

import (
	"testing"

	"polder/internal/invariants"
	"polder/pool/pooltest"
)

func TestAGetDoesNotAllocate(t *testing.T) {
	if invariants.Enabled {
		return // sync.Pool forgets at random under -race
	}
	table, _, _ := rig(t, pooltest.Inproc, groups, 1)
	key, buf := []byte("key"), make([]byte, 0, 100)
	if err := table.Put(t.Context(), key, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, found, err := table.Get(t.Context(), key, buf); !found || err != nil {
			t.Error(found, err)
		}
	}); n > 0 {
		t.Errorf("a get allocates %v times", n)
	}
}
