package coordinator

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/internal/hostmem"
	"polder/soft"
	"polder/soft/policy"
	"polder/soft/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// evenly gives everybody the same.
type evenly struct{}

func (evenly) Divide(_ time.Duration, total int64, apps []policy.App) []int64 {
	return policy.Fit(total, apps, policy.ByWeight(total, apps))
}

// fakeHost is a host of which the test says how much is idle.
type fakeHost struct {
	total, idle atomic.Int64
}

func (f *fakeHost) Read() (hostmem.Memory, error) {
	return hostmem.Memory{Total: f.total.Load(), Available: f.idle.Load()}, nil
}

func (f *fakeHost) Limit(string) (int64, int64, bool) { return 0, 0, false }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

const reserve = 64 << 20

func start(t *testing.T, host *fakeHost, change func(*Config)) (*Coordinator, string) {
	t.Helper()
	cfg := Config{
		Socket: filepath.Join(t.TempDir(), "s"), Reserve: reserve, Host: host, Logger: quiet,
		Interval: 50 * time.Millisecond, Grace: time.Millisecond, Policy: evenly{},
	}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, cfg.Socket
}

func newHost(idle int64) *fakeHost {
	h := &fakeHost{}
	h.total.Store(16 << 30)
	h.idle.Store(idle)
	return h
}

func openHeap(t *testing.T, socket string) (*soft.Heap, *soft.Map[int, [4000]byte]) {
	t.Helper()
	h, err := soft.Open(soft.Config{Budget: soft.MinBudget, Max: 1 << 30, Coordinator: socket, Name: "test", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := soft.NewMap(h, soft.MapConfig[int, [4000]byte]{})
	if err != nil {
		t.Fatal(err)
	}
	return h, m
}

// until waits for a condition, and fails the test if it does not come.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(60 * time.Second); !f(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func fill(m *soft.Map[int, [4000]byte], n int) {
	for i := range n {
		_ = m.Set(i, [4000]byte{byte(i), byte(i >> 8)})
	}
}

func verify(t *testing.T, m *soft.Map[int, [4000]byte], n int) (found int) {
	t.Helper()
	for i := range n {
		v, ok := m.Get(i)
		if !ok {
			continue
		}
		if v != [4000]byte{byte(i), byte(i >> 8)} {
			t.Fatalf("key %d has a wrong value", i)
		}
		found++
	}
	return found
}

func TestHeapGrowsIntoIdleMemoryAndGivesItBack(t *testing.T) {
	host := newHost(reserve + 256<<20)
	c, socket := start(t, host, func(cfg *Config) { cfg.Deadline = time.Minute })
	h, m := openHeap(t, socket)
	until(t, "the heap has grown", func() bool { return h.Budget() >= 128<<20 })
	fill(m, 20000)
	if n := verify(t, m, 20000); n < 19000 {
		t.Fatalf("of 20000 values %d are there", n)
	}
	host.idle.Store(reserve - 32<<20) // somebody needs memory, and not so much that it is urgent
	until(t, "the heap has shrunk", func() bool { return h.Budget() < 120<<20 })
	// The heap's budget is smaller as soon as the heap is told so, which is before it has given anything back.
	until(t, "something was given back cooperatively", func() bool { return c.Stats().Cooperative > 0 })
	verify(t, m, 20000)
	host.idle.Store(0) // and now it is
	until(t, "all is taken", func() bool { return c.Stats().Granted == 0 })
	until(t, "nothing is left", func() bool { return c.Stats().Resident == 0 })
	verify(t, m, 20000)
	host.idle.Store(reserve + 256<<20)
	until(t, "the heap has grown again", func() bool { return h.Budget() >= 128<<20 })
	fill(m, 20000)
	if n := verify(t, m, 20000); n < 10000 {
		t.Fatalf("after the pressure: of 20000 values %d are there", n)
	}
}

func TestMemoryThatBecomesIdleDoesNotWaitForTheNextDivision(t *testing.T) {
	host := newHost(reserve + 64<<20)
	c, socket := start(t, host, func(cfg *Config) { cfg.Interval = time.Hour })
	h, m := openHeap(t, socket)
	until(t, "the heap has what is idle", func() bool { return h.Budget() >= 60<<20 })
	if b := h.Budget(); b > 80<<20 {
		t.Fatalf("it has %d bytes", b)
	}
	host.idle.Store(reserve + 256<<20)
	until(t, "the heap is given more, which it has no use for yet", func() bool { return h.Budget() >= 200<<20 })
	until(t, "it has said so", func() bool { return c.Stats().MoreByClient[0].Used < 64<<20 })
	host.idle.Store(reserve + 384<<20) // the rest of what somebody lets go, as the kernel frees it
	until(t, "the heap is given the rest, too", func() bool { return h.Budget() >= 330<<20 })
	fill(m, 20000)
	if n := verify(t, m, 20000); n < 19000 {
		t.Errorf("of 20000 values %d are there", n)
	}
}

func TestHeapSurvivesTheCoordinatorsRestart(t *testing.T) {
	host := newHost(reserve + 128<<20)
	c, socket := start(t, host, nil)
	h, m := openHeap(t, socket)
	until(t, "the heap has grown", func() bool { return h.Budget() >= 64<<20 })
	fill(m, 8000)
	before := verify(t, m, 8000)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	fill(m, 8000) // it works alone
	c2, _ := start(t, host, func(cfg *Config) { cfg.Socket = socket })
	until(t, "it has registered again", func() bool { return c2.Stats().Clients == 1 })
	if st := c2.Stats(); st.Granted < 60<<20 || st.Resident < 30<<20 {
		t.Errorf("the new coordinator knows of %d bytes granted and %d resident", st.Granted, st.Resident)
	}
	if after := verify(t, m, 8000); after < before*9/10 {
		t.Errorf("of %d values %d are left", before, after)
	}
}

func TestClientsThatDieAreCleanedUp(t *testing.T) {
	host := newHost(reserve + 128<<20)
	c, socket := start(t, host, nil)
	h, m := openHeap(t, socket)
	until(t, "the heap has grown", func() bool { return h.Budget() >= 64<<20 })
	fill(m, 8000)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "it is forgotten", func() bool { st := c.Stats(); return st.Clients == 0 && st.Granted == 0 })
	h2, _ := openHeap(t, socket)
	until(t, "another has its memory", func() bool { return h2.Budget() >= 100<<20 })
}

