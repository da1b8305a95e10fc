package resp

import (
	"testing"
	"time"

	"polder/soft"
)

// TestACacheLearnsWhatMissesCostFromItsClients: clients ask for keys in vain, take their
// time, and store them.
func TestACacheLearnsWhatMissesCostFromItsClients(t *testing.T) {
	const takes = 10 * time.Millisecond
	for _, tt := range []struct {
		miss, then string
		rebuilds   uint64
		together   time.Duration // values that are made in that time
	}{
		{"get user:1", "set user:1 v", 1, 1},
		{"get user:1", "set user:1 v ex 100", 1, 1},
		{"get user:1", "set user:1 v nx", 1, 1},
		{"get user:1", "setex user:1 100 v", 1, 1},
		{"get user:1", "setnx user:1 v", 1, 1},
		{"mget user:1 user:2 user:3 user:4", "mset user:1 v user:2 v user:3 v user:4 v", 4, 4},
		{"mget user:1 user:2", "set user:2 v", 1, 2},
		{"exists user:1", "set user:1 v", 1, 1},
		{"hgetall user:1", "hset user:1 f v g w", 1, 1},
		{"get user:1", "set user:2 v", 0, 1},
		{"hset user:1 f v", "hset user:1 g v", 0, 1}, // nobody was told that there is none
		{"set user:1 v get", "set user:1 v", 0, 1},
	} {
		_, heap, addr := startCache(t, Config{}, soft.Config{Budget: roomy})
		c := dial(t, addr)
		began := time.Now()
		c.words(tt.miss)
		time.Sleep(takes)
		c.words(tt.then)
		most := time.Since(began)
		s := heap.Stats()
		if s.Rebuilds != tt.rebuilds {
			t.Errorf("%s, then %s: got %d rebuilds, want %d", tt.miss, tt.then, s.Rebuilds, tt.rebuilds)
		}
		n := time.Duration(tt.rebuilds)
		if least := takes / tt.together * n; s.RebuildTime < least || s.RebuildTime > most/tt.together*n+n {
			t.Errorf("%s, then %s: got a rebuild time of %v, want %v to %v", tt.miss, tt.then, s.RebuildTime, least, most/tt.together*n)
		}
	}
}

func TestAMissOfOneConnectionIsNotMadeGoodByAnother(t *testing.T) {
	_, heap, addr := startCache(t, Config{}, soft.Config{Budget: roomy})
	c, other := dial(t, addr), dial(t, addr)
	c.words("get k")
	other.words("set k v")
	if n := heap.Stats().Rebuilds; n != 0 {
		t.Errorf("what another client stores counts as %d rebuilds", n)
	}
}
