package component_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"polder/internal/proctest"
	"polder/internal/testaddr"
	"polder/memnode"
	"polder/pool"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// children lists the processes whose parent is pid.
func children(t testing.TB, pid int) (pids []int) {
	t.Helper()
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		n, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if f[1] == strconv.Itoa(pid) && f[0] != "Z" {
			pids = append(pids, n)
		}
	}
	return pids
}

// nodeEnv is the variable of the environment that makes the test's program a node that listens at its value.
const nodeEnv = "TEST_COMPONENT_NODE"

// runNode is a node with the tests' components. It says where it listens, and does not return.
func runNode() {
	err := func() error {
		dev, err := tcp.NewDevice(softnic.Config{})
		if err != nil {
			return err
		}
		cfg := node(ample)
		cfg.Grace = 500 * time.Millisecond
		n, err := memnode.New(dev, cfg)
		if err != nil {
			return err
		}
		l, err := tcp.Listen(dev, os.Getenv(nodeEnv), tcp.Config{})
		if err != nil {
			return err
		}
		fmt.Println(l.Addr())
		return n.Serve(l)
	}()
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// startNode starts a node at addr in a process of its own, and returns where it listens.
func startNode(t *testing.T, addr string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), nodeEnv+"="+addr)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	at, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal("the node did not say where it listens:", err)
	}
	return cmd, strings.TrimSpace(at)
}

func TestANodeAndItsWorkers(t *testing.T) {
	n, addr := startNode(t, testaddr.Host()+":0")
	dial := func() *pool.Pool {
		p, err := pool.Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p, other := dial(), dial()
	defer p.Close()
	shelf := construct(t, p, column)
	mustWrite(t, shelf, "0", "1234")
	mine := children(t, n.Process.Pid)
	if len(mine) != 1 {
		t.Fatalf("the node has children %v, want one", mine)
	}
	bystander := construct(t, other, column)
	mustWrite(t, bystander, "0", "5678")

	// Kill the worker under requests.
	var wg sync.WaitGroup
	failed := make(chan error, 8)
	for id := range 8 {
		wg.Go(func() {
			for {
				if err := shelf.Write(context.Background(), []byte("0"), fmt.Append(nil, 1000+id)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	if err := syscall.Kill(mine[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for range 8 {
		if err := <-failed; !errors.Is(err, pool.ErrLost) {
			t.Errorf("a request under which the worker was killed: got %v, want %v", err, pool.ErrLost)
		}
	}
	mustRead(t, bystander, "0", "5678")
	again := construct(t, p, column)
	mustWrite(t, again, "0", "1234")

	// The client goes, and its worker with it, after the grace period.
	other.Close()
	proctest.Until(t, "one worker is left", func() bool { return len(children(t, n.Process.Pid)) == 1 })
	mustRead(t, again, "0", "1234")
	workers := children(t, n.Process.Pid)
	if err := n.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = n.Wait()
	proctest.Until(t, "the worker has ended with its node", func() bool {
		return syscall.Kill(workers[0], 0) != nil
	})
	n2, _ := startNode(t, addr)
	proctest.Until(t, "the object is lost and the node is back", func() bool {
		_, err := again.Read(t.Context(), []byte("key"), nil)
		return errors.Is(err, pool.ErrLost) && p.Stats().Nodes[0].State == "up"
	})
	mustWrite(t, construct(t, p, column), "0", "1234")
	if got := children(t, n2.Process.Pid); len(got) != 1 {
		t.Errorf("the new node has children %v, want one", got)
	}
}

// A client of the node that polder up runs, beside the front end.
func TestTheNodeOfUp(t *testing.T) {
	socket := "unix:" + filepath.Join(t.TempDir(), "node.sock")
	up := proctest.Start(t, "up", "--listen", "127.0.0.1:0", "--local", "8MiB", "--lend", "64MiB",
		"--node-listen", socket, "--component-memory", "32MiB", "--component-client-memory", "16MiB", "--component-time", "2s")
	if got := up.Addr("socket"); got != socket {
		t.Fatalf("the node is at %q, want %q", got, socket)
	}
	p, err := pool.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Construct(t.Context(), "no such thing", nil); !errors.Is(err, pool.ErrNoComponent) {
		t.Errorf("got %v, want %v", err, pool.ErrNoComponent)
	}
	o, err := p.Construct(t.Context(), "scan", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Compute(t.Context(), pool.Computation{Op: 1, In: []byte("nonsense")}, nil); !errors.Is(err, pool.ErrRefused) {
		t.Errorf("got %v, want %v", err, pool.ErrRefused)
	}
}
