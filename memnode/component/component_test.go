package component_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/internal/proctest"
	"polder/memnode"
	"polder/memnode/component"
	"polder/memnode/component/wire"
	"polder/pool"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) {
	component.Main(component.Set{
		table: {New: newShelf, Bounded: true}, column: {New: newShelf}, "wicked": {New: newWicked}, "tame": {New: newWicked, Bounded: true},
		"words": {New: newWords},
	})
	if os.Getenv(nodeEnv) != "" {
		runNode()
	}
	proctest.Main(m)
}

// node lends 40 MiB, half of it to components of two clients, whose requests may
// run for so long.
func node(time time.Duration) memnode.Config {
	return memnode.Config{
		Lend: 40 << 20, ChunkSize: 1 << 20, ClientBudget: 18 << 20, Grace: grace,
		Components: component.Config{Memory: 20 << 20, ClientMemory: 10 << 20, Objects: 10, Time: time},
	}
}

// ample is more than any request takes, however busy the machine is.
const ample = time.Minute

// grace is time enough for a client to come back, and not long to wait for.
const grace = 2 * time.Second

func overDrivers(t *testing.T, f func(t *testing.T, s pooltest.Setup)) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		t.Run("over "+s.Name, func(t *testing.T) { f(t, s) })
	}
}

func construct(t testing.TB, p *pool.Pool, name string) *pool.Object {
	t.Helper()
	o, err := p.Construct(context.Background(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func wantStatus(t testing.TB, what string, err error, want wire.Status) {
	t.Helper()
	var e *pool.ComponentError
	if !errors.As(err, &e) || e.Status != want {
		t.Fatalf("%s: got %v, want a component's error with status %q", what, err, want)
	}
}

func mustRead(t testing.TB, o *pool.Object, key, want string) {
	t.Helper()
	got, err := o.Read(context.Background(), []byte(key), nil)
	if err != nil || string(got) != want {
		t.Fatalf("%s: %q: got %q, %v, want %q", o.Name(), key, got, err, want)
	}
}

func mustWrite(t testing.TB, o *pool.Object, key, value string) {
	t.Helper()
	if err := o.Write(context.Background(), []byte(key), []byte(value)); err != nil {
		t.Fatal(err)
	}
}

func compute(o *pool.Object, op uint16, in []byte) ([]byte, error) {
	return o.Compute(context.Background(), pool.Computation{Op: op, In: in}, nil)
}

func TestObjectsLiveAndDie(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(ample))
		p := c.Open(pool.Config{}).Pool
		shelf := construct(t, p, table)
		mustWrite(t, shelf, "key", "value")
		mustRead(t, shelf, "key", "value")
		_, err := shelf.Read(t.Context(), []byte("another"), nil)
		if !errors.Is(err, pool.ErrNotFound) {
			t.Fatalf("got %v, want %v", err, pool.ErrNotFound)
		}
		big := strings.Repeat("x", maxValue)
		mustWrite(t, shelf, "big", big)
		mustRead(t, shelf, "big", big)
		if err := shelf.Write(t.Context(), []byte("k"), make([]byte, 1<<16)); !errors.Is(err, pool.ErrTooLarge) {
			t.Fatalf("a request that is too large: got %v, want %v", err, pool.ErrTooLarge)
		}
		wantStatus(t, "a value that is too large", shelf.Write(t.Context(), []byte("k"), make([]byte, maxValue+1)), wire.Refused)

		v := construct(t, p, column)
		mustWrite(t, v, "key", "another value")
		mustRead(t, v, "key", "another value")

		_, err = p.Construct(t.Context(), "no such thing", nil)
		if wantStatus(t, "an unknown component", err, wire.Unknown); !errors.Is(err, pool.ErrNoComponent) {
			t.Fatal(err)
		}
		_, err = p.Construct(t.Context(), column, []byte{200})
		wantStatus(t, "wrong parameters", err, wire.Refused)
		for _, o := range []*pool.Object{shelf, v} {
			if err := o.Destruct(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := shelf.Read(t.Context(), nil, nil); !errors.Is(err, pool.ErrFreed) {
			t.Fatalf("got %v, want %v", err, pool.ErrFreed)
		}
		if st := c.Nodes[0].Stats().Components; st.Objects != 0 || st.Workers != 1 || st.Deaths != 0 {
			t.Fatalf("at the end: %+v", st)
		}
	})
}

// What happens to the objects of a client, one of which does something wicked.
func TestWhatAComponentDoesHarmsOnlyItsCaller(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(time.Second))
		victim, other := c.Open(pool.Config{}).Pool, c.Open(pool.Config{}).Pool
		bystander := construct(t, other, table)
		mustWrite(t, bystander, "key", "value")
		chunk := func() {
			k, err := victim.Alloc(t.Context(), int64(victim.ChunkSize()))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := k.WriteAt([]byte("lending goes on"), 0); err != nil {
				t.Fatal(err)
			}
			if err := k.Free(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, tt := range []struct {
			name string
			kind string
			op   uint16
			want wire.Status
			lost bool // the object
			all  bool // and all of the client's others, but those that are bounded
		}{
			{"panics", "wicked", opPanic, wire.Panicked, true, false},
			{"loops", "wicked", opLoop, wire.Lost, true, true},
			{"takes all of the Go heap", "wicked", opHeap, wire.Lost, true, true},
			{"overflows its stack", "wicked", opStack, wire.Lost, true, true},
			{"exits", "wicked", opExit, wire.Lost, true, true},
			{"panics in a goroutine", "wicked", opGoroutine, wire.Lost, true, true},
			{"gives too much", "wicked", opOverflow, wire.TooLarge, false, false},
			{"is bounded and panics", "tame", opPanic, wire.Panicked, true, false},
			{"is bounded and gives too much", "tame", opOverflow, wire.TooLarge, false, false},
			{"is bounded and takes all of its memory", "tame", opMemory, wire.OK, false, false},
		} {
			t.Run(tt.name, func(t *testing.T) {
				shelf, evil := construct(t, victim, table), construct(t, victim, tt.kind)
				neighbour := construct(t, victim, "wicked")
				mustWrite(t, shelf, "key", "value")
				_, err := compute(evil, tt.op, nil)
				if tt.want != wire.OK || err != nil {
					wantStatus(t, "the call", err, tt.want)
				}
				out, err := compute(evil, opEcho, []byte("still there"))
				switch {
				case tt.lost && !errors.Is(err, pool.ErrLost):
					t.Fatalf("the object: got %v, want %v", err, pool.ErrLost)
				case !tt.lost && string(out) != "still there":
					t.Fatalf("the object: got %q, %v", out, err)
				}
				if got, err := neighbour.Read(t.Context(), []byte("key"), nil); tt.all && !errors.Is(err, pool.ErrLost) || !tt.all && string(got) != "key" {
					t.Fatalf("another object: got %q, %v, lost: want %v", got, err, tt.all)
				}
				mustRead(t, shelf, "key", "value")
				mustRead(t, bystander, "key", "value")
				chunk()
				// There is a place for new ones, with all of the memory.
				if err := evil.Destruct(t.Context()); err != nil {
					t.Fatal(err)
				}
				again := construct(t, victim, "wicked")
				if out, err := compute(again, opMemory, nil); err != nil || binary.LittleEndian.Uint64(out) < 4 {
					t.Fatalf("a new object gets %x MiB, %v, want 4 at least", out, err)
				}
				for _, o := range []*pool.Object{shelf, neighbour, again} {
					if err := o.Destruct(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
		st := c.Nodes[0].Stats().Components
		if st.Deaths != 5 || st.Killed < 1 || st.Panics != 2 || st.Workers != 1 || st.Reserved != 20<<20 {
			t.Errorf("got %+v, want 5 deaths, at least 1 of them killed, 2 panics, 1 worker with all of the memory", st)
		}
	})
}

// A component that has promised to be bounded and is not keeps its own client
// waiting, until that gives up.
func TestABoundedComponentThatLoopsHarmsOnlyItsCaller(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(200*time.Millisecond))
		victim, other := c.Open(pool.Config{}).Pool, c.Open(pool.Config{}).Pool
		evil, bystander := construct(t, victim, "tame"), construct(t, other, table)
		spinning.Store(true)
		ended := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			_, err := evil.Compute(ctx, pool.Computation{Op: opSpin}, nil)
			ended <- err
		}()
		if s.Name != pooltest.Inproc.Name { // there it is the caller itself who loops
			if err := <-ended; !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, pool.ErrTimeout) {
				t.Errorf("the call: got %v, want a timeout", err)
			}
		}
		for i := range 20 {
			mustWrite(t, bystander, "key", fmt.Sprint(i))
			mustRead(t, bystander, "key", fmt.Sprint(i))
		}
		chunk, err := other.Alloc(t.Context(), int64(other.ChunkSize()))
		if err != nil {
			t.Fatal(err)
		}
		if err := chunk.Free(t.Context()); err != nil {
			t.Fatal(err)
		}
		spinning.Store(false)
		if s.Name == pooltest.Inproc.Name {
			<-ended
		}
		if out, err := compute(evil, opEcho, []byte("still there")); err != nil || string(out) != "still there" {
			t.Errorf("the object: got %q, %v", out, err)
		}
	})
}

func TestOneObjectsTroubleIsNotAnothers(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.Inproc, node(ample))
	p := c.Open(pool.Config{}).Pool
	evil, shelf := construct(t, p, "wicked"), construct(t, p, table)
	_, err := p.Construct(t.Context(), "wicked", []byte("panic"))
	wantStatus(t, "a constructor that panics", err, wire.Panicked)
	_, err = p.Construct(t.Context(), "wicked", []byte("nil"))
	wantStatus(t, "a constructor that makes nothing", err, wire.Refused)
	_, err = evil.Read(t.Context(), make([]byte, 60<<10), nil)
	if err != nil {
		t.Fatal(err)
	}
	// While one object's call takes all of its time, another answers.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := evil.Compute(ctx, pool.Computation{Op: opWait}, nil)
		done <- err
	}()
	mustWrite(t, shelf, "key", "value")
	mustRead(t, shelf, "key", "value")
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, pool.ErrTimeout) {
		t.Fatalf("got %v, want that its time was over", err)
	}
	mustRead(t, evil, "and it is still there", "and it is still there")
	if st := c.Nodes[0].Stats().Components; st.Deaths != 0 {
		t.Errorf("%d workers died", st.Deaths)
	}
}

