package robustness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"polder/internal/cgroup"
	"polder/internal/child"
	"polder/internal/proctest"
	"polder/pool"
	"polder/verbs/tcp"
)

// container makes a control group that lasts until the test ends.
func container(t *testing.T, limit int64) *cgroup.Group {
	t.Helper()
	g, err := cgroup.New(limit)
	if err != nil {
		t.Skipf("SKIPPED, so that nothing is known of containers on this machine: %v (it takes root and a control group file system)", err)
	}
	t.Cleanup(func() {
		if n, err := g.Kills(); n != 0 || err != nil {
			t.Errorf("the kernel killed %d processes of the container, %v; want none", n, err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// enterGroup is the first argument of this test program when it is to enter a
// control group, the second, and become the program that the others name.
const enterGroup = "enter-group"

func enter(procs string, args []string) error {
	if err := os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return err
	}
	return syscall.Exec(args[0], args, os.Environ())
}

// within is the command that enters a group before it becomes polder.
func within(g *cgroup.Group, command string, args ...string) child.Command {
	return child.Command{Path: "/proc/self/exe", Args: append([]string{enterGroup, g.Procs(), proctest.Binary(), command}, args...)}
}

// startWithin runs a daemon in a group.
func startWithin(t *testing.T, g *cgroup.Group, command string, args ...string) *child.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	p, err := child.StartReady(ctx, within(g, command, append([]string{"--admin", "127.0.0.1:0"}, args...)...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestANodeKeepsToItsContainer starts a node under a limit of 300 MB, borrows all
// that it lends and writes to every page of it: it is not killed.
func TestANodeKeepsToItsContainer(t *testing.T) {
	t.Run("by default", func(t *testing.T) { borrowAll(t) })
	t.Run("as much as is not refused", func(t *testing.T) { borrowAll(t, "--lend", "215MiB") })
}

func borrowAll(t *testing.T, args ...string) {
	const limit = 300_000_000
	g := container(t, limit)
	node := startWithin(t, g, "node", append([]string{"--listen", "127.0.0.1:0", "--client-budget", "0"}, args...)...)
	s := statusOf(t, node)
	if s.Memory.Total > limit || !strings.Contains(s.Memory.Bound, "control group") {
		t.Errorf("its status says %+v of memory, want the control group's %d bytes", s.Memory, limit)
	}
	p, err := pool.DialTCP(t.Context(), tcp.Config{}, pool.Config{Timeout: hang}, node.Addr("verbs"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	page := make([]byte, 4096)
	for i := range page {
		page[i] = byte(i)
	}
	var chunks []*pool.Chunk
	for {
		c, err := p.Alloc(t.Context(), int64(p.ChunkSize()))
		if errors.Is(err, pool.ErrNoMemory) {
			break
		}
		if err != nil {
			t.Fatalf("borrowing chunk %d: %v", len(chunks), err)
		}
		if _, err := c.WriteContext(t.Context(), bytes.Repeat(page, int(c.Size())/len(page)), 0); err != nil {
			t.Fatalf("writing chunk %d: %v", len(chunks), err)
		}
		chunks = append(chunks, c)
	}
	if len(chunks) == 0 || int64(len(chunks)) != s.Node.Chunks {
		t.Errorf("borrowed %d chunks of %d", len(chunks), s.Node.Chunks)
	}
	got := make([]byte, len(page))
	for i, c := range chunks {
		if _, err := c.ReadContext(t.Context(), got, 0); err != nil || !bytes.Equal(got, page) {
			t.Fatalf("chunk %d: %v, or other bytes than were written", i, err)
		}
	}
	usage, err := g.Usage()
	if err != nil || usage < int64(len(chunks))*chunks[0].Size() || usage > limit {
		t.Errorf("%d bytes are charged to the container, %v; want at least what was written and at most %d", usage, err, limit)
	}
	t.Logf("%d MiB lent, %d of %d MB charged", int64(len(chunks))*chunks[0].Size()/mib, usage/1e6, limit/1_000_000)
}

// TestANodeRefusesToLendMoreThanThereIs unless it is told to.
func TestANodeRefusesToLendMoreThanThereIs(t *testing.T) {
	g := container(t, 300*mib)
	for _, args := range [][]string{
		{"node", "--listen", "127.0.0.1:0", "--lend", "1GiB"},
		{"up", "--listen", "127.0.0.1:0", "--lend", "200MiB", "--local", "64MiB"},
	} {
		c := within(g, args[0], append(args[1:], "--admin", "127.0.0.1:0")...)
		var stderr bytes.Buffer
		c.Stderr = &stderr
		p, err := child.Start(c)
		if err != nil {
			t.Fatal(err)
		}
		code, text := p.ExitCode(), stderr.String()
		for _, want := range []string{"cannot use --lend", "the control group", "300MiB", "64MiB stay for the process itself", "--overcommit"} {
			if code != 2 || !strings.Contains(text, want) {
				t.Errorf("polder %s: got exit code %d and %q, want 2 and %q", strings.Join(args, " "), code, text, want)
			}
		}
	}
	startWithin(t, g, "node", "--listen", "127.0.0.1:0", "--lend", "1GiB", "--overcommit")
}

// TestMemoryMappedInPlaceIsTheBorrowers: what a server at a node's socket stores is
// charged to the server's container, and it says so.
func TestMemoryMappedInPlaceIsTheBorrowers(t *testing.T) {
	lender, borrower := container(t, 500*mib), container(t, 500*mib)
	addr := "unix:" + t.TempDir() + "/node.sock"
	startWithin(t, lender, "node", "--listen", addr, "--lend", "200MiB", "--client-budget", "0")
	server := startWithin(t, borrower, "serve", "--listen", "127.0.0.1:0", "--far", addr, "--local", "8MiB")
	if text := server.Stderr(); !strings.Contains(text, "charged to this process's control group") {
		t.Errorf("the server does not say who is charged: %s", text)
	}
	client := connect(t, server)
	const size, n = 1 * mib, 100
	for i := range n {
		k := fmt.Sprint("key:", i)
		if err := client.Set(t.Context(), k, value(k, 1, size), 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	lent, err := lender.Usage()
	if err != nil {
		t.Fatal(err)
	}
	borrowed, err := borrower.Usage()
	if err != nil || borrowed < n*size*8/10 || lent > n*size/2 {
		t.Errorf("%d MiB are charged to the server's container and %d to the node's, %v; want most of the %d stored there", borrowed/mib, lent/mib, err, n*size/mib)
	}
}
