package resp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far"
	"polder/internal/invariants"
)

// faultyStore is a MemStore whose reads can be held up and whose segments can
// be lost.
type faultyStore struct {
	*far.MemStore
	waiting atomic.Int64 // reads that are held up
	deaf    atomic.Bool  // writes fail

	mu   sync.Mutex
	held chan struct{} // reads wait until it is closed; guarded by mu

	segs []*faultySegment // guarded by mu
}

type faultySegment struct {
	far.Segment
	store *faultyStore
	lost  chan struct{}
}

func (s *faultySegment) Write(ctx context.Context, p []byte, off int) error {
	if s.store.deaf.Load() {
		return errors.New("the store was told to fail")
	}
	return s.Segment.Write(ctx, p, off)
}

func (s *faultySegment) Lost() <-chan struct{} { return s.lost }

func (s *faultyStore) Alloc(ctx context.Context) (far.Segment, error) {
	seg, err := s.MemStore.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	f := &faultySegment{seg, s, make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segs = append(s.segs, f)
	return f, nil
}

func (s *faultyStore) Read(ctx context.Context, ops []far.ReadOp) {
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	if held != nil {
		s.waiting.Add(1)
		defer s.waiting.Add(-1)
		select {
		case <-held:
		case <-ctx.Done():
			for i := range ops {
				ops[i].Err = context.Cause(ctx)
			}
			return
		}
	}
	inner := make([]far.ReadOp, len(ops))
	for i, op := range ops {
		inner[i] = op
		inner[i].Seg = op.Seg.(*faultySegment).Segment
	}
	s.MemStore.Read(ctx, inner)
	for i := range ops {
		ops[i].Err = inner[i].Err
	}
}

// hold makes reads wait until the returned function is called.
func (s *faultyStore) hold() (release func()) {
	held := make(chan struct{})
	s.mu.Lock()
	s.held = held
	s.mu.Unlock()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.held = nil
		s.mu.Unlock()
		close(held)
	})
}

// lose loses all that is stored.
func (s *faultyStore) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.segs {
		close(seg.lost)
	}
	s.segs = nil
}

// startFaulty starts a server over a faulty store.
func startFaulty(t *testing.T, segments int, cfg Config) (*faultyStore, *Server, string) {
	t.Helper()
	store := &faultyStore{MemStore: far.NewMemStore(256<<10, segments)}
	heap, err := far.NewHeap(store, far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	srv, addr := startOn(t, heap, cfg)
	return store, srv, addr
}

const farKeys = 4000 // of 4 KiB, four times the local budget

func farKey(i int) string { return fmt.Sprint("far", i) }

func farValue(i int) string { return strings.Repeat(fmt.Sprintf("%08d", i), 512) }

func fill(t *testing.T, c *client) {
	t.Helper()
	const batch = 50
	for i := 0; i < farKeys; i += batch {
		var in strings.Builder
		for j := range batch {
			in.WriteString(encode("SET", farKey(i+j), farValue(i+j)))
		}
		c.send(in.String())
		for j := range batch {
			if got := c.recv().String(); got != "+OK" {
				t.Fatalf("SET %d: %s", i+j, got)
			}
		}
	}
}

func TestServesMoreThanItsMemory(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, srv, addr := startFaulty(t, 1<<10, cfg)
		c := dial(t, addr)
		fill(t, c)
		// One by one, and pipelined.
		for i := range 200 {
			if got := c.do("GET", farKey(i)).bulk; got != farValue(i) {
				t.Fatalf("GET %d: other bytes", i)
			}
		}
		const batch = 100
		for at := 200; at < farKeys; at += batch {
			var in strings.Builder
			for i := at; i < at+batch; i++ {
				in.WriteString(encode("GET", farKey(i)))
			}
			c.send(in.String())
			for i := at; i < at+batch; i++ {
				if got := c.recv().bulk; got != farValue(i) {
					t.Fatalf("GET %d in a pipeline: other bytes", i)
				}
			}
		}
		st := srv.Stats()
		if perFetch := float64(st.FetchedKeys) / float64(st.Fetches); perFetch < 3 {
			t.Errorf("%.1f keys per fetch: pipelined commands were not fetched together", perFetch)
		}
		// MGET of many, and what reads and writes.
		mget := []string{"MGET"}
		for i := range 50 {
			mget = append(mget, farKey(i*7))
		}
		for i, e := range c.do(mget...).elems {
			if e.bulk != farValue(i*7) {
				t.Errorf("MGET: other bytes for key %d", i*7)
			}
		}
		for i := range 100 {
			if got, want := c.do("APPEND", farKey(i), "x").String(), ":4097"; got != want {
				t.Fatalf("APPEND: got %s, want %s", got, want)
			}
		}
	})
}