func TestLimits(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.Inproc, node(ample))
	p := c.Open(pool.Config{}).Pool
	shelf := construct(t, p, table)
	stored := 0
	for {
		err := shelf.Write(t.Context(), fmt.Append(nil, stored), make([]byte, 50_000))
		if errors.Is(err, pool.ErrNoMemory) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if stored++; stored > 200 {
			t.Fatal("a client has stored 10 MB, of 10 MiB that it may have less 4 for messages")
		}
	}
	if stored < 80 {
		t.Errorf("there was room for %d values of 50 kB in 6 MiB, want 80 at least", stored)
	}
	mustRead(t, shelf, "0", string(make([]byte, 50_000)))
	for range 10 {
		construct(t, p, "wicked")
	}
	_, err := p.Construct(t.Context(), "wicked", nil)
	wantStatus(t, "an eleventh object", err, wire.NoMemory)

	construct(t, c.Open(pool.Config{}).Pool, "tame")
	_, err = c.Open(pool.Config{}).Construct(t.Context(), "wicked", nil)
	wantStatus(t, "a third client, where there is memory for two", err, wire.Busy)

	// The chunks' share is what is left.
	n := 0
	for ; ; n++ {
		if _, err := p.Alloc(t.Context(), int64(p.ChunkSize())); errors.Is(err, pool.ErrNoMemory) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n != 8 {
		t.Errorf("a client with a budget of 18 MiB got %d MiB of chunks beside 10 MiB for components", n)
	}

	plain := pooltest.NewCluster(t, pooltest.Inproc, memnode.Config{Lend: 1 << 20, ChunkSize: 1 << 20})
	if _, err := plain.Open(pool.Config{}).Construct(t.Context(), "wicked", nil); !errors.Is(err, pool.ErrNoComponent) {
		t.Errorf("a node without components: got %v, want %v", err, pool.ErrNoComponent)
	}
}

