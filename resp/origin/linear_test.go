package origin

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/internal/linear"
)

// command is one on one key, as porcupine sees it. MGET is one op for each key.
type command struct{ name, key, arg string }

// unknown is the result of a command whose reply did not come: it may have taken effect.
const unknown = "?"

var register = porcupine.Model{
	Partition: linear.By(func(in command) string { return in.key }),
	Init:      func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		value, in, out := state.(string), input.(command), output.(string)
		switch in.name {
		case "GET":
			return out == value, value
		case "EXISTS":
			return out == "1" == (value != ""), value
		case "STRLEN":
			return out == strconv.Itoa(len(value)), value
		case "SET":
			return true, in.arg
		case "DEL":
			return true, ""
		}
		n, _ := strconv.Atoi(value)
		next := strconv.Itoa(n + 1)
		return out == unknown || out == next, next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v -> %v", input, output) },
}

// recorder keeps the history of what clients did.
type recorder struct {
	begun   time.Time
	mu      sync.Mutex
	history []porcupine.Operation
}

func (r *recorder) now() int64 { return time.Since(r.begun).Nanoseconds() }

// did records an op that ended at the time end.
func (r *recorder) did(id int, o command, call, end int64, out string) {
	r.mu.Lock()
	r.history = append(r.history, porcupine.Operation{ClientId: id, Input: o, Call: call, Output: out, Return: end})
	r.mu.Unlock()
}

// count is how much there is in the history.
func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.history)
}

// use has a client do n things with few keys. A write that fails may have taken effect at
// any time later; a read that fails says nothing.
func (r *recorder) use(t *testing.T, id int, c *redis.Client, n int, patient bool) {
	rnd := rand.New(rand.NewPCG(uint64(id), 7))
	ctx := t.Context()
	for i := range n {
		keys := []string{"k" + strconv.Itoa(rnd.IntN(3)), "j" + strconv.Itoa(rnd.IntN(3))}
		o := command{[]string{"GET", "GET", "GET", "MGET", "EXISTS", "STRLEN", "GETRANGE", "SET", "DEL", "INCR", "TX"}[rnd.IntN(11)], keys[0], ""}
		call, out := r.now(), ""
		var err error
		switch o.name {
		case "GET":
			if out, err = c.Get(ctx, o.key).Result(); errors.Is(err, redis.Nil) {
				err = nil
			}
		case "EXISTS", "STRLEN":
			var n int64
			n, err = c.Do(ctx, o.name, o.key).Int64()
			out = strconv.FormatInt(n, 10)
		case "GETRANGE":
			o.name = "GET"
			out, err = c.GetRange(ctx, o.key, 0, -1).Result()
		case "MGET":
			var values []any
			if values, err = c.MGet(ctx, keys...).Result(); err == nil {
				end := r.now()
				for i, v := range values {
					s, _ := v.(string)
					r.did(id, command{"GET", keys[i], ""}, call, end, s)
				}
				continue
			}
		case "SET":
			o.arg = strconv.Itoa(1000*id + i)
			err = c.Set(ctx, o.key, o.arg, 0).Err()
		case "DEL":
			err = c.Del(ctx, o.key).Err()
		case "INCR":
			var v int64
			v, err = c.Incr(ctx, o.key).Result()
			out = strconv.FormatInt(v, 10)
		case "TX": // a transaction, and a script in it
			o.name, o.arg = "SET", strconv.Itoa(1000*id+i)
			_, err = c.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Eval(ctx, "return redis.call('set', KEYS[1], ARGV[1])", []string{o.key}, o.arg)
				return nil
			})
		}
		end := r.now()
		if err != nil {
			if patient {
				t.Errorf("%v: %v", o, err)
				return
			}
			if slices.Contains([]string{"GET", "MGET", "EXISTS", "STRLEN"}, o.name) {
				continue
			}
			out, end = unknown, 1<<62
		}
		r.did(id, o, call, end, out)
	}
}

func (r *recorder) check(t *testing.T) {
	t.Helper()
	if res := porcupine.CheckOperationsTimeout(register, r.history, testTimeout); res != porcupine.Ok {
		t.Errorf("the history of %d operations is not linearizable: %s", len(r.history), res)
	}
}

