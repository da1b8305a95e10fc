package server

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"polder/internal/dirlock"
	"polder/internal/failpoint"
	"polder/internal/wal"
	"polder/share/internal/wire"
	"polder/share/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// still starts a daemon that does nothing by itself, so that what is on the disk
// is what requests have seen to.
func still(t *testing.T, change func(*Options)) *Server {
	t.Helper()
	dir := inMemory(t)
	opt := Options{
		Dir: filepath.Join(dir, "state"), Socket: filepath.Join(dir, "s"), MaruDir: filepath.Join(dir, "regions"),
		Pools: []resource.Spec{{Kind: resource.Memfd, Size: 64 << 20}}, Tick: time.Hour, Late: time.Hour,
		SegmentSize: 256 << 10, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	if change != nil {
		change(&opt)
	}
	s, err := Start(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestADirectoryIsTakenOverFromADaemonThatEnds: a daemon that is started again may be there before the last one has gone.
func TestADirectoryIsTakenOverFromADaemonThatEnds(t *testing.T) {
	still(t, func(opt *Options) {
		if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		before, err := dirlock.Lock(opt.Dir, opt.Log)
		if err != nil {
			t.Fatal(err)
		}
		opt.Log = slog.New(slog.NewTextHandler(closes{before}, nil)) // the other daemon ends when it is waited for
	})
}

// closes is a writer that closes something when it is told anything.
type closes struct{ io.Closer }

func (c closes) Write(b []byte) (int, error) { return len(b), c.Close() }

// inMemory makes a directory in memory that ends with the test.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "share")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// afterCrash returns what a daemon would recover if this one were killed now.
func afterCrash(t *testing.T, s *Server) *Server {
	t.Helper()
	opt := s.opt
	opt.Dir, opt.MaruDir = t.TempDir(), inMemory(t)
	for to, from := range map[string]string{opt.Dir: s.opt.Dir, opt.MaruDir: s.opt.MaruDir} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(opt.Dir, "secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	next := newServer(opt)
	t.Cleanup(func() { next.Close() })
	if err := next.open(); err != nil {
		t.Fatalf("a daemon that is killed now does not start again: %v", err)
	}
	return next
}

// guest admits a client with a region.
func guest(t *testing.T, s *Server, identity, instance string) (*Guest, MaruRegion) {
	t.Helper()
	g, err := s.Admit(identity, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Leave)
	r, err := g.Alloc(time.Now(), instance, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return g, r
}

func (g *Guest) mustRegister(t *testing.T, r MaruRegion, keys ...string) {
	t.Helper()
	for i, key := range keys {
		isNew, refused := g.Register(time.Now(), []MaruKey{{Key: key, Region: r.ID, Offset: int64(i) * 4096, Length: 4096}})
		if !isNew[0] {
			t.Fatalf("registering %q: %v", key, refused[0])
		}
	}
}

// TestAClientWhoseNameCannotBeLoggedIsLoggedStill: a client pins a key before it
// has said its name. It says it when the log has no room; the checkpoint that
// makes room must know the client that holds the pin.
func TestAClientWhoseNameCannotBeLoggedIsLoggedStill(t *testing.T) {
	s := still(t, nil)
	owner, r := guest(t, s, "owner", "owner")
	owner.mustRegister(t, r, "k")
	g, err := s.Admit("pins first", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Leave()
	if n, err := g.Pin(time.Now(), []string{"k"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	full, _, err := wal.Open(t.TempDir(), wal.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := full.Close(); err != nil {
		t.Fatal(err)
	}
	log := s.log
	s.log = full // takes no record
	if _, err := g.Alloc(time.Now(), "name", 4096); !errors.Is(err, wal.ErrClosed) {
		t.Fatalf("with a log that takes no record: got %v, want %v", err, wal.ErrClosed)
	}
	s.log = log
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	if next := afterCrash(t, s); !next.idx.Get([]byte("k")).Pinned() {
		t.Error("the pin is gone")
	}
	if _, err := g.Alloc(time.Now(), "name", 4096); err != nil {
		t.Errorf("with a log that takes records again: %v", err)
	}
	if _, err := g.Alloc(time.Now(), "another name", 4096); !errors.Is(err, errInvalid) {
		t.Errorf("another name: got %v, want %v", err, errInvalid)
	}
}

// TestWhatAClientWasToldOfItsKeysSurvivesACrash: a registration that was carried
// out too late and undone, and pins that were taken back.
func TestWhatAClientWasToldOfItsKeysSurvivesACrash(t *testing.T) {
	var late atomic.Bool
	s := still(t, func(opt *Options) {
		opt.Now = func() time.Time {
			if late.Load() {
				return time.Now().Add(24 * time.Hour)
			}
			return time.Now()
		}
	})
	g, r := guest(t, s, "owner", "owner")
	g.mustRegister(t, r, "a", "b")
	keys := []string{"a", "b"}
	if n, err := g.Pin(time.Now(), append(keys, "a")); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if got, err := g.Unpin([]string{"a", "none", "b", "b"}); err != nil || fmt.Sprint(got) != "[true false true false]" {
		t.Fatalf("unpin: got %v, %v, want [true false true false]", got, err)
	}
	next := afterCrash(t, s)
	a, b := next.idx.Get([]byte("a")), next.idx.Get([]byte("b"))
	if a.PinsOf(g.ss.id) != 1 || b.Pinned() {
		t.Errorf("after a crash a has %d pins, want 1, and b is pinned: %v, want not", a.PinsOf(g.ss.id), b.Pinned())
	}

	failpoint.Set(func(name string) {
		if name == "daemon.maru-put-applied" {
			late.Store(true)
		}
	})
	defer failpoint.Set(nil)
	isNew, refused := g.Register(time.Now(), []MaruKey{{Key: "late", Region: r.ID, Offset: 1 << 19, Length: 4096}})
	if isNew[0] || !errors.Is(refused[0], ErrLate) {
		t.Fatalf("a registration that takes a day: got new %v, %v, want %v", isNew[0], refused[0], ErrLate)
	}
	if next := afterCrash(t, s); next.idx.Get([]byte("late")) != nil {
		t.Error("after a crash the key is there that the client was told is not; it has filled the place anew")
	}
}

// TestADeletionOfAKeyOfBeforeTheRestartIsSynced, where keys are: else a loss of power
// could bring the key back, over a page that was filled anew.
func TestADeletionOfAKeyOfBeforeTheRestartIsSynced(t *testing.T) {
	s := still(t, func(opt *Options) { opt.Sync = true })
	g, r := guest(t, s, "owner", "owner")
	synced := func(what string) {
		t.Helper()
		if got, want := s.log.Synced(), s.log.Last(); got != want {
			t.Errorf("%s: records are on the medium up to %d, want %d", what, got, want)
		}
	}
	g.mustRegister(t, r, "a", "b")
	synced("a registration")
	if ok, err := g.Delete("a"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	synced("a deletion")
	opt := s.opt
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var err error
	if s, err = Start(opt); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	again, err := s.Admit("owner", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Leave()
	if ok, err := again.Delete("b"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	synced("a deletion after a restart")
}

// TestOthersGoOnWhileManyKeysExpireOrAreListed asks for something in each pause,
// which hangs where there is none.
func TestOthersGoOnWhileManyKeysExpireOrAreListed(t *testing.T) {
	s := still(t, nil)
	g, r := guest(t, s, "owner", "owner")
	const n = 3 * listStep
	for i := range n {
		g.s.mu.Lock()
		e := s.newMaruEntry(g.s.res.Region(r.ID), int64(i)*16, 16, fmt.Sprint("k", i))
		e.Expires = 1
		g.s.idx.Put(e)
		g.s.res.Region(r.ID).Refs++
		g.s.mu.Unlock()
	}
	pauses := map[string]int{}
	failpoint.Set(func(name string) {
		if name == "daemon.expire-paused" || name == "daemon.list-paused" {
			s.Info()
			pauses[name]++
		}
	})
	defer failpoint.Set(nil)
	if got := len(listAll(s, "", func(int) {})); got != n {
		t.Errorf("%d keys are listed, want %d", got, n)
	}
	s.expire()
	if info := s.Info(); info.Keys != 0 || info.Expired != n {
		t.Errorf("%d keys are left and %d have expired, want 0 and %d", info.Keys, info.Expired, n)
	}
	if pauses["daemon.list-paused"] < n/listStep || pauses["daemon.expire-paused"] < n/expireAtOnce {
		t.Errorf("got pauses %v, want one for each %d that are listed and each %d that expire", pauses, listStep, expireAtOnce)
	}
}

// TestARegionThatShrankBeforeACrashIsTrimmedAfterIt: the memory behind its end is not
// the pool's only, but the system's.
func TestARegionThatShrankBeforeACrashIsTrimmedAfterIt(t *testing.T) {
	s := still(t, nil)
	g, r := guest(t, s, "owner", "owner")
	g.mustRegister(t, r, "k")
	if ok, err := g.Return(r.ID, "owner"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	blocks := func(s *Server) int64 {
		var st unix.Stat_t
		if err := unix.Stat(s.res.Region(r.ID).Path(), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	var before, after int64
	failpoint.Set(func(name string) {
		if name != "daemon.shrink-applied" {
			return
		}
		if err := s.flushLog(); err != nil {
			t.Error(err)
		}
		before = blocks(s)
		after = blocks(afterCrash(t, s))
	})
	defer failpoint.Set(nil)
	s.shrinkRegions()
	if before != 0 {
		t.Error("a region has shrunk of whose length clients may have been told just now")
	}
	s.shrinkRegions()
	if before != 1<<20 || after != 4096 {
		t.Errorf("a region of 1 MiB that has shrunk to 4096 bytes has memory for %d before the crash and %d after it, want %d and 4096", before, after, 1<<20)
	}
}

// TestWhoWasToldOfARegionJustBeforeItShrinksMayMapIt, until it has shrunk.
func TestWhoWasToldOfARegionJustBeforeItShrinksMayMapIt(t *testing.T) {
	s := still(t, nil)
	g, r := guest(t, s, "owner", "owner")
	g.mustRegister(t, r, "k")
	if ok, err := g.Return(r.ID, "owner"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	told := func() (f Found) {
		t.Helper()
		if err := g.Lookup([]string{"k"}, func(_ int, _ bool, found Found) { f = found }); err != nil {
			t.Fatal(err)
		}
		return f
	}
	holds := func(f Found) bool {
		holder, err := s.Holder(f.ID, 0, f.Length, f.Token)
		if err == nil {
			holder.Leave()
		}
		return err == nil
	}
	long := told()
	s.shrinkRegions()
	short := told()
	if long.Length != 1<<20 || short.Length != 4096 || !holds(long) || !holds(short) {
		t.Errorf("before it shrinks clients are told of %d and then %d bytes, and may map them: %v, %v; want %d and 4096, and both",
			long.Length, short.Length, holds(long), holds(short), 1<<20)
	}
	s.shrinkRegions()
	if again := told(); again.Length != 4096 || holds(long) || !holds(short) {
		t.Errorf("when it has shrunk clients are told of %d bytes, and may map the longer one: %v, the shorter one: %v; want 4096, false, true",
			again.Length, holds(long), holds(short))
	}
}

// TestAKeyThatIsPinnedOftenIsOneRecordOfACheckpoint: pins that nobody takes back,
// as of an engine that forgets to, must not make checkpoints long.
func TestAKeyThatIsPinnedOftenIsOneRecordOfACheckpoint(t *testing.T) {
	s := still(t, nil)
	g, r := guest(t, s, "owner", "owner")
	g.mustRegister(t, r, "k")
	const pins = 1000
	for range pins / 100 {
		keys := make([]string, 100)
		for i := range keys {
			keys[i] = "k"
		}
		if n, err := g.Pin(time.Now(), keys); n != len(keys) || err != nil {
			t.Fatal(n, err)
		}
	}
	records := 0
	s.snapshotEntry(wire.Writer(nil), s.idx.Get([]byte("k")), func([]byte) { records++ })
	if records != 2 {
		t.Errorf("a key that is pinned %d times makes %d records, want 2", pins, records)
	}
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	if got := afterCrash(t, s).idx.Get([]byte("k")).PinsOf(g.ss.id); got != pins {
		t.Errorf("after a restart the key is pinned %d times, want %d", got, pins)
	}
}

// breakLog makes every write to the log fail from now on: a full device takes the place of its files.
func breakLog(t *testing.T, s *Server) {
	t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		path, _ := os.Readlink("/proc/self/fd/" + e.Name())
		fd, err := strconv.Atoi(e.Name())
		if err != nil || filepath.Dir(path) != filepath.Join(s.opt.Dir, "log") {
			continue
		}
		if err := unix.Dup3(int(full.Fd()), fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhatCannotBeCommittedIsNotAnsweredAsDone: the results of a batch say nothing that a crash would make untrue.
func TestWhatCannotBeCommittedIsNotAnsweredAsDone(t *testing.T) {
	keys := []string{"a", "b"}
	for name, batch := range map[string]func(*Guest, MaruRegion) (any, error){
		"pins":   func(g *Guest, _ MaruRegion) (any, error) { return g.Pin(time.Now(), keys) },
		"unpins": func(g *Guest, _ MaruRegion) (any, error) { return g.Unpin(keys) },
		"looks for": func(g *Guest, r MaruRegion) (any, error) {
			g.s.mu.Lock()
			_, err := g.register(MaruKey{Key: "c", Region: r.ID, Offset: 8192, Length: 1}) // by somebody who waits for the log
			g.s.mu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			return g.Exists([]string{"a", "c"})
		},
	} {
		s := still(t, nil)
		g, r := guest(t, s, "owner", "owner")
		g.mustRegister(t, r, keys...)
		if n, err := g.Pin(time.Now(), keys); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		breakLog(t, s)
		got, err := batch(g, r)
		if none := fmt.Sprint(got) == "0" || fmt.Sprint(got) == "[false false]"; !none || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("a client %s two keys while the log cannot be written: got %v, %v, want none and %v", name, got, err, unix.ENOSPC)
		}
	}
}