func TestObjectsSurviveTheConnectionButNotTheSession(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(ample))
		k := c.Open(pool.Config{})
		shelf, worked := construct(t, k.Pool, table), construct(t, k.Pool, column)
		for i := range 5 {
			key := fmt.Sprint(i)
			mustWrite(t, shelf, key, "value")
			mustWrite(t, worked, key, "1234")
			k.Cut(c.Nodes[0])
			mustRead(t, shelf, key, "value")
			mustRead(t, worked, key, "1234")
		}
		dying := c.Open(pool.Config{})
		construct(t, dying.Pool, table)
		construct(t, dying.Pool, column)
		dying.Unreachable(c.Nodes[0], true)
		dying.Cut(c.Nodes[0])
		pooltest.Eventually(t, "the dead client's objects are gone", func() bool {
			st := c.Nodes[0].Stats()
			return st.Components.Workers == 1 && st.Components.Objects == 2 && st.Components.Reserved == 10<<20 && st.Sessions == 1
		})
		mustRead(t, shelf, "0", "value")
		if st := c.Nodes[0].Stats().Components; st.Deaths != 0 {
			t.Errorf("got %+v, want no deaths", st)
		}
		c.Nodes[0].Crash()
		c.Nodes[0].Start()
		for _, o := range []*pool.Object{shelf, worked} {
			pooltest.Eventually(t, "the object is lost with the node", func() bool {
				_, err := o.Read(t.Context(), []byte("0"), nil)
				return errors.Is(err, pool.ErrLost)
			})
		}
		mustWrite(t, construct(t, k.Pool, table), "key", "value")
	})
}

