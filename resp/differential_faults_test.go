package resp

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"polder/far"
)

// faults makes far memory fail by turns, while commands are played: it is full,
// does not answer, or takes nothing. A nil faults makes none.
type faults struct {
	store   *faultyStore
	filler  *far.ByteMap
	n       int
	release func() // ends reads that are held up
	full    bool
	txn     *far.Txn // has what is kept in full far memory for what shrinks
	begun   int      // the first key that was stored when it was last filled

	oom, tryAgain, deletions, transactions, struck, large int // what was seen
}

// wide makes commands that take several changes.
func (g *generator) wide() []string {
	many := func(f func() string, n int) (list []string) {
		for range 1 + g.r.IntN(n) {
			list = append(list, f())
		}
		return list
	}
	value := func() string { return strings.Repeat(g.of("w", "x", "y"), g.r.IntN(600)) }
	fields := func(n int) (list []string) {
		for range 1 + g.r.IntN(n) {
			list = append(list, g.field(), value())
		}
		return list
	}
	if g.faults.full && g.r.IntN(4) > 0 {
		switch g.r.IntN(30) {
		case 0, 1, 2, 3, 4, 5:
			return []string{"multi"}
		case 6, 7, 8:
			return []string{"exec"}
		case 9:
			return cat(g.of("del", "unlink"), many(g.key, 2))
		case 10:
			return cat("getdel", g.key())
		case 11:
			return cat(g.of("expire", "pexpire"), g.key(), "-1")
		}
		return cat("hdel", g.hashKey(), many(g.field, 4))
	}
	switch g.r.IntN(10) {
	case 0, 1, 2:
		return cat(g.of("hset", "hmset"), g.hashKey(), fields(60))
	case 3, 4:
		return cat("hdel", g.hashKey(), many(g.field, 60))
	case 5:
		var list []string
		for range 1 + g.r.IntN(10) {
			list = append(list, g.key(), g.value())
		}
		return cat(g.of("mset", "mset", "msetnx"), list)
	case 6:
		return cat(g.of("del", "unlink"), many(g.key, 3))
	case 7:
		return cat(g.of("rename", "renamenx"), g.hashKey(), g.hashKey())
	case 8:
		return cat("copy", g.hashKey(), g.hashKey(), "replace")
	}
	return []string{g.of("multi", "exec")}
}

// between is called after command i, and changes what is wrong with the store.
// Before commands in whose place all that is stored is compared, nothing is.
func (f *faults) between(t *testing.T, i int) {
	switch phase := i % 500; phase {
	case 100, 400:
		f.push(t)
		f.release = f.store.hold()
	case 180, 460:
		f.release()
		f.release = nil
	case 200:
		f.store.deaf.Store(true)
		f.fill(t)
	case 240:
		f.store.deaf.Store(false)
		f.empty(t)
	case 260:
		f.push(t)
		f.fill(t)
		f.full = true
	case 320:
		f.takeReserve(t)
	case 380:
		f.full = false
		f.txn.Rollback()
		f.empty(t)
	}
}

