package bytemap

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
	"polder/far/store/storetest"
)

// twins returns two keys that the index of m cannot tell apart.
func twins(t *testing.T, m *Map) (a, b []byte) {
	t.Helper()
	type where struct {
		sh  *shard
		tag uint32
	}
	seen := map[where]int{}
	for i := range 1 << 24 {
		hs := m.hash(fmt.Append(nil, "twin", i))
		at := where{m.shard(hs), hs.Tag()}
		if j, ok := seen[at]; ok {
			return fmt.Append(nil, "twin", j), fmt.Append(nil, "twin", i)
		}
		seen[at] = i
	}
	t.Fatal("no two keys have the same tag and shard")
	return nil, nil
}

// entrySize is what an entry takes of the logs.
func entrySize(key, value int) int {
	r := entry.New{Key: make([]byte, key), Value: make([]byte, value)}
	return r.Size()
}

// evacuateAll makes every entry of m far.
func evacuateAll(t *testing.T, h *testHeap, m *Map) {
	t.Helper()
	evacuateBy(t, m, h.NewByteMap("ballast"))
}

// evacuateBy makes every entry of m far by filling another map.
func evacuateBy(t *testing.T, m, other *Map) {
	t.Helper()
	for {
		local := 0
		for i := range m.shards() {
			sh := m.at(i)
			sh.mu.Lock()
			for p := range index.Place(len(sh.t.Buckets) * index.BucketEntries) {
				if w := *sh.t.Word(p); w != 0 && !w.Far() {
					local++
				}
			}
			sh.mu.Unlock()
		}
		if local == 0 {
			return
		}
		for j := range 600 {
			mustSet(t, other, key(j), value(uint64(j), 1000))
		}
	}
}

func TestLostEntryIsNotTakenForItsTwin(t *testing.T) {
	var a, b []byte
	var seed uint64
	for _, op := range []string{"Get", "Set", "Delete", "Stat"} {
		t.Run(op, func(t *testing.T) {
			store := storetest.New(tinySegment, 4000)
			h, m := newTinyHeap(t, store, tiny.Logs+64<<10) // two maps more
			if a == nil {
				a, b = twins(t, m)
				seed = h.seed
			}
			h.seed = seed
			mustSet(t, m, a, []byte("a"))
			evacuateAll(t, h, m)
			mustSet(t, m, b, []byte("b"))
			evacuateAll(t, h, m)
			first := true
			loseThat(store, m, func(w index.Word) bool {
				ok := first
				first = false
				return ok
			})
			ctx := context.Background()
			var le *heap.LostError
			if _, err := m.Get(ctx, a, nil); !errors.As(err, &le) {
				t.Fatalf("Get of the lost one: %v, want a heap.LostError", err)
			}
			switch op {
			case "Get":
				mustGet(t, m, b, []byte("b"))
			case "Stat":
				if _, size, err := m.Stat(ctx, b); err != nil || size != 1 {
					t.Fatalf("Stat: %d bytes, %v", size, err)
				}
			case "Set":
				mustSet(t, m, b, []byte("new"))
				mustGet(t, m, b, []byte("new"))
				evacuateAll(t, h, m)
				mustGet(t, m, b, []byte("new"))
			case "Delete":
				if ok, err := m.Delete(ctx, b); !ok || err != nil {
					t.Fatalf("Delete: %v, %v", ok, err)
				}
				if ent, err := m.Get(ctx, b, nil); err == nil {
					t.Fatalf("Get after Delete: %q", ent.Value)
				}
			}
		})
	}
}