// Connections break under requests: what was read is right, and what has failed
// to be written is there or not.
func TestConnectionsBreakUnderRequests(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(ample))
		k := c.Open(pool.Config{})
		shelf := construct(t, k.Pool, table)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for id := range 8 {
			wg.Go(func() {
				key := fmt.Append(nil, id)
				possible := map[string]bool{"": true}
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					value := fmt.Sprint(i)
					switch err := shelf.Write(context.Background(), key, []byte(value)); {
					case err == nil:
						clear(possible)
						possible[value] = true
					case errors.Is(err, pool.ErrOutcomeUnknown):
						possible[value] = true
					default:
						t.Error(err)
						return
					}
					got, err := shelf.Read(context.Background(), key, nil)
					if errors.Is(err, pool.ErrNotFound) {
						err = nil
					}
					if err != nil || !possible[string(got)] {
						t.Errorf("got %q, %v, want one of %v", got, err, possible)
						return
					}
				}
			})
		}
		for range 10 {
			k.Cut(c.Nodes[0])
			// This waits for the next connection.
			if _, err := compute(shelf, opLen, nil); err != nil && !errors.Is(err, pool.ErrOutcomeUnknown) {
				t.Error(err)
			}
		}
		close(stop)
		wg.Wait()
	})
}

// A client that leaves replies unacknowledged for as long as it may gets all of
// its answers, although there are fewer buffers than requests.
func TestRequestsWaitForBuffersOfReplies(t *testing.T) {
	component.LimitReplies(t, 8)
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(ample))
		p := c.Open(pool.Config{}).Pool
		for _, kind := range []string{"tame", "wicked"} {
			o := construct(t, p, kind)
			var wg sync.WaitGroup
			for id := range 64 {
				wg.Go(func() {
					for i := range 50 {
						want := fmt.Sprint(id, i)
						if out, err := compute(o, opEcho, []byte(want)); err != nil || string(out) != want {
							t.Errorf("%s: got %q, %v, want %q", kind, out, err, want)
							return
						}
					}
				})
			}
			wg.Wait()
		}
	})
}

// An object that is made when its client has given up, or has no connection, does
// not last.
func TestWhatIsConstructedTooLateIsDestructed(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(ample))
		k := c.Open(pool.Config{})
		keep := construct(t, k.Pool, "wicked") // and with it the session
		for _, tt := range []struct {
			kind string
			cut  bool
		}{{"wicked", false}, {"tame", false}, {"wicked", true}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // enough to begin on a busy machine
			before := c.Nodes[0].Stats().Components.Requests
			begun := filepath.Join(t.TempDir(), "begun")
			done := make(chan error, 1)
			go func() {
				o, err := k.Construct(ctx, tt.kind, []byte("late "+begun))
				if err == nil { // over inproc the call is carried out before anybody can give up
					err = o.Destruct(context.Background())
				}
				done <- err
			}()
			if tt.cut {
				pooltest.Eventually(t, "the constructor runs", func() bool { _, err := os.Stat(begun); return err == nil })
				k.Cut(c.Nodes[0])
			}
			if err := <-done; err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, pool.ErrTimeout) && !errors.Is(err, pool.ErrOutcomeUnknown) {
				t.Errorf("%+v: got %v", tt, err)
			}
			cancel()
			pooltest.Eventually(t, "the object was there and is gone", func() bool {
				st := c.Nodes[0].Stats().Components
				return st.Objects == 1 && st.Requests >= before+2
			})
		}
		if out, err := compute(keep, opEcho, []byte("x")); err != nil || string(out) != "x" {
			t.Errorf("got %q, %v", out, err)
		}
	})
}