// rawClient is a client that does only what the test says.
type rawClient struct {
	conn  *fdpass.Conn
	mem   *arena.Memfd
	table *arena.Memfd
	ctl   *wire.Control
	bytes []byte
}

func connect(t *testing.T, socket string, segments int) *rawClient {
	t.Helper()
	r := &rawClient{}
	var err error
	must := func(e error) {
		t.Helper()
		if e != nil {
			t.Fatal(e)
		}
	}
	r.mem, err = arena.NewMemfd("raw", segments*segmentSize)
	must(err)
	_, err = unix.FcntlInt(r.mem.File().Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW)
	must(err)
	r.table, err = arena.NewMemfd("raw", wire.ControlSize(segments))
	must(err)
	must(r.table.SealSize())
	m, err := r.table.Map(0, r.table.Size(), true)
	must(err)
	r.ctl, err = wire.InitControl(m, segments)
	must(err)
	b, err := r.mem.Map(0, segments*segmentSize, true)
	must(err)
	r.bytes = b.Bytes()
	r.conn, err = fdpass.Dial(socket)
	must(err)
	t.Cleanup(func() { r.conn.Close(); r.mem.Close(); r.table.Close(); b.Close(); m.Close() })
	return r
}

func (r *rawClient) hello(t *testing.T, h wire.Hello) {
	t.Helper()
	if err := r.conn.SendFDs(wire.Encode(wire.KindHello, h), r.mem.File(), r.table.File()); err != nil {
		t.Fatal(err)
	}
}

func (r *rawClient) granted() (n int) {
	for i := range r.ctl.Segments() {
		if r.ctl.Granted(uint32(i)) {
			n++
		}
	}
	return n
}