// TestWhatGoesThroughTheCacheIsLinearizable has clients read and write few keys through the
// cache, some by transactions and scripts.
func TestWhatGoesThroughTheCacheIsLinearizable(t *testing.T) {
	o := startRedis(t)
	s, addr := startServer(t, o.Addr, Config{})
	r := &recorder{begun: time.Now()}
	var wg sync.WaitGroup
	for id := range 6 {
		c := connect(t, addr)
		wg.Go(func() { r.use(t, id, c, 150, true) })
	}
	wg.Wait()
	r.check(t)
	if st := s.Stats(); st.Hits == 0 || st.Invalidations == 0 || st.Settled == 0 {
		t.Errorf("little happened: %+v", st)
	}
}

// TestItIsLinearizableWhileConnectionsAreKilledAndTheOriginStops does the same while
// things go wrong.
func TestItIsLinearizableWhileConnectionsAreKilledAndTheOriginStops(t *testing.T) {
	o := startRedis(t)
	s, addr := startServer(t, o.Addr, Config{})
	r := &recorder{begun: time.Now()}
	stop := make(chan struct{})
	var faults sync.WaitGroup
	faults.Go(func() { disturb(t, o, r, stop) })
	var wg sync.WaitGroup
	for id := range 5 {
		c := connect(t, addr)
		wg.Go(func() { r.use(t, id, c, 120, false) })
	}
	wg.Wait()
	close(stop)
	faults.Wait()
	r.check(t)
	if st := s.Stats(); st.Hits == 0 || st.Flushes == 0 {
		t.Errorf("little happened: %+v", st)
	}
}

// disturb kills all connections and stops the origin for a moment, again and again, whenever the clients have done some
// more.
func disturb(t *testing.T, o *child.Redis, r *recorder, stop chan struct{}) {
	c := redis.NewClient(&redis.Options{Addr: o.Addr, MaxRetries: -1, ReadTimeout: testTimeout})
	defer func() { _ = c.Close() }()
	for i := 0; ; i++ {
		for r.count() < 40*i {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
		if i%3 == 0 {
			if err := errors.Join(o.Signal(syscall.SIGSTOP), o.Signal(syscall.SIGCONT)); err != nil {
				t.Error(err)
			}
			continue
		}
		if err := c.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
			t.Error(err)
		}
	}
}

// TestReadersSeeTheStatesOfTheOriginInTheirOrder: a writer at the origin itself raises two
// counters together; whoever reads through the cache, one by one or at once, sees neither
// fall, nor a state that never was.
func TestReadersSeeTheStatesOfTheOriginInTheirOrder(t *testing.T) {
	o := startRedis(t)
	s, addr := startServer(t, o.Addr, Config{})
	ctx := t.Context()
	direct := connect(t, o.Addr)
	const last = 150
	write := func(n int) {
		if err := direct.MSet(ctx, "a", n, "b", n).Err(); err != nil {
			t.Error(err)
		}
	}
	write(0)
	var wg sync.WaitGroup
	for range 3 {
		c := connect(t, addr)
		wg.Go(func() {
			seen := 0
			for i := 0; seen < last; i++ {
				var a, b int
				if i%2 == 0 {
					a, _ = c.Get(ctx, "a").Int()
					b, _ = c.Get(ctx, "b").Int()
					if b < a {
						t.Errorf("b is %d after a was %d", b, a)
						return
					}
				} else {
					v, err := c.MGet(ctx, "a", "b").Result()
					if err != nil {
						t.Error(err)
						return
					}
					a, _ = strconv.Atoi(fmt.Sprint(v[0]))
					b, _ = strconv.Atoi(fmt.Sprint(v[1]))
					if a != b {
						t.Errorf("MGET says %d and %d, which was never so", a, b)
						return
					}
				}
				if a < seen {
					t.Errorf("a is %d after something was %d", a, seen)
					return
				}
				seen = b
			}
		})
	}
	for n := range last {
		write(n + 1)
		time.Sleep(time.Millisecond)
	}
	wg.Wait()
	if hits(s) == 0 {
		t.Error("nothing was answered from the cache")
	}
}
