package bytemap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/store/storetest"
)

// txnPlayer makes transactions of the keys that begin with its name, and
// knows what there must be under them.
type txnPlayer struct {
	t    *testing.T
	name string
	r    *rand.Rand
	m    *Map
	txn  *Txn
	want map[string][]byte
}

func (pl *txnPlayer) key() string { return fmt.Sprint(pl.name, pl.r.IntN(300)) }

// play makes one transaction, which is rolled back if any of its changes
// fails, and sometimes without a reason.
func (pl *txnPlayer) play(ctx context.Context) (failed error) {
	after := maps.Clone(pl.want)
	for range pl.r.IntN(20) {
		k := pl.key()
		var err error
		if pl.r.IntN(3) == 0 {
			keys := [][]byte{[]byte(k)}
			for range pl.r.IntN(4) {
				keys = append(keys, []byte(pl.key()))
			}
			gone := make([]bool, len(keys))
			err = pl.txn.DeleteMany(ctx, pl.m, keys, gone)
			for i, k := range keys {
				if _, there := after[string(k)]; err == nil && gone[i] != there {
					pl.t.Errorf("DeleteMany of %q: %q was there: got %v, want %v", keys, k, gone[i], there)
				}
				delete(after, string(k)) // what fails is rolled back
			}
		} else {
			size := pl.r.IntN(3000)
			if pl.r.IntN(20) == 0 {
				size = pl.r.IntN(4 * pl.m.h.pieces)
			}
			v := value(pl.r.Uint64(), size)
			if err = pl.txn.Set(ctx, pl.m, []byte(k), Entry{Value: v}); err == nil {
				after[k] = v
			}
		}
		if err != nil {
			pl.txn.Rollback()
			return err
		}
		if pl.r.IntN(3) == 0 {
			pl.check(pl.key(), after)
		}
	}
	if pl.r.IntN(3) == 0 {
		pl.txn.Rollback()
		return nil
	}
	pl.txn.Commit()
	pl.want = after
	return nil
}

// check compares a key with what want has of it, if the store allows it.
func (pl *txnPlayer) check(k string, want map[string][]byte) {
	pl.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	e, err := pl.m.Get(ctx, []byte(k), nil)
	v, there := want[k]
	switch {
	case errors.Is(err, storetest.ErrInjected):
	case there != (err == nil) || !there && !errors.Is(err, ErrNotFound):
		pl.t.Errorf("Get(%q): got %v, there: %v", k, err, there)
	case !bytes.Equal(e.Value, v):
		pl.t.Errorf("Get(%q): got %d bytes, want %d others", k, len(e.Value), len(v))
	}
}

// Transactions count together or not at all, whatever the store does, while the
// evacuator and the cleaner move what they have stored and what they replace.
func TestTransactionsCountTogetherOrNotAtAll(t *testing.T) {
	for _, c := range []struct {
		name     string
		segments int
		flaky    int64
	}{{"a good store", 1000, 0}, {"a flaky store", 1000, 50}, {"a store that is often full", 28, 0}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store := storetest.New(testSegment, c.segments)
			h, m := newTestHeap(t, store, testConfig{MaxValue: 1 << 20})
			store.Flaky.Store(c.flaky)
			var players [4]*txnPlayer
			var wg sync.WaitGroup
			var mu sync.Mutex
			failed := 0
			for i := range players {
				pl := &txnPlayer{t, fmt.Sprint("player", i, ":"), rand.New(rand.NewPCG(1, uint64(i))), m, h.NewTxn(), map[string][]byte{}}
				players[i] = pl
				wg.Go(func() {
					filler := h.NewByteMap(pl.name) // pushes what is local out, or is what fills the store
					for n := range 300 {
						ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
						if pl.r.IntN(4) == 0 {
							cancel() // whatever would have to wait fails
						}
						if pl.play(ctx) != nil {
							mu.Lock()
							failed++
							mu.Unlock()
						}
						cancel()
						for range 4 {
							filler.Set(heap.NoWait, key(n%250), Entry{Value: value(uint64(n), 4096)})
						}
					}
				})
			}
			wg.Wait()
			store.Flaky.Store(0)
			n := 0
			for _, pl := range players {
				for i := range 300 {
					pl.check(fmt.Sprint(pl.name, i), pl.want)
				}
				n += len(pl.want)
			}
			if got := m.Len(); got != n {
				t.Errorf("Len: got %d, want %d", got, n)
			}
			if failed < 20 {
				t.Errorf("%d transactions failed: the test has not tested what it should", failed)
			}
		})
	}
}