// TestHeldUpFarMemory checks that commands that need far memory fail in time
// while it does not answer, and that all others go on.
func TestHeldUpFarMemory(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		if cfg.Loops > 0 {
			cfg.Loops = 1
		}
		cfg.OpTimeout = time.Second
		store, srv, addr := startFaulty(t, 1<<10, cfg)
		c, other := dial(t, addr), dial(t, addr)
		fill(t, c)
		other.do("SET", "near", "v")
		release := store.hold()
		defer release()
		c.send(encode("GET", farKey(0)) + encode("MULTI") + encode("SET", "near", "w") + encode("APPEND", farKey(1), "x") + encode("EXEC"))
		eventually(t, "a read that is held up", func() bool { return store.waiting.Load() > 0 })
		// The same event loop serves others meanwhile.
		served := 0
		for srv.Stats().Timeouts == 0 {
			if got := other.do("GET", "near").bulk; got != "v" && got != "w" {
				t.Fatalf("a local key, meanwhile: %q", got)
			}
			if srv.Stats().Timeouts == 0 {
				served++
			}
		}
		if served == 0 {
			t.Error("no command of another client was served meanwhile")
		}
		if got := c.recv().String(); !strings.HasPrefix(got, "-TRYAGAIN far memory") {
			t.Errorf("GET of a far key: %s", got)
		}
		c.recv()
		c.recv()
		c.recv()
		if got := c.recv().String(); !strings.Contains(got, "-TRYAGAIN") {
			t.Errorf("EXEC with a far key: %s", got)
		}
		release()
		if got := c.do("GET", farKey(0)).bulk; got != farValue(0) {
			t.Errorf("GET once far memory answers again: %.40q", got)
		}
	})
}

// TestATransactionPublishesOnce: not each time that EXEC runs until its keys are local, and not if it fails.
func TestATransactionPublishesOnce(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OpTimeout = time.Second
		store, srv, addr := startFaulty(t, 1<<10, cfg)
		c, sub := dial(t, addr), dial(t, addr)
		fill(t, c)
		sub.words("SUBSCRIBE news")
		sub.words("PSUBSCRIBE n*")
		var want []string
		exec := func(key int) (failed bool) {
			message := fmt.Sprint("about ", key)
			c.send(encode("MULTI") + encode("PUBLISH", "news", message) + encode("GET", farKey(key)) + encode("EXEC"))
			for range 3 {
				c.recv()
			}
			r := c.recv()
			if len(r.elems) == 2 && r.elems[0].line == ":2" && r.elems[1].bulk == farValue(key) {
				want = append(want, message, message)
			} else if failed = strings.HasPrefix(r.line, "-TRYAGAIN"); !failed {
				t.Fatalf("EXEC: got %.80s", r)
			}
			return failed
		}
		before := srv.Stats().Fetches
		for key := range 100 {
			exec(key)
		}
		if srv.Stats().Fetches == before {
			t.Error("no EXEC had to run again: the test has not tested what it should")
		}
		release := store.hold()
		defer release()
		for key := 1000; !exec(key); key++ {
		}
		release()
		c.words("PUBLISH news end")
		want = append(want, "end")
		for i := range want {
			r := sub.recv()
			if got := r.elems[len(r.elems)-1].bulk; got != want[i] {
				t.Fatalf("message %d: got %q, want %q", i, got, want[i])
			}
		}
	})
}

