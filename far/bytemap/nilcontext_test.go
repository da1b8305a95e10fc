package bytemap

import (
	"context"
	"fmt"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/store"
	"polder/far/store/storetest"
)

// A call that gets a nil context where it has to wait panics, and a program may go on after that: other calls find no
// lock held, nobody waits for what the call set out to read, and the heap can be closed.
func TestACallWithANilContextKeepsNobodyWaiting(t *testing.T) {
	calls := map[string]func(ctx context.Context, m *Map, k []byte) error{
		"Get": func(ctx context.Context, m *Map, k []byte) error { _, err := m.Get(ctx, k, nil); return err },
		"GetMany": func(ctx context.Context, m *Map, k []byte) (err error) {
			m.GetMany(ctx, [][]byte{k}, func(_ int, _ Entry, e error) { err = e })
			return err
		},
		"Stat":     func(ctx context.Context, m *Map, k []byte) error { _, _, err := m.Stat(ctx, k); return err },
		"Set":      func(ctx context.Context, m *Map, k []byte) error { return m.Set(ctx, k, Entry{Value: k}) },
		"Delete":   func(ctx context.Context, m *Map, k []byte) error { _, err := m.Delete(ctx, k); return err },
		"Prefetch": func(ctx context.Context, m *Map, k []byte) error { return m.Prefetch(ctx, k) },
		"Update": func(ctx context.Context, m *Map, k []byte) error {
			return m.Update(ctx, k, func(old Entry, _ bool) (Entry, Verdict, error) { return old, Put, nil })
		},
		"Scan": func(ctx context.Context, m *Map, _ []byte) (err error) {
			for cursor, more := uint64(0), true; more && err == nil; more = cursor != 0 {
				cursor, err = m.Scan(ctx, cursor, func([]byte, Entry) {})
			}
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			mustEnd(t)
			_, m := newTinyHeap(t, storetest.New(tinySegment, 1000), 0)
			fillTiny(t, m, 1000)
			callWithNil(t, m, farKeys(t, m, 1000)[0], call)
		})
		t.Run(name+" of what only a leaf knows", func(t *testing.T) {
			mustEnd(t)
			st := &findingStore{Store: heap.NewMemStore(64<<10, 4000), lie: func([]store.Lookup) {}}
			_, m := openEarly(t, st, 400<<10)
			fillEarly(t, within(t, time.Minute), m, earlyKeys)
			for i := range earlyKeys {
				k := fmt.Append(nil, "key", i)
				if _, err := m.Get(heap.NoWait, k, nil); err == heap.ErrWouldBlock {
					callWithNil(t, m, k, call)
					return
				}
			}
			t.Fatal("nothing is far")
		})
	}
}

// callWithNil makes a call that panics, and then the same call as it should be.
func callWithNil(t *testing.T, m *Map, k []byte, call func(ctx context.Context, m *Map, k []byte) error) {
	t.Helper()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a call with a nil context has not panicked")
			}
		}()
		_ = call(nil, m, k)
	}()
	if err := call(within(t, 5*time.Second), m, k); err != nil {
		t.Errorf("the call after one with a nil context: %v", err)
	}
}

// mustEnd ends the tests if t does not end soon, with its cleanup: a heap of which a lock is held cannot be closed.
func mustEnd(t *testing.T) {
	stuck := time.AfterFunc(20*time.Second, func() { panic("a call after one with a nil context is stuck") })
	t.Cleanup(func() { stuck.Stop() })
}
