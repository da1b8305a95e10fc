package bytemap

import (
	"fmt"
	"testing"

	"polder/far/entry"
	"polder/far/heap"
)

// Whoever has a heap's seed finds its keys: the hash is the same in every process and on
// every machine.
func TestTheHashOfAKeyIsTheSeedsAlone(t *testing.T) {
	h, m := newTestHeap(t, heap.NewMemStore(testSegment, 10), testConfig{})
	h.seed = 42
	for key, want := range map[string]entry.Hash{"": 0xb029411ff4, "key": 0x67197794b2, "a key of more than sixteen bytes": 0x6669d0a2ac} {
		if got := m.hash([]byte(key)); got != want {
			t.Errorf("%q: got %#x, want %#x", key, got, want)
		}
	}
	before := m.hash([]byte("key"))
	h.seed++
	if m.hash([]byte("key")) == before {
		t.Error("the hash is the same with another seed")
	}
}

// Keys spread over the shards, and over each shard's table, also where there are more
// shards than the hash has bits beside the tag.
func TestKeysSpreadOverShardsAndTables(t *testing.T) {
	h, _ := newTestHeap(t, heap.NewMemStore(testSegment, 10), testConfig{})
	m := &Map{h: &Maps{core: h.core, seed: h.seed, shards: 4096}}
	m.open()
	const each, parts = 64, 4
	var got [4096][parts]int
	for i := range each * len(m.shards()) {
		hs := m.hash(fmt.Append(nil, i))
		got[m.shard(hs).id][hs.Tag()>>30]++
	}
	for s := range got {
		for part, n := range got[s] {
			if n > 5*each/parts {
				t.Fatalf("%d keys are in quarter %d of shard %d's table, want about %d", n, part, s, each/parts)
			}
		}
	}
}
