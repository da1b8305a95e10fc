package farbench

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"polder/far"
	"polder/internal/load"
	"polder/internal/proctest"
	"polder/measure/benchout"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// rows keeps what is printed.
type rows []benchout.Row

func (r *rows) Print(row benchout.Row) error {
	*r = append(*r, row)
	return nil
}

// of returns the figures of a metric, by case.
func (r rows) of(metric string) map[string]float64 {
	m := map[string]float64{}
	for _, row := range r {
		if row.Metric == metric {
			m[row.Case] = row.Value
		}
	}
	return m
}

// tiny returns options that gather rows.
func tiny() (Options, *rows) {
	out := &rows{}
	return Options{Out: out, Polder: proctest.Binary(), Short: true}, out
}

func TestMapMissesWhereItMust(t *testing.T) {
	o, out := tiny()
	err := runMap(t.Context(), o, mapScale{entries: 1 << 16, skews: []float64{0, 1.35}, rounds: 1,
		span: 10 * time.Millisecond, settle: 100 * time.Millisecond, gc: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	misses, gets := out.of("misses"), out.of("get")
	for _, c := range []struct {
		name        string
		least, most float64
	}{
		{"s=0.00, tcp, 20% local", 40, 95},
		{"s=0.00, shm, 20% local", 40, 95},
		{"s=0.00, tcp, 50% local", 5, 75},
		{"s=1.35, shm, 50% local", 0, 30},
	} {
		if v, ok := misses[c.name]; !ok || v < c.least || v > c.most {
			t.Errorf("%s: %v %% misses (printed: %v), want %v to %v", c.name, v, ok, c.least, c.most)
		}
		if gets[c.name] <= 0 {
			t.Errorf("%s: %v gets a second", c.name, gets[c.name])
		}
	}
	for _, row := range *out {
		if row.Rival == "bound" && !(row.Ratio > 0) {
			t.Errorf("got the row %+v, want a ratio", row)
		}
	}
	if _, ok := out.of("CPU share")["garbage collection, all local"]; !ok {
		t.Error("nothing is said of garbage collection")
	}
}

// TestCollectionsAreOfOneMap: what the map behind locks holds is in neither heap that is measured.
func TestCollectionsAreOfOneMap(t *testing.T) {
	const entries, other = 1 << 10, 128 << 20
	local, err := openFarMap(t.Context(), "", far.NewMemStore(1<<20, 64), 32<<20, entries)
	if err != nil {
		t.Fatal(err)
	}
	defer local.heap.Close()
	o, out := tiny()
	b := &mapBench{scale: mapScale{entries: entries, gc: time.Millisecond}, out: o.Out, plain: map[string][]byte{}, lock: newLockedMap(1 << 20), local: local}
	for k := range uint32(entries) {
		b.plain[string(load.Key(k))] = load.Value(k, valueSize)
	}
	b.lock.add("other", make([]byte, other))
	if err := b.collections(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, row := range *out {
		if row.Metric == "Go heap" && (row.Value >= other>>20 || row.RivalValue >= other>>20) {
			t.Errorf("got heaps of %v and %v MiB, want less than the map behind locks has", row.Value, row.RivalValue)
		}
	}
	if len(*out) == 0 {
		t.Error("nothing was measured")
	}
}

func TestACollectionThatHasNotEndedHasNoShare(t *testing.T) {
	for _, c := range []struct{ gc, idle, user, want float64 }{{0, 0, 0, 0}, {0.1, 0, 0, 0}, {0, 0, 3, 0}, {1, 0, 3, 25}, {3, 2, 3, 25}} {
		if got := share(c.gc, c.idle, c.user); got != c.want {
			t.Errorf("%v s of the collector's, %v s of them idle, and %v s of the program's: got %v %%, want %v %%", c.gc, c.idle, c.user, got, c.want)
		}
	}
}

func TestMapWithoutRedisSaysSo(t *testing.T) {
	t.Setenv("PATH", "/nonexistent")
	var said []string
	b := &mapBench{note: func(what string) { said = append(said, what) }}
	r, err := b.startRedis(t.Context())
	if r != nil || err != nil || len(said) != 1 || !strings.Contains(said[0], "redis-server is not installed") {
		t.Errorf("got %v, %v, and the notes %q", r, err, said)
	}
}

func TestZipfDrawsAsItSays(t *testing.T) {
	const n, draws = 100, 200_000
	for _, s := range []float64{0, 0.8, 1, 1.35} {
		z := newZipf(n, s)
		r := rand.New(rand.NewPCG(1, 1))
		var got [n]int
		for range draws {
			got[z.rank(r)]++
		}
		sum := 0.0
		for i := range n {
			sum += math.Pow(float64(i+1), -s)
		}
		for _, rank := range []int{0, 1, 9, 99} {
			want := math.Pow(float64(rank+1), -s) / sum * draws
			if d := math.Abs(float64(got[rank]) - want); d > 6*math.Sqrt(want)+1 {
				t.Errorf("s=%v: rank %d came %d times, want about %.0f", s, rank, got[rank], want)
			}
		}
	}
}