// TestWhatCannotBeUndoneInATransactionHappensOnce: such an EXEC does not run again when its keys have been fetched.
func TestWhatCannotBeUndoneInATransactionHappensOnce(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, srv, addr := startFaulty(t, 1<<10, cfg)
		c := dial(t, addr)
		fill(t, c)
		c.words("CLIENT SETNAME name0")
		c.words("CONFIG SET timeout 1000")
		before := srv.Stats().Waits
		key := 0
		for round := range 10 {
			victim := dial(t, addr)
			victim.words("PING")            // the server knows it now
			for _, row := range [][]string{ // each line is followed by its reply
				{"CLIENT KILL ID " + dial(t, addr).words("CLIENT ID")[1:], ":1"},
				{"CLIENT KILL " + victim.c.LocalAddr().String(), "+OK"},
				{"CLIENT GETNAME", fmt.Sprintf("%q", fmt.Sprint("name", round)), fmt.Sprint("CLIENT SETNAME name", round+1), "+OK"},
				{"CONFIG GET timeout", fmt.Sprintf(`["timeout" "%d"]`, 1000+round), fmt.Sprint("CONFIG SET timeout ", 1001+round), "+OK"},
				{"CLIENT PAUSE 3600000 ALL", "+OK"}, // EXEC itself would wait for the end of the pause
			} {
				c.words("MULTI")
				var want []string
				for i := 0; i < len(row); i += 2 {
					c.words(row[i])
					want = append(want, row[i+1])
				}
				c.words("GET " + farKey(key))
				want = append(want, fmt.Sprintf("%q", farValue(key)))
				key++
				if got, want := c.words("EXEC"), fmt.Sprint(want); got != want {
					t.Fatalf("EXEC of %q: got %.90s, want %.90s", row, got, want)
				}
				c.words("CLIENT UNPAUSE")
			}
		}
		if srv.Stats().Waits == before {
			t.Error("no EXEC had to wait: the test has not tested what it should")
		}
	})
}

func TestLostFarMemory(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		store, srv, addr := startFaulty(t, 1<<10, cfg)
		c := dial(t, addr)
		fill(t, c)
		c.do("SET", "near", "v")
		store.lose()
		lost := 0
		for i := range farKeys {
			r := c.do("GET", farKey(i))
			switch {
			case strings.HasPrefix(r.line, "-LOST the entry was lost with its far memory (mem"):
				lost++
			case r.bulk != farValue(i):
				t.Fatalf("GET %d: %.60s, want its value or LOST", i, r)
			}
		}
		if lost < farKeys/2 || srv.Stats().Lost != int64(lost) {
			t.Errorf("%d of %d keys are lost, %d counted", lost, farKeys, srv.Stats().Lost)
		}
		expect(t, c, "GET near", `"v"`)
		// What is lost can be replaced and removed.
		if got := c.do("SET", farKey(0), "new").String(); got != "+OK" {
			t.Errorf("SET of a lost key: %s", got)
		}
		expect(t, c, "GET "+farKey(0), `"new"`)
		if got := c.do("DEL", farKey(1)).String(); got != ":1" {
			t.Errorf("DEL of a lost key: %s", got)
		}
		expect(t, c, "GET "+farKey(1), "nil")
		expect(t, c, "FLUSHALL", "+OK")
		expect(t, c, "GET "+farKey(2), "nil")
	})
}

