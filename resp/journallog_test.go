package resp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far"
	"polder/far/disk"
	"polder/resp/keyspace"
)

// memLog is a RecordLog as nodes keep it: what the next owner replays is dropped when it begins.
type memLog struct {
	mu   sync.Mutex
	recs [][]byte
	n    uint64

	broken bool  // nothing more can be appended
	silent int   // how many times it cannot begin,
	why    error // and why

	slow time.Duration // what a checkpoint takes until it counts

	stuck   chan struct{} // if it is set there is no room, and those who wait fail when it is closed
	waiting atomic.Int32  // those who have waited for that
	once    sync.Once
}

// replay gives fn what there is.
func (l *memLog) replay(fn func(rec []byte) error) error {
	for _, rec := range l.recs {
		if err := fn(rec); err != nil {
			return err
		}
	}
	return nil
}

func (l *memLog) Begin(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent--; l.silent >= 0 {
		return l.why
	}
	l.recs = nil
	return nil
}

func (l *memLog) Append(rec []byte) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return 0, errors.New("it is broken")
	}
	l.n++
	l.recs = append(l.recs, slices.Clone(rec))
	return l.n, nil
}

func (l *memLog) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

func (l *memLog) Snapshot([]byte) (save func() error, discard func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.recs)
	return func() error {
		time.Sleep(l.slow)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.recs = slices.Delete(l.recs, 0, n)
		return nil
	}, func() {}
}

func (l *memLog) Commit(uint64, bool) error {
	if l.stuck != nil {
		l.waiting.Add(1)
		<-l.stuck
		return errors.New("there is no room")
	}
	return nil
}

func (l *memLog) Abandon() {
	if l.stuck != nil {
		l.once.Do(func() { close(l.stuck) })
	}
}

func (l *memLog) MaxRecord() int      { return 1 << 20 }
func (l *memLog) Copies() (int, bool) { return 2, false }
func (l *memLog) Starved() error      { return nil }
func (l *memLog) Close() error        { return nil }

// TestAServerStartsThoughItsLogBeginsLate, since nodes were slow for a moment.
func TestAServerStartsThoughItsLogBeginsLate(t *testing.T) {
	log := &memLog{silent: 3, why: errors.New("no place answers")}
	k := newKept(t, keyspace.Journal{Durable: true, Log: func(_ context.Context, replay func(rec []byte) error) (keyspace.RecordLog, error) {
		return log, log.replay(replay)
	}})
	k.do("SET", "k", "v")
	if log.silent >= 0 {
		t.Error("the log has begun before it could")
	}
	dir := k.image()
	k.abandon()
	k.dir, log.silent, log.why = dir, 1, far.ErrSuperseded
	if err := k.tryOpen(); !errors.Is(err, far.ErrSuperseded) {
		t.Errorf("a server whose heap is another's starts: %v", err)
	}
	for _, c := range []struct {
		silent int
		starts bool
	}{{3, true}, {1000, false}} { // where far memory is full, checkpoints make room for the log
		k.abandon()
		log.silent, log.why = c.silent, far.ErrStoreFull
		if err := k.tryOpen(); (err == nil) != c.starts || err != nil && !errors.Is(err, far.ErrStoreFull) {
			t.Errorf("a log that finds no room %d times begins: %v", c.silent, err)
		}
	}
}

// TestALogIsDroppedWhenACheckpointHasIt: what was replayed survives a second crash at once, and after an end in good order there is
// nothing to be kept, so that no checkpoint is taken.
func TestALogIsDroppedWhenACheckpointHasIt(t *testing.T) {
	log := new(memLog)
	k := newKept(t, keyspace.Journal{Durable: true, Log: func(_ context.Context, replay func(rec []byte) error) (keyspace.RecordLog, error) {
		return log, log.replay(replay)
	}})
	crash := func() {
		t.Helper()
		log.mu.Lock()
		left := slices.Clone(log.recs)
		log.mu.Unlock()
		log = &memLog{recs: left} // what the old server does as it ends is not seen
		k.crash()
	}
	k.do("SET", "a", "1")
	for range 2 {
		crash()
		if got := k.do("GET", "a"); got != "$1\r\n1\r\n" {
			t.Fatalf("after a crash: %q", got)
		}
	}
	k.do("SET", "b", "2")
	k.abandon() // which ends it in good order
	k.open()
	if at := k.heap.LastCheckpoint(); at.After(k.srv.since) {
		t.Errorf("a checkpoint was taken at the opening, %v after the server was made", at.Sub(k.srv.since))
	}
	crash()
	if got := k.do("GET", "b"); got != "$1\r\n2\r\n" {
		t.Errorf("after an end in good order, and a crash: %q", got)
	}
}