func (r *rawClient) touch() {
	for i := range r.ctl.Segments() {
		if r.ctl.Granted(uint32(i)) {
			for p := 0; p < segmentSize; p += 4096 {
				r.bytes[i*segmentSize+p] = 1
			}
		}
	}
}

func (r *rawClient) resident(t *testing.T) int64 {
	var st unix.Stat_t
	if err := unix.Fstat(int(r.mem.File().Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

var polite = wire.Hello{Version: wire.Version, Name: "raw", Weight: 1}

func TestAClientThatNeverReleasesIsTakenFrom(t *testing.T) {
	host := newHost(reserve + 128<<20)
	c, socket := start(t, host, nil)
	r := connect(t, socket, 100)
	r.hello(t, polite)
	until(t, "it has memory", func() bool { return r.granted() >= 50 })
	r.touch()
	host.idle.Store(reserve * 3 / 4)
	until(t, "some is taken", func() bool { return r.granted() < 45 })
	host.idle.Store(0)
	until(t, "all is taken", func() bool { return r.granted() == 0 && r.resident(t) == 0 })
	if st := c.Stats(); st.Direct == 0 || st.Cooperative != 0 {
		t.Errorf("stats %+v", st)
	}
}

// A segment that is taken cannot be used and has no memory from then on, and not only when somebody
// looks after it.
func TestWhatIsTakenIsRevokedAtOnce(t *testing.T) {
	_, socket := start(t, newHost(reserve), nil)
	r := connect(t, socket, 2)
	r.ctl.Grant(0)
	r.ctl.Grant(1)
	r.touch()
	s := &session{ctl: r.ctl, memory: r.mem, granted: []bool{true, true}, count: 2}
	s.take(0)
	if r.ctl.Granted(0) || !r.ctl.Granted(1) || s.granted[0] || s.count != 1 {
		t.Errorf("segment 0 may be used: %v, 1: %v, want only 1; %d count", r.ctl.Granted(0), r.ctl.Granted(1), s.count)
	}
	if n := r.resident(t); n != segmentSize {
		t.Errorf("%d bytes exist, want those of one segment, %d", n, segmentSize)
	}
	s.end(false)
	if r.granted() != 0 || s.count != 0 {
		t.Errorf("%d segments may be used when the session has ended, want none", r.granted())
	}
}

func TestColdSegmentsAreTakenBeforeHotOnes(t *testing.T) {
	host := newHost(reserve + 128<<20)
	_, socket := start(t, host, nil)
	r := connect(t, socket, 40)
	r.hello(t, polite)
	until(t, "it has memory", func() bool { return r.granted() == 40 })
	r.touch()
	for i := range uint32(40) {
		r.ctl.SetRank(i, uint64((i*7)%40)) // a permutation
	}
	host.idle.Store(reserve * 4 / 10) // urgent
	until(t, "some is taken", func() bool { return r.granted() < 40 })
	host.idle.Store(reserve) // enough
	coldestKept, hottestTaken := uint64(1000), uint64(0)
	for i := range uint32(40) {
		rank := uint64((i * 7) % 40)
		if r.ctl.Granted(i) {
			coldestKept = min(coldestKept, rank)
		} else {
			hottestTaken = max(hottestTaken, rank)
		}
	}
	if r.granted() > 0 && hottestTaken > coldestKept {
		t.Errorf("rank %d was taken, rank %d kept", hottestTaken, coldestKept)
	}
}

func TestAClientThatKeepsWhatWasTakenIsEnded(t *testing.T) {
	host := newHost(reserve + 512<<20)
	c, socket := start(t, host, func(cfg *Config) { cfg.Interval = 500 * time.Millisecond })
	r := connect(t, socket, 100)
	r.hello(t, polite)
	until(t, "it has memory", func() bool { return r.granted() == 100 })
	host.idle.Store(0)
	until(t, "all is taken", func() bool { return r.granted() == 0 })
	// It makes its memory exist by descriptor: touching a truncated mapping
	// would end this test as it would end the client.
	until(t, "it is ended", func() bool {
		for off := int64(0); off < tolerated+32<<20; off += segmentSize { // some may be interrupted
			_ = unix.Fallocate(int(r.mem.File().Fd()), 0, off, segmentSize)
		}
		return c.Stats().Ended == 1
	})
	until(t, "it is forgotten", func() bool { return c.Stats().Clients == 0 })
	if n := r.resident(t); n != 0 {
		t.Errorf("%d bytes of it exist", n)
	}
	if err := r.mem.File().Truncate(100 * segmentSize); err == nil {
		t.Error("it could grow its memory again")
	}
}

func TestSelfGrantedSegmentsDoNotCount(t *testing.T) {
	host := newHost(reserve + 32<<20)
	_, socket := start(t, host, nil)
	r := connect(t, socket, 100)
	r.hello(t, polite)
	until(t, "it has memory", func() bool { return r.granted() > 0 })
	n := r.granted()
	for i := range uint32(100) {
		r.ctl.Grant(i)
	}
	until(t, "they are revoked", func() bool { return r.granted() <= n+1 })
}

func TestGarbageEndsAConnectionAndNothingElse(t *testing.T) {
	host := newHost(reserve + 128<<20)
	c, socket := start(t, host, func(cfg *Config) { cfg.MaxMessages = 100 })
	_, m := openHeap(t, socket)
	until(t, "the heap has registered", func() bool { return c.Stats().Clients == 1 })
	fill(m, 1000)
	want := verify(t, m, 1000)

	expectEnd := func(r *rawClient) {
		t.Helper()
		if err := r.conn.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
			t.Fatal(err)
		}
		for {
			_, err := r.conn.Recv()
			r.conn.Done()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("the coordinator goes on talking to garbage")
			}
			if err != nil {
				return
			}
		}
	}
	for name, send := range map[string]func(r *rawClient){
		"nothing understandable": func(r *rawClient) { _ = r.conn.Send([]byte("GET / HTTP/1.1\r\n\r\n")) },
		"no descriptors":         func(r *rawClient) { _ = r.conn.Send(wire.Encode(wire.KindHello, polite)) },
		"another version": func(r *rawClient) {
			r.hello(t, wire.Hello{Version: 77, Name: "x", Weight: 1})
		},
		"a pipe for memory": func(r *rawClient) {
			a, b, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			defer b.Close()
			_ = r.conn.SendFDs(wire.Encode(wire.KindHello, polite), a, b)
		},
		"a table that can be truncated": func(r *rawClient) {
			f, err := arena.NewMemfd("loose", wire.ControlSize(100))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			_ = r.conn.SendFDs(wire.Encode(wire.KindHello, polite), r.mem.File(), f.File())
		},
		"memory of another size": func(r *rawClient) {
			s := connect(t, socket, 3)
			_ = r.conn.SendFDs(wire.Encode(wire.KindHello, polite), s.mem.File(), r.table.File())
		},
		"a report that cannot be": func(r *rawClient) {
			r.hello(t, polite)
			_ = r.conn.Send([]byte(`R{"live":-5}`))
		},
		"an unknown kind": func(r *rawClient) {
			r.hello(t, polite)
			_ = r.conn.Send([]byte(`?{}`))
		},
		"more messages than anybody has to send": func(r *rawClient) {
			r.hello(t, polite)
			for range 2000 {
				if r.conn.Send(wire.Encode(wire.KindReleased, wire.Released{})) != nil {
					return
				}
			}
		},
		"released segments that it never had": func(r *rawClient) {
			r.hello(t, polite)
			_ = r.conn.Send(wire.Encode(wire.KindReleased, wire.Released{Segments: []uint32{1 << 31, 99}}))
			_ = r.conn.Send([]byte("?{}"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := connect(t, socket, 100)
			send(r)
			expectEnd(r)
		})
	}
	until(t, "only the heap is left", func() bool { return c.Stats().Clients == 1 })
	if got := verify(t, m, 1000); got < want {
		t.Errorf("the other client lost values: %d of %d are left", got, want)
	}
}

func TestAThousandConnectionsAreRefused(t *testing.T) {
	host := newHost(reserve + 128<<20)
	c, socket := start(t, host, func(cfg *Config) { cfg.MaxClientsPerUser = 10 })
	h, _ := openHeap(t, socket)
	until(t, "the heap has registered", func() bool { return c.Stats().Clients == 1 })
	var conns []*fdpass.Conn
	for range 1000 {
		conn, err := fdpass.Dial(socket)
		if err != nil {
			continue
		}
		conns = append(conns, conn)
	}
	until(t, "most are refused", func() bool { return c.Stats().Refused >= uint64(len(conns))-10 })
	until(t, "the heap has grown all the same", func() bool { return h.Budget() >= 100<<20 })
	for _, conn := range conns {
		conn.Close()
	}
}

// A quarter of an even share is what is guaranteed to whoever uses it, whatever another claims to gain by all there is.
func TestALiarGetsNoMoreThanOthersLeave(t *testing.T) {
	host := newHost(reserve + 256<<20)
	c, socket := start(t, host, func(cfg *Config) { cfg.Policy = &policy.Curves{} })
	honest, m := openHeap(t, socket)
	until(t, "the honest one has grown", func() bool { return honest.Budget() >= 200<<20 })
	fill(m, 16000) // 61 MiB, more than what is guaranteed
	until(t, "it has said so", func() bool { return c.Stats().MoreByClient[0].Used >= 60<<20 })
	next := 0
	use := func() { // what is not used is not guaranteed
		for range 500 {
			_ = m.Set(next%16000, [4000]byte{})
			next++
		}
	}
	liar := connect(t, socket, 200)
	liar.hello(t, wire.Hello{Version: wire.Version, Name: "liar", Weight: 1e6})
	saved := make([]float64, 40)
	for i := range saved {
		saved[i] = float64(i) * 1e12
	}
	lie := wire.Report{Live: 1 << 40, RebuildSeconds: 0}
	lie.Curve.Unit, lie.Curve.Saved = 16<<20, saved
	until(t, "the liar has most, and the honest one what is left", func() bool {
		use()
		lie.RebuildSeconds += 1e9
		if err := liar.conn.Send(wire.Encode(wire.KindReport, lie)); err != nil {
			t.Fatal(err)
		}
		left := c.Stats().MoreByClient[0]
		return liar.granted() >= 100 && left.Granted <= left.Target
	})
	if b := honest.Budget(); b < 32<<20 {
		t.Errorf("the honest one is left %d bytes, want a quarter of an even share, 32 MiB", b)
	}
}

func TestQuotaOfAUserHolds(t *testing.T) {
	host := newHost(reserve + 512<<20)
	c, socket := start(t, host, func(cfg *Config) { cfg.MaxPerUser = 64 << 20 })
	a, ma := openHeap(t, socket)
	b, mb := openHeap(t, socket)
	// The second one comes with memory of its own, which it keeps until the first one has given some back.
	until(t, "both have something, and no more than the quota", func() bool {
		fill(ma, 1000)
		fill(mb, 1000)
		s := c.Stats()
		return len(s.MoreByClient) == 2 && a.Budget() >= 16<<20 && b.Budget() >= 16<<20 && s.Granted <= 64<<20
	})
	for range 50 {
		if g := c.Stats().Granted; g > 64<<20 {
			t.Fatalf("one user has %d bytes, more than his quota", g)
		}
		fill(ma, 100)
	}
}

func TestWrongConfigurationIsRefused(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no socket":             {},
		"more than all":         {Socket: "x", Reserve: 1 << 60},
		"a share above one":     {Socket: "x", MinShare: 2},
		"a negative limit":      {Socket: "x", Max: -1},
		"a limit of a byte":     {Socket: "x", Max: 1},
		"a negative weight":     {Socket: "x", MaxWeight: -1},
		"an impossible address": {Socket: filepath.Join(t.TempDir(), fmt.Sprintf("%200d", 1))},
	} {
		if c, err := New(cfg); err == nil {
			c.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}
