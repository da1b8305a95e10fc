package coordinator

import (
	"math"
	"path/filepath"
	"testing"
	"time"

	"polder/internal/fdpass"
	"polder/internal/hostmem"
	"polder/soft/mrc"
	"polder/soft/policy"
	"polder/soft/wire"
)

// restarted is a coordinator without goroutines that has just begun, at a time
// that the test says; what happens is what step does.
type restarted struct {
	*Coordinator
	t    *testing.T
	host *fakeHost
	now  time.Time
	path string
}

func restart(t *testing.T, idle int64, max int64) *restarted {
	t.Helper()
	r := &restarted{t: t, host: newHost(idle), now: time.Unix(1e9, 0), path: filepath.Join(t.TempDir(), "s")}
	cfg := Config{Socket: r.path, Host: r.host, Reserve: reserve, Max: max, Logger: quiet, Policy: &policy.Curves{}}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	r.Coordinator = &Coordinator{cfg: cfg, idle: hostmem.Idle{Reserve: cfg.Reserve}, begun: r.now, sessions: map[uint64]*session{}}
	return r
}

// come registers a client that says it has segments and has touched some of
// them, from the first on.
func (r *restarted) come(claimed, touched int) (*session, *rawClient) {
	r.t.Helper()
	lis, err := fdpass.Listen(r.path, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	defer lis.Close()
	raw := connect(r.t, r.path, 1024)
	sock, err := lis.AcceptUnix()
	if err != nil {
		r.t.Fatal(err)
	}
	conn, err := fdpass.New(sock)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	for i := range uint32(claimed) {
		raw.ctl.Grant(i)
		raw.ctl.SetRank(i, 1)
	}
	for i := range touched {
		for p := 0; p < segmentSize; p += 4096 {
			raw.bytes[i*segmentSize+p] = 1
		}
	}
	raw.hello(r.t, polite)
	s, err := r.register(conn, fdpass.Peer{PID: 1})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.close() })
	r.enter(s, r.now)
	return s, raw
}

// pass lets time pass.
func (r *restarted) pass(d time.Duration) {
	r.t.Helper()
	for end := r.now.Add(d); r.now.Before(end); r.now = r.now.Add(hostmem.Calm) {
		mem, err := r.host.Read()
		if err != nil {
			r.t.Fatal(err)
		}
		r.idle.Note(mem)
		r.measure()
		r.step(r.now)
	}
}

// reports lets a client say what it would gain by every byte, by each less than
// by the one before.
func (s *session) reports(gain float64) {
	c := mrc.Curve{Unit: 1 << 20, Saved: make([]float64, 81)}
	for i := range c.Saved {
		c.Saved[i] = gain * math.Sqrt(float64(c.Size(i)))
	}
	s.report, s.first = wire.Report{Curve: c}, false
}

func want(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %d segments, want %d", what, got, want)
	}
}

func TestWhoComesBackFirstIsGivenNothingThatBelongsToOthers(t *testing.T) {
	r := restart(t, reserve+64<<20, 64<<20)
	first, _ := r.come(16, 16)
	first.reports(1)
	r.pass(4 * time.Second)
	want(t, "the first one, before the others are back", first.count, 16)
	second, _ := r.come(16, 16)
	want(t, "the second one, when it comes back", second.count, 16)
	second.reports(1)
	r.pass(900 * time.Millisecond)
	want(t, "the second one, at the end of the grace period", second.count, 16)
	r.pass(10 * time.Second)
	if first.count < 15 || second.count < 15 {
		t.Errorf("in the end they have %d and %d segments, of whom none gains more: want 16 each, or nearly", first.count, second.count)
	}
}

func TestWhoNeverComesBackDelaysNobody(t *testing.T) {
	r := restart(t, reserve+64<<20, 64<<20)
	s, _ := r.come(16, 16)
	s.reports(1)
	r.pass(r.cfg.Grace)
	want(t, "before the grace period is over", s.count, 16)
	r.pass(2 * time.Second)
	want(t, "after it", s.count, 32)
}

// TestWhoComesBackLateIsHeardBeforeAnythingIsTaken: all of the memory has been
// given to the first one meanwhile.
func TestWhoComesBackLateIsHeardBeforeAnythingIsTaken(t *testing.T) {
	r := restart(t, reserve+64<<20, 64<<20)
	first, _ := r.come(16, 16)
	first.reports(1)
	r.pass(r.cfg.Grace + 2*time.Second)
	want(t, "the first one", first.count, 32)
	late, _ := r.come(16, 16)
	want(t, "the late one, when it comes", late.count, 16)
	r.pass(2 * time.Second)
	want(t, "the late one, of which nothing is known", late.count, 16)
	late.reports(5)
	r.pass(4 * time.Second)
	if late.count < 20 {
		t.Errorf("the late one, which gains more, has %d segments, want most of 32", late.count)
	}
}

// TestNothingIsKeptFromTheHostMeanwhile: less than the reserve is left while the
// grace period lasts.
func TestNothingIsKeptFromTheHostMeanwhile(t *testing.T) {
	r := restart(t, reserve+64<<20, 0)
	a, rawA := r.come(32, 32)
	b, _ := r.come(16, 16)
	a.reports(1)
	b.reports(1)
	r.host.idle.Store(reserve - 8<<20) // not urgent
	r.pass(time.Second)
	if a.count+b.count > 48-4 || a.count > 32 || b.count > 16 {
		t.Errorf("of 48 segments %d and %d are left, want 4 less, and more for nobody", a.count, b.count)
	}
	r.host.idle.Store(0) // urgent, and nothing helps
	r.pass(time.Second)
	want(t, "when the host needs everything", a.count+b.count, 0)
	want(t, "in the table", rawA.granted(), 0)
}

// TestWhoSaysThatItHasMuchIsNotBelieved: a client claims far more than exists,
// and that what does not exist may well be taken first. The host needs memory.
func TestWhoSaysThatItHasMuchIsNotBelieved(t *testing.T) {
	r := restart(t, reserve+64<<20, 1<<30)
	honest, _ := r.come(32, 32)
	honest.reports(1)
	liar, raw := r.come(1024, 40)
	for i := range uint32(40) {
		raw.ctl.SetRank(i, 100)
	}
	want(t, "the honest one", honest.count, 32)
	want(t, "the liar, of 1 GiB in all", liar.count, 512-32)
	r.host.idle.Store(reserve / 4)
	before := liar.resident
	r.pass(hostmem.Calm) // to look once is enough
	if freed := before - liar.resident; freed < reserve*3/4 {
		t.Errorf("of the liar's, %d MiB were freed, want at least %d", freed>>20, int64(reserve*3/4)>>20)
	}
	want(t, "the honest one, when the host needs what the liar has", honest.count, 32)
	r.host.idle.Store(reserve / 4)
	r.pass(hostmem.Calm)
	if liar.resident > before/4 {
		t.Errorf("of the liar's %d MiB %d are left", before>>20, liar.resident>>20)
	}
	r.host.idle.Store(reserve + 64<<20)
	r.pass(r.cfg.Grace + 5*time.Second)
	if liar.count > 128 {
		t.Errorf("the liar has %d segments in the end", liar.count)
	}
}
