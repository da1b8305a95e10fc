package resp

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"polder/far"
)

func expect(t *testing.T, c *client, line, want string) {
	t.Helper()
	if got := c.words(line); got != want {
		t.Errorf("%s: got %s, want %s", line, got, want)
	}
}

func TestTransactions(t *testing.T) {
	_, addr := startServer(t, roomy, Config{})
	a, b := dial(t, addr), dial(t, addr)

	expect(t, a, "EXEC", "-ERR EXEC without MULTI")
	expect(t, a, "DISCARD", "-ERR DISCARD without MULTI")

	// Queued commands run together; errors of one do not stop the others.
	expect(t, a, "MULTI", "+OK")
	expect(t, a, "MULTI", "-ERR MULTI calls can not be nested")
	expect(t, a, "SET x 1", "+QUEUED")
	expect(t, b, "GET x", "nil")
	expect(t, a, "HGET x f", "+QUEUED")
	expect(t, a, "INCR x", "+QUEUED")
	expect(t, a, "EXEC", "[+OK -WRONGTYPE Operation against a key holding the wrong kind of value :2]")

	// A command that is refused ruins the transaction.
	expect(t, a, "MULTI", "+OK")
	expect(t, a, "GET", "-ERR wrong number of arguments for 'get' command")
	expect(t, a, "SET x 5", "+QUEUED")
	expect(t, a, "EXEC", "-EXECABORT Transaction discarded because of previous errors.")
	expect(t, a, "GET x", `"2"`)

	// So does a change of a watched key, by whatever command.
	for _, change := range []string{"SET x 3", "DEL x", "HSET x f 1", "RENAME x y", "RENAME y x", "EXPIRE x 100", "FLUSHALL", "MSET z 1 x 2"} {
		expect(t, a, "WATCH w x", "+OK")
		b.words(change)
		expect(t, a, "MULTI", "+OK")
		expect(t, a, "SET ok 1", "+QUEUED")
		expect(t, a, "EXEC", "*nil")
	}
	// Changes that are none, and keys that are not watched any more, do not.
	for _, change := range []string{"GET x", "DEL nosuch", "SETNX x 1", "SET other 1"} {
		expect(t, a, "WATCH x nosuch", "+OK")
		b.words(change)
		expect(t, a, "MULTI", "+OK")
		expect(t, a, "WATCH x", "-ERR WATCH inside MULTI is not allowed")
		expect(t, a, "EXEC", "[]")
	}
	expect(t, a, "WATCH x", "+OK")
	b.words("SET x 9")
	expect(t, a, "UNWATCH", "+OK")
	expect(t, a, "MULTI", "+OK")
	expect(t, a, "EXEC", "[]")

	// One's own changes count too.
	expect(t, a, "WATCH x", "+OK")
	expect(t, a, "SET x 1", "+OK")
	expect(t, a, "MULTI", "+OK")
	expect(t, a, "EXEC", "*nil")
	// A key that expires has changed.
	for {
		expect(t, a, "SET x 1 PX 30", "+OK")
		expect(t, a, "WATCH x", "+OK")
		if a.words("EXISTS x") == ":1" {
			break
		}
		expect(t, a, "UNWATCH", "+OK") // it had expired before
	}
	eventually(t, "the expiry of x", func() bool { return b.words("EXISTS x") == ":0" })
	expect(t, a, "MULTI", "+OK")
	expect(t, a, "EXEC", "*nil")
	// Not one that had expired before.
	expect(t, a, "WATCH x", "+OK")
	expect(t, a, "MULTI", "+OK")
	expect(t, a, "EXEC", "[]")

	// FLUSHALL among others.
	expect(t, a, "MULTI", "+OK")
	for _, line := range []string{"SET x 1", "FLUSHALL", "SET y 1", "DBSIZE"} {
		expect(t, a, line, "+QUEUED")
	}
	expect(t, a, "EXEC", "[+OK +OK +OK :1]")
}

// TestMultiKeyCommandsAreAtomic writes the same value to many keys at once, in
// three ways, while others read them all at once, in two ways.
func TestMultiKeyCommandsAreAtomic(t *testing.T) {
	for _, local := range []int64{roomy, far.MinLocal} {
		t.Run(fmt.Sprint(local>>20, "MiB"), func(t *testing.T) {
			heap := newHeap(t, local)
			push := newChurn(heap)
			_, addr := startOn(t, heap, Config{})
			const keys, rounds = 8, 150
			names := make([]string, keys)
			for i := range names {
				names[i] = "key" + strconv.Itoa(i)
			}
			var wg sync.WaitGroup
			for w := range 3 {
				c := dial(t, addr)
				wg.Go(func() {
					for i := range rounds {
						v := fmt.Sprintf("%d-%d", w, i)
						var mset []string
						for _, k := range names {
							mset = append(mset, k, v)
						}
						if w == 0 {
							c.do(append([]string{"MSET"}, mset...)...)
							continue
						}
						c.do("MULTI")
						for _, k := range names {
							if w == 1 {
								c.do("SET", k, v)
							} else {
								c.do("GETSET", k, v)
							}
						}
						if r := c.do("EXEC"); len(r.elems) != keys {
							t.Errorf("EXEC: %s", r)
						}
					}
				})
			}
			for r := range 2 {
				c := dial(t, addr)
				wg.Go(func() {
					for range rounds {
						var got answer
						if r == 0 {
							got = c.do(append([]string{"MGET"}, names...)...)
						} else {
							c.do("MULTI")
							for _, k := range names {
								c.do("GET", k)
							}
							got = c.do("EXEC")
						}
						for _, e := range got.elems {
							if e.bulk != got.elems[0].bulk || len(got.elems) != keys {
								t.Errorf("torn read: %s", got)
								return
							}
						}
					}
				})
			}
			if local < roomy {
				for range 30 {
					push.evict(t)
				}
			}
			wg.Wait()
		})
	}
}

// TestWatchMakesCountersExact has several clients increment by reading and
// writing in transactions that fail when another one was faster.
func TestWatchMakesCountersExact(t *testing.T) {
	_, addr := startServer(t, roomy, Config{})
	const clients, each = 4, 40
	var wg sync.WaitGroup
	for range clients {
		c := dial(t, addr)
		wg.Go(func() {
			for done := 0; done < each; {
				c.do("WATCH", "n")
				n, _ := strconv.Atoi(c.do("GET", "n").bulk)
				c.do("MULTI")
				c.do("SET", "n", strconv.Itoa(n+1))
				if c.do("EXEC").line == "*1" {
					done++
				}
			}
		})
	}
	wg.Wait()
	expect(t, dial(t, addr), "GET n", strconv.Quote(strconv.Itoa(clients*each)))
}

// TestUnwatchIsFinal ends watches while another client changes the key: the
// next transaction must not notice.
func TestUnwatchIsFinal(t *testing.T) {
	_, addr := startServer(t, roomy, Config{Loops: 2})
	a, b := dial(t, addr), dial(t, addr)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				b.send(strings.Repeat(encode("SET", "x", "1"), 100))
				for range 100 {
					b.recv()
				}
			}
		}
	})
	defer wg.Wait()
	defer close(done)
	const rounds = 100
	for range 100 {
		a.send(strings.Repeat(encode("WATCH", "x")+encode("UNWATCH")+encode("MULTI")+encode("EXEC"), rounds))
		for range rounds {
			a.recv()
			a.recv()
			a.recv()
			if got := a.recv().String(); got != "[]" {
				t.Fatalf("EXEC after UNWATCH: got %s, want []", got)
			}
		}
	}
}
