package broker_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/internal/failpoint"
	"polder/internal/scheme"
	"polder/memnode"
	"polder/pool"
	"polder/pool/broker"
	"polder/pool/finemem"
	"polder/pool/pooltest"
	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// The test binary is also the broker, and the application, that are killed.
const (
	roleEnv = "BROKER_TEST_ROLE"
	pathEnv = "BROKER_TEST_PATH"
	nodeEnv = "BROKER_TEST_NODE"
	dieEnv  = "BROKER_TEST_DIE" // "step n": SIGKILL at the nth time
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "broker":
		fatal(beBroker())
	case "app":
		fatal(beApp())
	}
	goleak.VerifyTestMain(m)
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// beBroker is a broker until its standard input ends. It says on its standard output
// when it listens.
func beBroker() error {
	if s := os.Getenv(dieEnv); s != "" {
		step, times, _ := strings.Cut(s, " ")
		left, err := strconv.Atoi(times)
		if err != nil {
			return err
		}
		hits := make(chan int, 1)
		hits <- left
		failpoint.Set(func(at string) {
			if at != step {
				return
			}
			n := <-hits
			if n == 1 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			hits <- n - 1
		})
	}
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		return err
	}
	addr := os.Getenv(nodeEnv)
	b, err := broker.New(context.Background(), broker.Config{Device: dev, Nodes: []broker.Node{{
		Addr: addr,
		Dial: func(ctx context.Context) (verbs.Conn, error) { return tcp.Dial(ctx, dev, addr, tcp.Config{}) },
	}}})
	if err != nil {
		return err
	}
	l, err := b.Listen(os.Getenv(pathEnv))
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- b.Serve(l) }()
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return errors.Join(b.Close(), <-served, dev.Close())
}

// beApp allocates, says so, and waits to be killed.
func beApp() error {
	c, err := broker.Dial(context.Background(), os.Getenv(pathEnv))
	if err != nil {
		return err
	}
	info, err := c.Attach(context.Background(), 0)
	if err != nil {
		return err
	}
	for range 50 {
		if _, err := c.Alloc(context.Background(), 0, info.Session, 0); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// process is a run of this binary in a role.
type process struct {
	*exec.Cmd
	in   io.Closer
	done chan struct{}
}

func spawn(t *testing.T, role, path, node, die string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, pathEnv+"="+path, nodeEnv+"="+node, dieEnv+"="+die)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: cmd, in: in, done: make(chan struct{})}
	line, readErr := bufio.NewReader(out).ReadString('\n')
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		in.Close()
		<-p.done
	})
	if line != "ready\n" && die == "" {
		t.Fatalf("%s: got %q, %v", role, line, readErr)
	}
	return p
}

func (p *process) kill() {
	_ = p.Process.Kill()
	<-p.done
}

// dead reports whether the process has ended.
func (p *process) dead() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func TestWhatAKilledApplicationHadIsFreed(t *testing.T) {
	r := newRig(t, small, broker.Config{})
	other := r.dial()
	mine := r.mustAlloc(other, r.attach(other).Session, 0)
	app := spawn(t, "app", r.path, "", "")
	r.lent(51 * 4096)
	app.kill()
	r.lent(4096)
	// The node sees the last chunk come back before the broker has forgotten whose it was.
	pooltest.Eventually(t, "the broker has one application with one block", func() bool {
		s := r.broker.Stats()
		return s.Apps == 1 && s.Nodes[0].Blocks == 1
	})
	if err := other.Free(t.Context(), 0, r.attach(other).Session, mine); err != nil {
		t.Error(err)
	}
}

// TestTheBrokerIsKilledAtEveryStep kills brokers, one after the other, at each of
// their steps while an application allocates and frees through them. The application
// sees that the broker is gone, the node takes everything back, and the whole of its
// memory can be allocated again.
func TestTheBrokerIsKilledAtEveryStep(t *testing.T) {
	const chunks = 64
	s := pooltest.TCP
	s.Manager = broker.Manager{}
	c := pooltest.NewCluster(t, s, memnode.Config{Lend: chunks * 4096, ChunkSize: 4096, Grace: 20 * time.Millisecond})
	node, path := c.Nodes[0], filepath.Join(t.TempDir(), "sock")
	steps := slices.Concat(broker.Steps, []string{
		finemem.StepReadHeaders, finemem.StepAllocCommit, finemem.StepAllocKeys, finemem.StepFreeSwap, finemem.StepFreeCommit,
		finemem.StepFreeRing, finemem.StepOpenSection, finemem.StepOpenSpan, finemem.StepBeat, finemem.StepFlush,
	})
	killed := 0
	for _, step := range steps {
		for _, times := range []int{1, 5} {
			die := fmt.Sprintf("%s %d", step, times)
			b := spawn(t, "broker", path, node.Addr, die)
			err := abuse(t.Context(), path)
			if err == nil && !b.dead() {
				b.kill() // at no step
			} else {
				<-b.done
				killed++
				if err != nil && !errors.Is(err, broker.ErrGone) {
					t.Errorf("%s: the application sees %v, want %v", die, err, broker.ErrGone)
				}
			}
			pooltest.Eventually(t, die+": the node has everything back", func() bool {
				s := node.Stats()
				return s.Lent == 0 && s.Sessions == 0
			})
		}
	}
	if want := 2 * len(steps) * 3 / 4; killed < want {
		t.Errorf("brokers were killed at %d of %d moments, want at least %d", killed, 2*len(steps), want)
	}
	t.Logf("brokers killed at %d of %d moments", killed, 2*len(steps))

	b := spawn(t, "broker", path, node.Addr, "")
	app, err := broker.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := app.Attach(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[uint32]bool)
	for range chunks {
		block, err := app.Alloc(t.Context(), 0, info.Session, 0)
		if err != nil || seen[block.First] {
			t.Fatalf("got chunk %d after %d others: %v", block.First, len(seen), err)
		}
		seen[block.First] = true
	}
	app.Close()
	b.in.Close() // a clean end gives back what the application had
	<-b.done
	if code := b.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the broker ended with code %d", code)
	}
}

