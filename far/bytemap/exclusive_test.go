package bytemap

import (
	"context"
	"fmt"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/index"
)

// Whichever way an exclusive map's entries are read, those that are local afterwards have no far copy; and those that were
// brought to be read later have one until they are.
func TestAnExclusiveMapHasNothingTwice(t *testing.T) {
	get := func(ctx context.Context, m *Map, keys [][]byte) error {
		for _, k := range keys {
			if _, err := m.Get(ctx, k, nil); err != nil {
				return err
			}
		}
		return nil
	}
	for name, c := range map[string]struct {
		size, times int
		read        func(ctx context.Context, m *Map, keys [][]byte) error
	}{
		"Get":              {100, 2, get},
		"Get of long ones": {3 << 10, 2, get},
		"GetMany": {100, 2, func(ctx context.Context, m *Map, keys [][]byte) (failed error) {
			m.GetMany(ctx, keys, func(_ int, _ Entry, err error) {
				if err != nil {
					failed = err
				}
			})
			return failed
		}},
		"a Reading": {100, 2, func(ctx context.Context, m *Map, keys [][]byte) error {
			for _, k := range keys {
				var r Reading
				switch err := r.Read(ctx, m, k); err {
				case nil:
					r.End()
				case ErrLong: // it was moved meanwhile
				default:
					return err
				}
			}
			return nil
		}},
		"Get after Prefetch": {100, 1, func(ctx context.Context, m *Map, keys [][]byte) error {
			for local := 0; local == 0; { // where there is no room yet, none comes
				if err := m.Prefetch(ctx, keys...); err != nil {
					return err
				}
				twice := 0
				if local, twice = copies(m); twice < local {
					return fmt.Errorf("%d of %d entries that were prefetched have a far copy", twice, local)
				}
			}
			return get(ctx, m, keys)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := newTinyHeap(t, heap.NewMemStore(tinySegment, 4000), tiny.Logs+64<<10)
			m, err := h.New("exclusive", "", true)
			if err != nil {
				t.Fatal(err)
			}
			ctx := within(t, 30*time.Second)
			var keys [][]byte
			for i := range 50 {
				mustSet(t, m, key(i), value(uint64(i), c.size))
				keys = append(keys, key(i))
			}
			ballast := h.NewByteMap("ballast")
			evacuateBy(t, m, ballast)
			ballast.Free()
			for range c.times { // what is read again is local from then on
				if err := c.read(ctx, m, keys); err != nil {
					t.Fatal(err)
				}
			}
			if local, twice := copies(m); local == 0 || twice > 0 {
				t.Errorf("%d of %d local entries have a far copy, too", twice, local)
			}
		})
	}
}

// copies is how many entries of m are local, and how many of them have a far copy.
func copies(m *Map) (local, twice int) {
	m.eachShard(func(sh *shard) {
		for p := range sh.t.All() {
			if w := *sh.t.Word(p); w.Is(index.Entries) && !w.Far() {
				if local++; m.h.entryAt(w.Addr()).Clean() {
					twice++
				}
			}
		}
	})
	return local, twice
}
