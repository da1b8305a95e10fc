package daemon

import (
	"errors"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"

	"polder/internal/config"
	"polder/internal/hostmem"
	"polder/pool/pooltest"
)

func TestTheMemoryLimitGivesWayToLiveMemory(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct{ live, beside, want int64 }{
		{0, 0, goLimit},
		{1 * mib, 4 * mib, goLimit},
		{8 * mib, 6 * mib, 20 * mib}, // what a server at five nodes has
		{100 * mib, 8 * mib, 137 * mib},
	} {
		if got := memoryLimit(goLimit, tt.live, tt.beside); got != tt.want {
			t.Errorf("memoryLimit(goLimit, %d, %d) = %d, want %d", tt.live, tt.beside, got, tt.want)
		}
	}
}

// TestLittleGarbageIsNotCollectedWithoutEnd has more live than the least limit has room for.
func TestLittleGarbageIsNotCollectedWithoutEnd(t *testing.T) {
	const live, garbage = goLimit - liveHeadroom/2, 32 << 20
	kept := make([][]byte, live>>10)
	for i := range kept {
		kept[i] = make([]byte, 1<<10)
	}
	defer boundGoMemory(goLimit, goPercent)()
	runtime.GC()
	pooltest.Eventually(t, "the limit gives way", func() bool { return debug.SetMemoryLimit(-1) > goLimit })
	var before, after debug.GCStats
	debug.ReadGCStats(&before)
	for range garbage >> 10 {
		sink = make([]byte, 1<<10)
	}
	debug.ReadGCStats(&after)
	runtime.KeepAlive(kept)
	if n := after.NumGC - before.NumGC; n > 2*garbage/liveHeadroom {
		t.Errorf("%d collections of %d bytes, want one for each %d bytes", n, garbage, liveHeadroom)
	}
}

var sink []byte

// TestTheLimitFollowsEachCollection, until it is to follow no more.
func TestTheLimitFollowsEachCollection(t *testing.T) {
	var n atomic.Int64
	stop := afterCollections(func() { n.Add(1) })
	for want := range int64(3) {
		runtime.GC()
		pooltest.Eventually(t, "it is called after a collection", func() bool { return n.Load() > want })
	}
	stop()
	was := n.Load()
	for range 3 {
		runtime.GC()
	}
	if got := n.Load(); got != was {
		t.Errorf("it is called %d times after the end", got-was)
	}
}

// TestACollectionMeanwhileIsFollowed, too: one that comes while the limit follows the one before.
func TestACollectionMeanwhileIsFollowed(t *testing.T) {
	var n atomic.Int64
	defer afterCollections(func() {
		if n.Add(1) == 1 {
			runtime.GC()
		}
	})()
	runtime.GC()
	pooltest.Eventually(t, "it is called after the second collection", func() bool { return n.Load() > 1 })
}

func TestTheMemoryLimitIsGivenBack(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	stop := limitGoMemory()
	if got := debug.SetMemoryLimit(-1); got != goLimit {
		t.Errorf("the limit is %d, want %d", got, goLimit)
	}
	stop()
	if got := debug.SetMemoryLimit(-1); got != before {
		t.Errorf("the limit is %d, want %d as before", got, before)
	}
}

func TestANodeLendsWhatIsThere(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		total, available int64 // MiB
		lend             int64 // by default
		most             int64 // that is not refused
	}{
		{256 << 10, 200 << 10, 64 << 10, 184 << 10},
		{16 << 10, 11 << 10, 5 << 10, 10 << 10},
		{300, 290, 145, 226},
		{100, 90, 26, 26},
		{64, 60, 0, 0},
	} {
		m := hostmem.Memory{Total: tt.total * mib, Available: tt.available * mib, Bound: "the control group /pod"}
		if got := defaultLend(m); got != tt.lend*mib {
			t.Errorf("of %d MiB, %d available: the default is %d MiB, want %d", tt.total, tt.available, got/mib, tt.lend)
		}
		if err := checkLend(m, tt.most*mib, 0); err != nil {
			t.Errorf("of %d MiB, %d available: %d MiB are refused: %v", tt.total, tt.available, tt.most, err)
		}
		if err := checkLend(m, tt.most*mib+1, 0); !errors.As(err, new(*config.Error)) {
			t.Errorf("of %d MiB, %d available: more than %d MiB: got %v, want a refusal", tt.total, tt.available, tt.most, err)
		}
	}
	m := hostmem.Memory{Total: 300 * mib, Available: 290 * mib, Bound: "the control group /pod"}
	want := `cannot use --lend = "1GiB": expected at most 162MiB: the control group /pod, 300MiB, leaves 290MiB, of which 64MiB ` +
		`stay for the process itself and 64MiB for --local; to lend more than there is, and be killed when it is used, say --overcommit`
	if err := checkLend(m, 1<<30, 64*mib); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestALocalBudgetThatLeavesNothingIsBlamed, and not how much is to be lent beside it.
func TestALocalBudgetThatLeavesNothingIsBlamed(t *testing.T) {
	const mib = 1 << 20
	m := hostmem.Memory{Total: 300 * mib, Available: 290 * mib, Bound: "the control group /pod"}
	want := `cannot use --local = "100TiB": expected less than 226MiB: the control group /pod, 300MiB, leaves 290MiB, of which 64MiB ` +
		`stay for the process itself; to use more than there is, and be killed for it, say --overcommit`
	if err := checkLend(m, 64*mib, 100<<40); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
