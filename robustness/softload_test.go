package robustness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/internal/child"
	"polder/internal/fdpass"
	"polder/internal/proctest"
	"polder/soft/wire"
)

// loaded is a cache with its clients.
type loaded struct {
	*application
	p      *child.Process
	missed float64 // part of what was asked for last
}

func startLoaded(t *testing.T, socket string, keys int) *loaded {
	t.Helper()
	p := startCache(t, socket)
	return &loaded{application: newApplication(t, p, keys), p: p}
}

// asks has the cache's clients ask for n values. A wrong one ends the test.
func (l *loaded) asks(t *testing.T, n int) {
	t.Helper()
	missed, err := l.ask(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	l.missed = float64(missed) / float64(n)
}

// well reports whether the cache answers at least 95 % of what it is asked.
func (l *loaded) well() bool { return l.missed <= 0.05 }

// converges lets load act until done, and gives a busy machine the time that it takes.
func converges(t *testing.T, what string, load func(), done func() bool) {
	t.Helper()
	for end := time.Now().Add(4 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if load(); done() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// TestMemoryFollowsTheLoadOfRealClients: the clients of two caches, of which nobody says
// what values cost, use more than half of the memory through both doors; only those of
// one cache are busy at a time. At last the cache that has most is stopped.
func TestMemoryFollowsTheLoadOfRealClients(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	startCoordinator(t, socket, "--grace", "10ms", "--max", "64MiB")
	a, b := startLoaded(t, socket, 9500), startLoaded(t, socket, 9500)
	busy := func(hot, idle *loaded, what string) {
		t.Helper()
		converges(t, what, func() { hot.asks(t, 2000); idle.asks(t, 2) }, func() bool {
			return hot.well() && granted(t, hot.redis) >= 40*mib && granted(t, idle.redis) <= 24*mib
		})
	}
	busy(a, b, "the busy cache has what it needs, and the other one little")
	busy(b, a, "the other one has what it needs, now that it is busy")
	if os.Getenv("TEST_SOAK") != "" {
		for range 10 {
			busy(a, b, "the first one is busy again")
			busy(b, a, "the second one is busy again")
		}
	}
	if err := b.p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	converges(t, "the first one has what it needs, now that the other one is stopped", func() { a.asks(t, 2000) }, func() bool {
		return a.well() && granted(t, a.redis) >= 40*mib
	})
	if err := b.p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.asks(t, 200) // what was taken is missed, and nothing is wrong
}

// TestAWeightDecidesBetweenThreeCachesThatAreAlike: there is room for what one of them
// needs and a little for the others. The operator changes his mind about which.
func TestAWeightDecidesBetweenThreeCachesThatAreAlike(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "weights")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := startCoordinator(t, socket, "--grace", "10ms", "--max", "64MiB", "--weights", file)
	var caches []*loaded
	for range 3 {
		caches = append(caches, startLoaded(t, socket, 7000))
	}
	for i := range 2 {
		chosen := caches[i]
		if err := os.WriteFile(file, fmt.Appendf(nil, "name:polder serve %s = 1000\n", chosen.p.Addr("redis")), 0o600); err != nil {
			t.Fatal(err)
		}
		hangUp(t, c)
		converges(t, fmt.Sprintf("cache %d has what it needs, and the others have little", i), func() {
			for _, l := range caches {
				l.asks(t, 1000)
			}
		}, func() bool {
			for _, l := range caches {
				if l != chosen && granted(t, l.redis) > 26*mib {
					return false
				}
			}
			return chosen.well() && granted(t, chosen.redis) >= 30*mib
		})
	}
}

// softLiar is the first argument of this test program as a client of the coordinator's
// that lies.
const softLiar = "soft-liar"

// lie registers with a coordinator, claims to save more than anybody could, uses all that
// it is granted, never reads what it is told, and gives nothing back.
func lie(socket string) error {
	const segments = 1024
	memory, err := arena.NewMemfd("liar", segments*wire.SegmentSize)
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(memory.File().Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW); err != nil {
		return err
	}
	table, err := arena.NewMemfd("liar", wire.ControlSize(segments))
	if err != nil {
		return err
	}
	if err := table.SealSize(); err != nil {
		return err
	}
	m, err := table.Map(0, table.Size(), true)
	if err != nil {
		return err
	}
	ctl, err := wire.InitControl(m, segments)
	if err != nil {
		return err
	}
	b, err := memory.Map(0, segments*wire.SegmentSize, true)
	if err != nil {
		return err
	}
	conn, err := fdpass.Dial(socket)
	if err != nil {
		return err
	}
	if err := conn.SendFDs(wire.Encode(wire.KindHello, wire.Hello{Version: wire.Version, Name: "liar", Weight: 1e6}), memory.File(), table.File()); err != nil {
		return err
	}
	r := wire.Report{Live: 1 << 40}
	r.Curve.Unit, r.Curve.Accesses, r.Curve.Total = 1<<20, 1e6, 1e15
	for i := range 80 {
		r.Curve.Saved = append(r.Curve.Saved, float64(i)*1e12)
	}
	for {
		r.Misses += 1e9
		r.RebuildSeconds += 1e9
		if err := conn.Send(wire.Encode(wire.KindReport, r)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		for i := range segments {
			if ctl.Granted(uint32(i)) {
				for p := 0; p < wire.SegmentSize; p += arena.PageSize {
					b.Bytes()[i*wire.SegmentSize+p] = 1
				}
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestALiarHarmsNobody: what a cache needs at least it keeps while a client that lies asks
// for everything, and when that client is killed while it has most of the memory, the cache
// gets all it can use.
func TestALiarHarmsNobody(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	c := startCoordinator(t, socket, "--grace", "10ms", "--max", "64MiB")
	honest := startLoaded(t, socket, 2000)
	converges(t, "the cache has what it is asked for", func() { honest.asks(t, 1000) }, honest.well)
	liar, err := child.Start(child.Command{Path: self, Args: []string{softLiar, socket}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(liar.Kill)
	most := func() bool {
		return proctest.State(t, c).Metrics.Sum("polder_coordinator_client_resident_bytes", "name=liar") >= 32*mib
	}
	converges(t, "the liar has most of the memory", func() { honest.asks(t, 200) }, func() bool {
		select {
		case <-liar.Done():
			t.Fatalf("the liar has ended: %v\n%s", liar.Err(), liar.Stderr())
		default:
		}
		return most()
	})
	converges(t, "the cache has what it is asked for beside the liar", func() { honest.asks(t, 2000) }, func() bool { return honest.well() && most() })
	liar.Kill()
	honest.keys = 12000
	converges(t, "the cache has all of the memory after the liar's death", func() { honest.asks(t, 4000) }, func() bool {
		return honest.well() && granted(t, honest.redis) >= 52*mib
	})
	if n := proctest.State(t, c).Metrics.Int("polder_coordinator_clients"); n != 1 {
		t.Errorf("there are %d clients, want the one that is left", n)
	}
}
