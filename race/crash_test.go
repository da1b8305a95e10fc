package race

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"polder/memnode"
	"polder/pool"
	"polder/pool/finemem"
	"polder/pool/pooltest"
	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// Processes that are killed while they put: each has the table of its part of the keys, and
// another process has that of another part, on the same node.

// crashEnv makes the test binary a process that puts keys, says which have been put, and
// kills itself in the middle. Its value is where: a moment and what is done then.
const crashEnv = "POLDER_TEST_RACE_CRASH"

func init() {
	if job := os.Getenv(crashEnv); job != "" {
		fmt.Fprintln(os.Stderr, crashChild(job, os.Args[1]))
		os.Exit(1) // it is not to come here
	}
}

// A deadly fabric kills the process when it is to do what is wanted of it for the last time.
type deadly struct {
	Fabric
	when  string // before, on the way or after
	what  func([]pool.Op) bool
	count int
}

func (d *deadly) Do(ctx context.Context, ops []pool.Op) error {
	if d.what(ops) {
		d.count--
	}
	if d.count != 0 {
		return d.Fabric.Do(ctx, ops)
	}
	switch d.when {
	case "on the way":
		go d.Fabric.Do(ctx, ops)
		cancelSoon()
	case "after":
		if err := d.Fabric.Do(ctx, ops); err != nil {
			return err
		}
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func isWrite(ops []pool.Op) bool  { return ops[0].Kind == pool.OpWrite }
func isSwap(ops []pool.Op) bool   { return ops[0].Kind == pool.OpCompareAndSwap && len(ops) == 1 }
func isFreeze(ops []pool.Op) bool { return ops[0].Kind == pool.OpCompareAndSwap && len(ops) > 1 }

// deaths are the steps at which a process dies: what it does, how often it has before,
// and when.
var deaths = []struct {
	step  string
	what  func([]pool.Op) bool
	count int
	when  string
}{
	{"a block is written", isWrite, 11, "on the way"},
	{"a key is tentative", isSwap, 21, "after"},
	{"a key becomes firm", isSwap, 22, "on the way"},
	{"a subtable is frozen", isFreeze, 1, "after"},
}

func crashChild(job, addr string) error {
	ctx := context.Background()
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		return err
	}
	p, err := pool.Open(ctx, pool.Config{Device: dev, Manager: finemem.Manager{}, Nodes: []pool.NodeConfig{{
		Name: "node", Dial: func(ctx context.Context) (verbs.Conn, error) { return tcp.Dial(ctx, dev, addr, tcp.Config{}) },
	}}})
	if err != nil {
		return err
	}
	table, err := open(ctx, p, 2)
	if err != nil {
		return err
	}
	for _, d := range deaths {
		if d.step == job {
			table.fabric = &deadly{Fabric: table.fabric, when: d.when, what: d.what, count: d.count}
		}
	}
	for i := 0; ; i++ {
		key := fmt.Append(nil, "key ", i)
		if err := table.Put(ctx, key, valueOf("dead", i)); err != nil {
			return err
		}
		if value, found, err := table.Get(ctx, key, nil); err != nil || !found || !bytes.Equal(value, valueOf("dead", i)) {
			return fmt.Errorf("%s: got %d bytes, %v, %w", key, len(value), found, err)
		}
		fmt.Printf("key %d\n", i)
	}
}

// valueOf is the i-th key's, of 6000 bytes, so that it is seen who wrote it.
func valueOf(who string, i int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%s %06d.", who, i), 6000/(len(who)+8))
}

// TestAProcessThatIsKilled: another process that puts keys all the while finds each of them,
// gets all the memory that the dead one had, and finds each of them then, too, so that
// nothing of the dead one's was still on the way to that memory.
func TestAProcessThatIsKilled(t *testing.T) {
	const lend = 1 << 20
	s := pooltest.TCP
	s.Manager = finemem.Manager{}
	cl := pooltest.NewCluster(t, s, memnode.Config{Lend: lend, ChunkSize: 4096, Grace: 1})
	for _, d := range deaths {
		t.Run(d.step, func(t *testing.T) {
			k := cl.Open(pool.Config{})
			table, err := open(t.Context(), k.Pool, 2)
			if err != nil {
				t.Fatal(err)
			}
			put := 0 // keys, and none has failed
			stop, done := make(chan struct{}), make(chan error, 1)
			go func() { // puts, and looks at all keys over and over
				for i := 0; ; i++ {
					select {
					case <-stop:
						done <- nil
						return
					default:
					}
					if put < 20 {
						if err := table.Put(t.Context(), fmt.Append(nil, "key ", put), valueOf("lives", put)); err != nil {
							done <- err
							return
						}
						put++
					}
					n := i % put
					if value, _, err := table.Get(t.Context(), fmt.Append(nil, "key ", n), nil); err != nil || !bytes.Equal(value, valueOf("lives", n)) {
						done <- fmt.Errorf("key %d: got %.20q, %w", n, value, err)
						return
					}
				}
			}()
			cmd := exec.Command(os.Args[0], cl.Nodes[0].Addr)
			cmd.Env = append(os.Environ(), crashEnv+"="+d.step)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			close(stop)
			if err := <-done; err != nil {
				t.Error(err)
			}
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the process that was to be killed: %v\n%s", err, stderr.String())
			}
			if acknowledged := slices.Collect(strings.Lines(string(out))); len(acknowledged) == 0 {
				t.Error("no key had been put when the process was killed")
			}
			pooltest.Eventually(t, "the node has back what the dead process had", func() bool {
				return cl.Nodes[0].Stats().Sessions == 1 && cl.Nodes[0].Stats().Lent <= table.heap.Stats().Taken
			})
			for { // all memory
				err := table.Put(t.Context(), fmt.Append(nil, "key ", put), valueOf("lives", put))
				if errors.Is(err, pool.ErrNoMemory) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				put++
			}
			if taken := table.heap.Stats().Taken; taken < lend*9/10 {
				t.Errorf("only %d bytes of %d could be had afterwards", taken, lend)
			}
			for i := range put {
				want(t, table, fmt.Sprint("key ", i), valueOf("lives", i))
			}
			wantNoGarbage(t, table)
			if err := errors.Join(table.Close(context.Background()), k.Pool.Close()); err != nil {
				t.Error(err)
			}
			pooltest.Eventually(t, "everything has come back", func() bool { return cl.Nodes[0].Stats().Lent == 0 })
		})
	}
}