// abuse has a broker do everything that it can do, until it is gone. One application
// leaves without freeing, another one frees all.
func abuse(ctx context.Context, path string) error {
	for range 3 {
		for _, tidy := range []bool{true, false} {
			if err := session(ctx, path, tidy); err != nil {
				return err
			}
		}
	}
	return nil
}

func session(ctx context.Context, path string, tidy bool) error {
	c, err := broker.Dial(ctx, path)
	if err != nil {
		return err
	}
	defer c.Close()
	info, err := c.Attach(ctx, 0)
	if err != nil {
		return err
	}
	var blocks []broker.Block
	for class := range 4 {
		b, err := c.Alloc(ctx, 0, info.Session, class)
		if err != nil {
			return err
		}
		blocks = append(blocks, b)
	}
	for _, b := range blocks {
		if tidy {
			if err := c.Free(ctx, 0, info.Session, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestAPoolOutlivesItsBroker: chunks are lost with a broker, and the pool goes on with
// the next one.
func TestAPoolOutlivesItsBroker(t *testing.T) {
	s := pooltest.TCP
	s.Manager = broker.Manager{}
	c := pooltest.NewCluster(t, s, memnode.Config{Lend: 1 << 20, ChunkSize: 4096, Grace: 50 * time.Millisecond})
	node, path := c.Nodes[0], filepath.Join(t.TempDir(), "sock")
	first := spawn(t, "broker", path, node.Addr, "")
	p, err := pool.Dial(t.Context(), scheme.Broker+path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	chunk, err := p.Alloc(t.Context(), int64(p.ChunkSize()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chunk.WriteAt([]byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	first.kill()
	pooltest.Eventually(t, "the pool sees that the broker is gone", func() bool {
		_, err = p.Alloc(t.Context(), int64(p.ChunkSize()))
		return errors.Is(err, broker.ErrGone) && errors.Is(err, pool.ErrNodeGone)
	})
	<-chunk.Lost()
	if _, err := chunk.ReadAt(make([]byte, 4), 0); !errors.Is(err, pool.ErrLost) {
		t.Errorf("reading what was lost: got %v, want %v", err, pool.ErrLost)
	}
	spawn(t, "broker", path, node.Addr, "")
	pooltest.Eventually(t, "the pool goes on with the next broker", func() bool {
		chunk, err = p.Alloc(t.Context(), int64(p.ChunkSize()))
		return err == nil
	})
	if _, err := chunk.WriteAt([]byte("again"), 0); err != nil {
		t.Error(err)
	}
}

// TestTheNodeIsKilled: the broker and its applications go on when it is there again.
func TestTheNodeIsKilled(t *testing.T) {
	r := newRig(t, small, broker.Config{})
	c := r.dial()
	info := r.attach(c)
	block := r.mustAlloc(c, info.Session, 0)
	r.Nodes[0].Crash()
	pooltest.Eventually(t, "the broker sees that the node is gone", func() bool {
		_, err := c.Alloc(t.Context(), 0, info.Session, 0)
		return errors.Is(err, broker.ErrNodeDown)
	})
	r.Nodes[0].Start()
	pooltest.Eventually(t, "the broker is connected again", func() bool {
		_, err := c.Alloc(t.Context(), 0, info.Session, 0)
		return errors.Is(err, broker.ErrStale)
	})
	if err := c.Free(t.Context(), 0, info.Session, block); !errors.Is(err, broker.ErrStale) {
		t.Errorf("freeing what the node has forgotten: got %v, want %v", err, broker.ErrStale)
	}
	again := r.attach(c)
	if again.Session == info.Session {
		t.Error("the session is the old one though everything is lost")
	}
	r.mustAlloc(c, again.Session, 0)
	if got := r.broker.Stats().Nodes[0].Blocks; got != 1 {
		t.Errorf("the broker thinks that there are %d blocks, want 1", got)
	}
}
