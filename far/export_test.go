package far

import (
	"context"
	"iter"
	"testing"

	"polder/far/heap"
)

// OpenTiny makes a heap of which the logs are segments of 16 KiB.
func OpenTiny(t testing.TB, store heap.Store, segments int) *Heap {
	return openObjects(t, store, segments)
}

// allKeys iterates over the keys of m, as Map.Keys does.
func allKeys(ctx context.Context, m *ByteMap) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for cursor := uint64(0); ; {
			var keys [][]byte
			next, err := m.Scan(ctx, cursor, func(key []byte, _ Entry) { keys = append(keys, key) })
			if err != nil {
				yield(nil, err)
				return
			}
			for _, k := range keys {
				if !yield(k, nil) {
					return
				}
			}
			if cursor = next; next == 0 {
				return
			}
		}
	}
}