// Who iterates over a map meets neither what a transaction has stored nor misses
// what it has removed before it is committed; the transaction itself does.
func TestScanGoesByWhatIsCommitted(t *testing.T) {
	h, m := newTestHeap(t, heap.NewMemStore(testSegment, 10), testConfig{})
	mustSet(t, m, []byte("old"), []byte("v"))
	txn := h.NewTxn()
	ctx := context.Background()
	scan := func(scan func(yield func([]byte, Entry)) error) string {
		keys := ""
		if err := scan(func(k []byte, _ Entry) { keys += string(k) + " " }); err != nil {
			t.Fatal(err)
		}
		return keys
	}
	outside := func() string {
		return scan(func(yield func([]byte, Entry)) error {
			for cursor := uint64(0); ; {
				next, err := m.Scan(ctx, cursor, yield)
				if cursor = next; err != nil || next == 0 {
					return err
				}
			}
		})
	}
	inside := func() string {
		return scan(func(yield func([]byte, Entry)) error {
			for cursor := uint64(0); ; {
				next, err := txn.Scan(ctx, m, cursor, yield)
				if cursor = next; err != nil || next == 0 {
					return err
				}
			}
		})
	}
	if _, err := txn.Delete(ctx, m, []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := txn.Set(ctx, m, []byte("new"), Entry{}); err != nil {
		t.Fatal(err)
	}
	if got := outside(); got != "old " {
		t.Errorf("Scan before Commit: got %q, want %q", got, "old ")
	}
	if got := inside(); got != "new " {
		t.Errorf("Scan in the transaction: got %q, want %q", got, "new ")
	}
	txn.Commit()
	if got := outside(); got != "new " {
		t.Errorf("Scan after Commit: got %q, want %q", got, "new ")
	}
}

// A map that a transaction has cleared is what it was when that is rolled back.
func TestClearIsRolledBack(t *testing.T) {
	h, m := newTestHeap(t, heap.NewMemStore(testSegment, 1000), testConfig{MaxValue: 1 << 20})
	const n = 2000
	for i := range n {
		mustSet(t, m, key(i), value(uint64(i), 4096))
	}
	mustSet(t, m, []byte("big"), value(7, 10*h.pieces))
	ctx := context.Background()
	txn := h.NewTxn()
	change := func() {
		t.Helper()
		txn.Delete(ctx, m, key(1))
		txn.Clear(m)
		if err := txn.Set(ctx, m, key(2), Entry{Value: []byte("new")}); err != nil {
			t.Fatal(err)
		}
		if got := m.Len(); got != 1 {
			t.Errorf("Len in the transaction: got %d, want 1", got)
		}
		if _, err := m.Get(ctx, key(3), nil); !errors.Is(err, ErrNotFound) {
			t.Errorf("Get of a key that was cleared: %v", err)
		}
	}
	change()
	txn.Rollback()
	for i := range n {
		mustGet(t, m, key(i), value(uint64(i), 4096))
	}
	mustGet(t, m, []byte("big"), value(7, 10*h.pieces))
	if got := m.Len(); got != n+1 {
		t.Errorf("Len after Rollback: got %d, want %d", got, n+1)
	}
	change()
	txn.Commit()
	mustGet(t, m, key(2), []byte("new"))
	if got := m.Len(); got != 1 {
		t.Errorf("Len after Commit: got %d, want 1", got)
	}
}

// A key that a transaction has changed is nobody else's until that ends.
func TestTransactionsDoNotShareAKey(t *testing.T) {
	h, m := newTestHeap(t, heap.NewMemStore(testSegment, 10), testConfig{})
	ctx := context.Background()
	a, b := h.NewTxn(), h.NewTxn()
	if err := a.Set(ctx, m, []byte("k"), Entry{}); err != nil {
		t.Fatal(err)
	}
	if err := b.Set(ctx, m, []byte("k"), Entry{}); !errors.Is(err, ErrConflict) {
		t.Errorf("Set in another transaction: got %v, want ErrConflict", err)
	}
	if _, err := b.Delete(ctx, m, []byte("k")); !errors.Is(err, ErrConflict) {
		t.Errorf("Delete in another transaction: got %v, want ErrConflict", err)
	}
	if err := m.Set(ctx, []byte("k"), Entry{}); !errors.Is(err, ErrConflict) {
		t.Errorf("Set outside: got %v, want ErrConflict", err)
	}
	a.Rollback()
	if err := b.Set(ctx, m, []byte("k"), Entry{}); err != nil {
		t.Errorf("Set when the other transaction has ended: %v", err)
	}
	b.Commit()
}

// What a transaction deletes at a time counts together or not at all, too, wherever it
// is, and however many of them are in one shard.
func TestATransactionDeletesManyOrNone(t *testing.T) {
	h, m := newTestHeap(t, heap.NewMemStore(testSegment, 1000), testConfig{})
	ctx, n := t.Context(), 20*h.shards
	keys := [][]byte{[]byte("nosuch")}
	for i := range n {
		keys = append(keys, key(i))
		if err := m.Set(ctx, key(i), Entry{Value: value(uint64(i), 4000)}); err != nil {
			t.Fatal(err)
		}
	}
	keys = append(keys, key(1), key(2)) // once more
	txn, gone := h.NewTxn(), make([]bool, len(keys))
	if err := txn.DeleteMany(heap.NoWait, m, keys, gone); !errors.Is(err, heap.ErrWouldBlock) {
		t.Errorf("DeleteMany of keys that are far, without waiting: got %v, want heap.ErrWouldBlock", err)
	}
	txn.Rollback()
	other := h.NewTxn()
	if err := other.Set(ctx, m, key(n/2), Entry{}); err != nil {
		t.Fatal(err)
	}
	if err := txn.DeleteMany(ctx, m, keys, gone); !errors.Is(err, ErrConflict) {
		t.Errorf("DeleteMany of keys one of which another transaction has set: got %v, want ErrConflict", err)
	}
	txn.Rollback()
	other.Rollback()
	if got := m.Len(); got != n {
		t.Errorf("got %d entries after three rollbacks, want %d", got, n)
	}
	if err := txn.DeleteMany(ctx, m, keys, gone); err != nil {
		t.Fatal(err)
	}
	for i, was := range gone {
		if want := i > 0 && i <= n; was != want {
			t.Errorf("key %d of %d, %q, was there: got %v, want %v", i, len(keys), keys[i], was, want)
		}
	}
	txn.Commit()
	if got := m.Len(); got != 0 {
		t.Errorf("got %d entries after all have been deleted, want none", got)
	}
}

// A transaction that clears a map again and again goes through it once: with the
// locks of its callers held it would otherwise take the product of both.
func TestTxnClearsAnEmptyMapInNoTime(t *testing.T) {
	h, m := newTestHeap(t, heap.NewMemStore(1<<20, 1<<10), testConfig{Local: 64 << 20})
	for i := range 100_000 {
		if err := m.Set(context.Background(), fmt.Append(nil, i), Entry{Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
	}
	txn := h.NewTxn()
	took := func(n int) time.Duration {
		start := time.Now()
		for range n {
			txn.Clear(m)
		}
		return time.Since(start)
	}
	once := took(1)
	if again := took(1000); again > 100*once {
		t.Errorf("to clear 100,000 entries took %v, and to clear none 1000 times %v, want less than 100 times as long", once, again)
	}
	txn.Rollback()
	if n := m.Len(); n != 100_000 {
		t.Errorf("after the rollback there are %d entries, want 100000", n)
	}
}