// push has what the server stores evicted.
func (f *faults) push(t *testing.T) {
	for range 800 {
		f.n++
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		err := f.filler.Set(ctx, []byte(strconv.Itoa(f.n%800)), far.Entry{Value: make([]byte, 8<<10)})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// fill stores values until there is no room for another.
func (f *faults) fill(t *testing.T) {
	f.begun = f.n + 1
	for size := 8 << 10; size > 0; {
		f.n++
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		err := f.filler.Set(ctx, []byte("fill"+strconv.Itoa(f.n)), far.Entry{Value: make([]byte, size)})
		cancel()
		switch {
		case err == nil:
		case errors.Is(err, far.ErrFull), errors.Is(err, context.DeadlineExceeded):
			size /= 4
		default:
			t.Fatal(err)
		}
	}
}

// takeReserve uses up what is kept in a full store for what shrinks.
func (f *faults) takeReserve(t *testing.T) {
	key := f.begun
	for size := 4 << 10; size > 0; size /= 4 {
		for failed := false; !failed; key++ {
			ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
			err := f.txn.Set(ctx, f.filler, []byte("fill"+strconv.Itoa(key)), far.Entry{Value: make([]byte, size)})
			cancel()
			if failed = errors.Is(err, far.ErrFull); err != nil && !failed {
				t.Fatal(err)
			}
		}
	}
}

// empty makes room again, and waits for it.
func (f *faults) empty(t *testing.T) {
	f.filler.Clear()
	eventually(t, "room in far memory", func() bool {
		return f.filler.Set(far.NoWait, []byte("room"), far.Entry{Value: make([]byte, 60<<10)}) == nil
	})
}

// failed reports whether far memory failed a command, which then must not have
// been one that only deletes, or a transaction of such, while all that is wrong is that there
// is no room.
func (f *faults) failed(t *testing.T, args []string, queue [][]string, r answer) bool {
	if f == nil {
		return false
	}
	deletes := deletesOnly(args)
	if strings.EqualFold(args[0], "exec") {
		deletes = len(queue) > 1 && !slices.ContainsFunc(queue, func(q []string) bool { return !deletesOnly(q) })
	}
	switch {
	case strings.HasPrefix(r.line, "-OOM "):
		f.oom++
		if deletes {
			t.Errorf("%.200q: got %s, want it to succeed without room", args, r)
		}
	case strings.HasPrefix(r.line, "-TRYAGAIN "):
		f.tryAgain++
		if deletes && f.full {
			t.Errorf("%.200q: got %s, want it to succeed without room", args, r)
		}
	default:
		if deletes && f.full && r.line[0] != '-' && r.line != "+QUEUED" {
			f.deletions++
			if len(r.elems) > 1 {
				f.transactions++
			}
		}
		return false
	}
	return true
}

// deletesOnly reports whether a command can do nothing but delete.
func deletesOnly(args []string) bool {
	switch strings.ToLower(args[0]) {
	case "del", "unlink", "hdel", "getdel", "flushall", "flushdb":
		return true
	case "expire", "pexpire":
		return len(args) > 2 && strings.HasPrefix(args[2], "-")
	}
	return false
}

func TestRandomCommandsThatFarMemoryFailsChangeNothing(t *testing.T) {
	for _, c := range []struct {
		name    string
		loops   int
		version string
	}{{"on an event loop", 1, "2"}, {"on goroutines", -1, "3"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store := &faultyStore{MemStore: far.NewMemStore(256<<10, 48)}
			heap, err := far.NewHeap(store, far.Config{Local: far.MinLocal})
			if err != nil {
				t.Fatal(err)
			}
			f := &faults{store: store, filler: heap.NewByteMap("filler"), txn: heap.NewTxn()}
			srv, addr := startOn(t, heap, Config{Loops: c.loops, MaxBulk: 1 << 20, OpTimeout: 30 * time.Millisecond})
			looks := srv.newSession()
			defer looks.close()
			g := &generator{r: rand.New(rand.NewPCG(*diffSeed, 11)), faults: f}
			play(t, addr, g, c.version, *diffSeed, func(i int) {
				f.large = max(f.large, int(srv.Stats().LargeHashes))
				f.struck = max(f.struck, struckIn(looks, "h1", "h2", "h3"))
				f.between(t, i)
			})
			if f.oom < 5 || f.tryAgain < 5 || f.deletions < 10 || f.transactions == 0 || f.struck == 0 || f.large == 0 {
				t.Error("the test has not tested what it should")
			}
			t.Logf("%d commands found no room, %d got no answer in time, %d deleted without room, %d transactions, %d fields were struck out and %d hashes large at a time",
				f.oom, f.tryAgain, f.deletions, f.transactions, f.struck, f.large)
		})
	}
}
