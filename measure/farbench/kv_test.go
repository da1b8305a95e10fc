package farbench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"polder/internal/load"
	"polder/pool"
)

func TestKVRunsItsWorkloadsOnAllStores(t *testing.T) {
	o, out := tiny()
	sc := kvScale{memory: 1 << 20, keys: 500, sizes: []int{64, 4096}, workloads: "AD", rounds: 1, span: 5 * time.Millisecond}
	if err := runKV(t.Context(), o, sc); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, row := range *out {
		if !(row.Value > 0) || !(row.Ratio > 0) {
			t.Errorf("got the row %+v, want figures", row)
		}
		rival, _, _ := strings.Cut(row.Rival, ",")
		seen[row.Case+", "+rival] = true
	}
	for _, want := range []string{"tcp, YCSB A, 64 B, round trips", "tcp, YCSB D, 4096 B, far map", "shm, YCSB A, 4096 B, redis", "shm, YCSB D, 64 B, round trips"} {
		if !seen[want] {
			t.Errorf("there is no row %q", want)
		}
	}
}

// TestAKeyHasRoundTripsAtPlacesOfItsOwn: what a popular key has in a table is in the
// processor's cache, and must be so for what the table is compared with, too.
func TestAKeyHasRoundTripsAtPlacesOfItsOwn(t *testing.T) {
	o, _ := tiny()
	l, err := startLender(t.Context(), o.Polder, "shm", 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}()
	trips, err := newRoundTrips(t.Context(), l.pool, 64, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	places := func(key string) (at [3]int64) {
		s := trips.begin([]byte(key))
		defer trips.scratch.Put(s)
		for i := range at {
			at[i] = trips.op(s, pool.OpRead, s.block).Off
			if off := trips.lookup(s, pool.OpRead, s.pairs[:bucketPair]).Off; off >= trips.index {
				t.Errorf("a bucket is at %d of %d bytes", off, trips.index)
			}
		}
		return at
	}
	a, again, b := places("a"), places("a"), places("b")
	if a != again || a == b || a[0] == a[1] && a[1] == a[2] {
		t.Errorf("got the places %v and %v of a key, and %v of another, want three of each, always the same", a, again, b)
	}
}

// TestANodeThatIsGoneIsOneError, not one for each worker, and it says which store it was.
func TestANodeThatIsGoneIsOneError(t *testing.T) {
	gone := errors.New("memory node gone")
	b := &kvBench{scale: kvScale{rounds: 1, span: time.Hour}, size: 64}
	b.add("RACE", brokenStore{gone}, 100)
	err := b.measure(t.Context(), 'A', newZipf(100, load.Theta))
	if !errors.Is(err, gone) || err.Error() != "RACE: "+gone.Error() {
		t.Errorf("got %q, want %q", err, "RACE: "+gone.Error())
	}
}

// brokenStore is a store whose node is gone.
type brokenStore struct{ err error }

func (s brokenStore) get(context.Context, []byte, []byte) ([]byte, bool, error) {
	return nil, false, s.err
}
func (s brokenStore) put(context.Context, []byte, []byte, bool) error { return s.err }