// TestAServerEndsThoughItsLogHasNoRoom: replies that wait for room in the log, which never comes, hold up nobody who ends the server, or
// takes a partition from it.
func TestAServerEndsThoughItsLogHasNoRoom(t *testing.T) {
	full := func() (*memLog, keyspace.Journal) {
		log := &memLog{stuck: make(chan struct{})}
		return log, keyspace.Journal{Durable: true, Log: func(context.Context, func([]byte) error) (keyspace.RecordLog, error) { return log, nil }}
	}
	// ends has a client wait for the log of the server at addr, and then end run without patience.
	ends := func(t *testing.T, log *memLog, addr, key string, run func(ctx context.Context) error) {
		t.Helper()
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := nc.Write([]byte(encode("SET", key, "1"))); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(testTimeout); log.waiting.Load() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nobody waits for the log")
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = run(ctx) // which says that its time was over
		}()
		select {
		case <-ended:
		case <-time.After(testTimeout):
			log.Abandon() // for the end of the test
			t.Fatalf("it has not ended within %v", testTimeout)
		}
		_ = nc.SetReadDeadline(time.Now().Add(testTimeout))
		if b, err := io.ReadAll(nc); len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the client was told %q, %v: want the end of the connection, and nothing before it", b, err)
		}
	}
	for _, loops := range []int{1, -1} {
		t.Run(fmt.Sprintf("%d loops", loops), func(t *testing.T) {
			log, journal := full()
			store, err := disk.Open(disk.Config{Dir: t.TempDir(), SegmentSize: 128 << 10, Size: 64 << 20})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			heap, err := far.Open(t.Context(), store, far.Config{Local: 8 << 20})
			if err != nil {
				t.Fatal(err)
			}
			defer heap.Close()
			srv, err := NewLoading(Config{Loops: loops, Journal: journal, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			addr := serve(t, srv, func() error { return nil })
			if err := srv.Open(t.Context(), heap); err != nil {
				t.Fatal(err)
			}
			ends(t, log, addr, "a", srv.Shutdown)
		})
	}
	t.Run("a partition", func(t *testing.T) {
		c := startCluster(t, 2, 2, roomy/2)
		for server := range 2 { // one has an event loop, the other none
			c.close(server, server)
			log, journal := full()
			c.openAs(server, server, Partition{Journal: journal})
			ends(t, log, c.addrs[server], c.keyIn(server, "a"), func(ctx context.Context) error {
				return c.servers[server].RemovePartition(ctx, server)
			})
		}
	})
}

// TestWhoWritesFasterThanCheckpointsIsSlowedDown, and not refused: with SET, and with transactions.
func TestWhoWritesFasterThanCheckpointsIsSlowedDown(t *testing.T) {
	const tail, size = 256 << 10, 4000
	log := &memLog{slow: 100 * time.Millisecond}
	k := newKept(t, keyspace.Journal{Durable: true, Tail: tail, Log: func(context.Context, func(rec []byte) error) (keyspace.RecordLog, error) {
		return log, nil
	}})
	value := strings.Repeat("v", size)
	const n = 40 * tail / size // five times what there may be without a checkpoint
	for i := range n {
		if i < n/2 {
			if got := k.do("SET", fmt.Sprint("key", i%100), value); got != "+OK\r\n" {
				t.Fatalf("SET %d: %q", i, got)
			}
			continue
		}
		k.do("MULTI")
		k.do("SET", fmt.Sprint("key", i%100), value)
		if got := k.do("EXEC"); got != "*1\r\n+OK\r\n" {
			t.Fatalf("EXEC %d: %q", i, got)
		}
	}
	if k.srv.stats.waits.Load() == 0 {
		t.Error("nobody had to wait")
	}
}

// TestWhoWritesToAFullDiskWaitsForRoom that a checkpoint makes of what was deleted: until then what the last one has takes it.
func TestWhoWritesToAFullDiskWaitsForRoom(t *testing.T) {
	k := newKept(t, keyspace.Journal{Durable: true})
	k.abandon()
	k.dir, k.size, k.local = t.TempDir(), 24<<20, far.MinLocal
	k.open()
	value := strings.Repeat("v", 1500)
	n := 0
	for got := "+OK\r\n"; got == "+OK\r\n"; n++ {
		if got = k.do("SET", fmt.Sprint("key", n), value); got != "+OK\r\n" && !strings.HasPrefix(got, "-OOM ") {
			t.Fatalf("SET %d: %q", n, got)
		}
	}
	for i := 0; i < n; i += 8 {
		k.do("DEL", fmt.Sprint("key", i))
	}
	time.Sleep(time.Second) // those who have found the store full do not look again before
	for i := 0; i < n/2; i += 16 {
		if i < n/4 {
			if got := k.do("SET", fmt.Sprint("key", i), value); got != "+OK\r\n" {
				t.Fatalf("SET %d of %d after much was deleted: %q", i, n, got)
			}
			continue
		}
		k.do("MULTI")
		k.do("SET", fmt.Sprint("key", i), value)
		if got := k.do("EXEC"); got != "*1\r\n+OK\r\n" {
			t.Fatalf("EXEC %d of %d after much was deleted: %q", i, n, got)
		}
	}
	// Not with what is not undone: it has happened when no room is found.
	full := false
	k.do("CLIENT", "SETNAME", "name0")
	for i := 1; i < n && !full; i++ {
		k.do("MULTI")
		k.do("CLIENT", "GETNAME")
		k.do("CLIENT", "SETNAME", fmt.Sprint("name", i))
		k.do("SET", fmt.Sprint("new", i), value)
		was := fmt.Sprint("name", i-1)
		got := k.do("EXEC")
		full = strings.HasPrefix(got, "-OOM ")
		if want := fmt.Sprintf("*3\r\n$%d\r\n%s\r\n+OK\r\n+OK\r\n", len(was), was); got != want && !full {
			t.Fatalf("EXEC %d with CLIENT SETNAME: %q, want %q or OOM", i, got, want)
		}
	}
	if !full {
		t.Error("there was always room: the test has not tested what it should")
	}
	if got := k.do("SET", "new", value); got != "+OK\r\n" {
		t.Errorf("SET where EXEC found no room: %q", got)
	}
}