func TestFullFarMemory(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		_, _, addr := startFaulty(t, 16, cfg) // 4 MiB
		c := dial(t, addr)
		stored := 0
		for ; ; stored++ {
			got := c.do("SET", farKey(stored), farValue(stored)).String()
			if strings.HasPrefix(got, "-OOM ") {
				break
			}
			if got != "+OK" || stored == farKeys {
				t.Fatalf("SET %d: %s", stored, got)
			}
		}
		for i := range stored {
			if got := c.do("GET", farKey(i)); got.bulk != farValue(i) {
				t.Fatalf("GET %d of %d after far memory was full: %.60s", i, stored, got)
			}
		}
		for i := range stored / 2 {
			c.do("DEL", farKey(i))
		}
		eventually(t, "room for a new key after half was deleted", func() bool { return c.do("SET", "new", farValue(1)).line == "+OK" })
	})
}

// TestALargeHashIsChangedAsAWhole: of the blocks that a command is to change some
// are local and some cannot be read in time.
func TestALargeHashIsChangedAsAWhole(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OpTimeout = 300 * time.Millisecond
		store, _, addr := startFaulty(t, 1<<10, cfg)
		c := dial(t, addr)
		want := map[string]string{}
		hset, hdel, hmget := []string{"HSET", "h"}, []string{"HDEL", "h"}, []string{"HMGET", "h"}
		for i := range 2000 {
			f, v := fmt.Sprint("field", i), strings.Repeat("v", 100)
			hset = append(hset, f, v)
			switch {
			case i < 200: // the room that they leave keeps blocks from being split
				hdel = append(hdel, f)
				continue
			case i < 300:
				hmget = append(hmget, f)
			}
			want[f] = v
		}
		c.do(hset...)
		c.do(hdel...)
		for round := range 2 {
			fill(t, c)
			if got := c.do(hmget...); len(got.elems) != len(hmget)-2 {
				t.Fatalf("HMGET: %.60s", got)
			}
			release := store.hold()
			change := []string{"HSET", "h"}
			for i := range 60 {
				change = append(change, fmt.Sprint("new", round, ".", i), "v")
			}
			got := c.do(change...).String()
			release()
			if !strings.HasPrefix(got, "-TRYAGAIN far memory") {
				t.Fatalf("HSET of far fields: got %s, want TRYAGAIN", got)
			}
			checkHash(t, c, "h", want)
		}
	})
}

// TestAFullIndexIsExplained: what one command stores stays in the local index until all of it is stored. Where that takes
// the local budget the error says that more of it is what is needed, and nothing of the command is stored.
func TestAFullIndexIsExplained(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	_, addr := startServer(t, far.MinLocal, Config{})
	c := dial(t, addr)
	const keys = 300_000
	mset := []string{"MSET"}
	for i := range keys {
		mset = append(mset, fmt.Sprint("key", i), "v")
	}
	got := c.do(mset...).String()
	if !strings.HasPrefix(got, "-OOM ") || !strings.Contains(got, "index") || !strings.Contains(got, "local budget") || strings.Contains(got, "far memory is full") {
		t.Errorf("MSET of %d keys: got %s, want -OOM about the index and the local budget", keys, got)
	}
	expect(t, c, "DBSIZE", ":0")
}

// TestAWatchThatFailsWatchesNothing: the first key of WATCH is local, the second cannot be
// read in time.
func TestAWatchThatFailsWatchesNothing(t *testing.T) {
	drivers(t, func(t *testing.T, cfg Config) {
		cfg.OpTimeout = 300 * time.Millisecond
		store, _, addr := startFaulty(t, 1<<10, cfg)
		c, other := dial(t, addr), dial(t, addr)
		fill(t, c)
		expect(t, c, "SET near v", "+OK")
		release := store.hold()
		got := c.do("WATCH", "near", farKey(0)).String()
		release()
		if !strings.HasPrefix(got, "-TRYAGAIN far memory") {
			t.Fatalf("WATCH of a far key: got %s, want TRYAGAIN", got)
		}
		expect(t, other, "SET near w", "+OK")
		expect(t, c, "MULTI", "+OK")
		expect(t, c, "GET near", "+QUEUED")
		expect(t, c, "EXEC", `["w"]`)
	})
}
