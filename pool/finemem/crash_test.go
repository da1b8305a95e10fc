package finemem_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/failpoint"
	"polder/internal/invariants"
	"polder/memnode"
	"polder/memnode/twolayer"
	"polder/pool/finemem"
	"polder/pool/manager"
	"polder/pool/pooltest"
	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// Clients that are killed: real processes, over tcp, at every step that they come to,
// while another client allocates and frees. Afterwards everything of theirs has come
// back, and the keys that they had open nothing.

// crashEnv makes the test binary a client that kills itself, or stops: its value is
// the signal's number, the step, how often the client comes there before, and a seed.
const crashEnv = "POLDER_TEST_FINEMEM_CRASH"

func init() {
	if job := os.Getenv(crashEnv); job != "" {
		if err := crashChild(job, os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// service is a client's connection to a node.
type service struct {
	dev  verbs.Device
	conn verbs.Conn
	pd   verbs.PD
	cq   verbs.CQ
	qp   verbs.QP // for access
	buf  verbs.MR
	s    *finemem.Session

	// observe, if set, is told of every allocation and free that has succeeded.
	observe func(b finemem.Block, free bool, call, back time.Time)
}

// dialService connects to a node.
func dialService(ctx context.Context, addr string) (c *service, err error) {
	c = &service{}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.dev, err = tcp.NewDevice(softnic.Config{}); err != nil {
		return nil, err
	}
	if c.conn, err = tcp.Dial(ctx, c.dev, addr, tcp.Config{}); err != nil {
		return nil, err
	}
	if c.pd, err = c.dev.AllocPD(); err != nil {
		return nil, err
	}
	if c.cq, err = c.dev.CreateCQ(verbs.CQInit{Depth: 16}); err != nil {
		return nil, err
	}
	if c.buf, err = c.pd.RegMR(make([]byte, 8), verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	s, err := finemem.Manager{}.Attach(ctx, manager.Link{
		Device: c.dev, PD: c.pd, Conn: c.conn,
		Access: func() (verbs.QP, error) {
			c.qp, err = c.pd.CreateQP(verbs.QPInit{SendCQ: c.cq, RecvCQ: c.cq, SendDepth: 4, RecvDepth: 1})
			return c.qp, err
		},
	})
	if err != nil {
		return nil, err
	}
	c.s = s.(*finemem.Session)
	return c, nil
}

// close disconnects.
func (c *service) close() {
	if c.s != nil {
		c.s.Close()
	}
	if c.dev != nil {
		c.dev.Close()
	}
}

// alloc allocates a class.
func (c *service) alloc(ctx context.Context, k int) (b finemem.Block, err error) {
	call := time.Now()
	err = c.s.Do(ctx, func(a *finemem.Allocator) error {
		b, err = a.Alloc(ctx, k)
		return err
	})
	if err == nil && c.observe != nil {
		c.observe(b, false, call, time.Now())
	}
	return b, err
}

// free frees a block.
func (c *service) free(ctx context.Context, b finemem.Block) error {
	call := time.Now()
	err := c.s.Do(ctx, func(a *finemem.Allocator) error { return a.Free(ctx, b) })
	if err == nil && c.observe != nil {
		c.observe(b, true, call, time.Now())
	}
	return err
}

// read reads a word of the node's memory.
func (c *service) read(ctx context.Context, addr uint64, key verbs.RKey) (uint64, error) {
	err := c.qp.PostSend(verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, RemoteAddr: addr, RKey: key,
		SGL: []verbs.SGE{{Addr: c.buf.Addr(), Length: 8, LKey: c.buf.LKey()}}})
	if err != nil {
		return 0, err
	}
	var wc [1]verbs.WC
	for c.cq.Poll(wc[:]) == 0 {
		if err := c.cq.Wait(ctx); err != nil {
			return 0, err
		}
	}
	return uint64(c.buf.Bytes()[0]), wc[0].Err()
}

// churn allocates and frees blocks of random classes until until says so. It tells
// got of each.
func (c *service) churn(ctx context.Context, rng *rand.Rand, until func() bool, got func(finemem.Block)) error {
	var held []finemem.Block
	for !until() {
		if n := len(held); n > 0 && (n == 12 || rng.IntN(2) == 0) {
			i := rng.IntN(n)
			b := held[i]
			held = slices.Delete(held, i, i+1)
			if err := c.free(ctx, b); err != nil {
				return err
			}
			continue
		}
		k := rng.IntN(4)
		if rng.IntN(4) == 0 {
			k = rng.IntN(8)
		}
		b, err := c.alloc(ctx, k)
		if errors.Is(err, manager.ErrNoMemory) {
			continue
		}
		if err != nil {
			return err
		}
		got(b)
		held = append(held, b)
	}
	for _, b := range held {
		if err := c.free(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// crashRounds is how many operations a client makes that does not come to its step.
const crashRounds = 600

func crashChild(job, addr string) error {
	var signal syscall.Signal
	var step string
	var before int
	var seed uint64
	if _, err := fmt.Sscan(job, &signal, &step, &before, &seed); err != nil {
		return fmt.Errorf("cannot read the job %q: %w", job, err)
	}
	out := bufio.NewWriter(os.Stdout)
	failpoint.Set(func(at string) {
		if at != step {
			return
		}
		if before--; before == -1 {
			out.Flush()
			_ = syscall.Kill(os.Getpid(), signal)
		}
	})
	ctx := context.Background()
	c, err := dialService(ctx, addr)
	if err != nil {
		return err
	}
	rounds := 0
	err = c.churn(ctx, rand.New(rand.NewPCG(seed, 1)), func() bool {
		if rounds++; rounds%8 == 1 && c.s.Beat(ctx) != nil {
			return true
		}
		return rounds > crashRounds
	}, func(b finemem.Block) { fmt.Fprintln(out, b.Addr, uint32(b.Key(0))) })
	c.close()
	return errors.Join(err, out.Flush())
}

// crashCommand is a client that sends itself a signal.
func crashCommand(signal syscall.Signal, addr, step string, before int, seed uint64) *exec.Cmd {
	cmd := exec.Command(os.Args[0], addr)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s %d %d", crashEnv, signal, step, before, seed))
	return cmd
}

// crash runs a client that dies at a step, and returns the last blocks that it had:
// addresses and keys. killed says whether it came there.
func crash(t *testing.T, addr, step string, before int, seed uint64) (had [][2]uint64, killed bool) {
	t.Helper()
	cmd := crashCommand(syscall.SIGKILL, addr, step, before, seed)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		killed = true
	case err != nil:
		t.Fatalf("the client that was to die at %s: %v", step, err)
	}
	for line := range strings.Lines(string(out)) {
		addr, key, _ := strings.Cut(strings.TrimSpace(line), " ")
		a, errA := strconv.ParseUint(addr, 10, 64)
		k, errK := strconv.ParseUint(key, 10, 32)
		if errA != nil || errK != nil {
			t.Fatalf("the client says %q", line)
		}
		had = append(had, [2]uint64{a, k})
	}
	return had, killed
}

// clientSteps are the steps that are not the node's.
func clientSteps() (steps []string) {
	for _, step := range finemem.Steps {
		if strings.HasPrefix(step, "finemem.") {
			steps = append(steps, step)
		}
	}
	return steps
}

func TestClientsThatAreKilled(t *testing.T) {
	const bytes = 2 << 20
	steps, times := clientSteps(), []int{0, 7}
	if invariants.Enabled && os.Getenv("TEST_SOAK") == "" {
		// Each client takes long to start.
		times = times[:1]
		i := 0
		steps = slices.DeleteFunc(steps, func(string) bool { i++; return i%6 != 0 })
	}
	s := pooltest.TCP
	s.Manager = finemem.Manager{}
	cl := pooltest.NewCluster(t, s, memnode.Config{Lend: bytes, ChunkSize: twolayer.DefaultUnit, Grace: time.Millisecond, MaxViolations: 1 << 20})
	addr := cl.Nodes[0].Addr
	ctx := t.Context()

	crashed, missed := 0, []string{}
	for _, step := range steps {
		reached := false
		for i, before := range times {
			live, err := dialService(ctx, addr)
			if err != nil {
				t.Fatal(err)
			}
			stop, done := make(chan struct{}), make(chan error, 1)
			go func() {
				done <- live.churn(ctx, rand.New(rand.NewPCG(uint64(i), 2)), func() bool {
					select {
					case <-stop:
						return true
					default:
						return false
					}
				}, func(finemem.Block) {})
			}()
			had, killed := crash(t, addr, step, before, uint64(i))
			// The other one goes on until the node has recovered.
			pooltest.Eventually(t, step+": the dead client is forgotten", func() bool { return cl.Nodes[0].Stats().Sessions == 1 })
			close(stop)
			if err := <-done; err != nil {
				t.Fatalf("%s: the other client: %v", step, err)
			}
			live.close()
			if killed {
				crashed++
				reached = true
			}
			pooltest.Eventually(t, step+": everything has come back", func() bool {
				st := cl.Nodes[0].Stats()
				return st.Lent == 0 && st.Sessions == 0
			})
			whole(t, addr, bytes, step, had)
		}
		if !reached {
			missed = append(missed, step)
		}
	}
	t.Logf("%d clients were killed at %d steps; they did not come to %q", crashed, len(steps)-len(missed), missed)
	if len(missed) > len(steps)/2 {
		t.Errorf("clients came to too few of their steps")
	}
}

// TestClientsThatWakeUp: a client stops before an operation for so long that the node
// takes it for dead and gives everything of its to somebody else. When it wakes up, its
// operations are refused, and change nothing.
func TestClientsThatWakeUp(t *testing.T) {
	const bytes = 2 << 20
	s := pooltest.TCP
	s.Manager = finemem.Manager{}
	cl := pooltest.NewCluster(t, s, memnode.Config{Lend: bytes, ChunkSize: twolayer.DefaultUnit,
		Grace: time.Millisecond, Heartbeat: 500 * time.Millisecond, MaxViolations: 1 << 20})
	addr := cl.Nodes[0].Addr
	for i, step := range []string{finemem.StepFlush, finemem.StepAllocCommit, finemem.StepFreeCommit} {
		cmd := crashCommand(syscall.SIGSTOP, addr, step, 40, uint64(i))
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := false
		defer func() {
			if !ended {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
		}()
		// It has stopped, or was so slow that it is taken for dead before it comes there.
		if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
		pooltest.Eventually(t, step+": the client is taken for dead", func() bool { return cl.Nodes[0].Stats().Sessions == 0 })
		whole(t, addr, bytes, step, nil)
		live, err := dialService(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		var held []finemem.Block
		for range 200 {
			b, err := live.alloc(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, b)
		}
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		err = cmd.Wait()
		ended = true
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%s: the client that woke up ended with %v, want an error of its operation; it said %q", step, err, said.String())
		}
		for _, b := range held {
			if err := live.free(t.Context(), b); err != nil {
				t.Errorf("%s: %v", step, err)
			}
		}
		live.close()
		pooltest.Eventually(t, step+": everything has come back", func() bool {
			st := cl.Nodes[0].Stats()
			return st.Lent == 0 && st.Sessions == 0
		})
	}
}

// whole allocates everything, checks that keys of before open nothing, and frees it.
func whole(t *testing.T, addr string, bytes int, step string, had [][2]uint64) {
	t.Helper()
	ctx := t.Context()
	c, err := dialService(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	seen := make(map[uint64]bool)
	var held []finemem.Block
	for {
		b, err := c.alloc(ctx, 0)
		if errors.Is(err, manager.ErrNoMemory) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if seen[b.Addr] {
			t.Fatalf("%s: chunk %d was handed out twice", step, b.First)
		}
		seen[b.Addr] = true
		held = append(held, b)
	}
	if want := bytes / twolayer.DefaultUnit; len(held) != want {
		t.Errorf("%s: %d chunks can be allocated, want %d", step, len(held), want)
	}
	for _, b := range held[:4] {
		if v, err := c.read(ctx, b.Addr, b.Key(0)); err != nil || v != 0 {
			t.Errorf("%s: chunk %d reads as %d, %v", step, b.First, v, err)
		}
	}
	for _, h := range had[max(0, len(had)-2):] {
		thief, err := dialService(ctx, addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := thief.read(ctx, h[0], verbs.RKey(h[1])); err == nil {
			t.Errorf("%s: the key %v that the dead client had for %#x opens it", step, verbs.RKey(h[1]), h[0])
		}
		thief.close()
	}
	for _, b := range held {
		if err := c.free(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
}
