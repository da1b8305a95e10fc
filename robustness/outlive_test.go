package robustness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/internal/testaddr"
)

// keptPorts are those of the test's own address that nodes listen at which are started again and again.
var keptPorts atomic.Int32

func keptAddr() string { return fmt.Sprintf("%s:%d", testaddr.Host(), 7000+keptPorts.Add(1)) }

// startKeptNode starts a node under a keeper, and returns where it listens, each time that it is started.
func startKeptNode(t *testing.T, args ...string) (keeper *child.Process, addr string) {
	t.Helper()
	ready, addr := filepath.Join(t.TempDir(), "ready"), keptAddr()
	keeper, err := child.Start(child.Command{Path: proctest.Binary(), Args: append([]string{"node", "--keep", "--lend", "128MiB",
		"--client-budget", "0", "--grace", "1m", "--listen", addr, "--admin", "off", "--ready-file", ready}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := keeper.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the keeper at %s wrote: %s", addr, keeper.Stderr())
		}
	})
	proctest.Until(t, "the node is ready", func() bool { _, err := os.Stat(ready); return err == nil })
	return keeper, addr
}

// nodeUnder waits for a node that the keeper runs, of another number than not.
func nodeUnder(t *testing.T, keeper *child.Process, not int) (pid int) {
	t.Helper()
	proctest.Until(t, "the keeper runs a node", func() bool {
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", keeper.PID()))
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range lists {
			b, _ := os.ReadFile(list) // a thread may have ended
			for f := range strings.FieldsSeq(string(b)) {
				if n, err := strconv.Atoi(f); err == nil && n != not {
					pid = n
				}
			}
		}
		return pid != 0
	})
	return pid
}

// killNode kills the node that a keeper runs, which starts another.
func killNode(t *testing.T, keeper *child.Process) {
	t.Helper()
	pid := nodeUnder(t, keeper, 0)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	nodeUnder(t, keeper, pid)
}

// TestANodeIsKilledAndKeepsItsMemory kills nodes under load. Their keepers start them again, and clients go on: with
// one copy or two, no copy is lost, no byte is wrong, and no client is told of an error.
func TestANodeIsKilledAndKeepsItsMemory(t *testing.T) {
	rounds := 4
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 300
	}
	for _, manager := range []string{"native", "onesided", "rpcmw"} {
		for _, copies := range []int{1, 2} {
			if copies == 2 && manager != "native" {
				continue
			}
			t.Run(fmt.Sprint(manager, " ", copies), func(t *testing.T) {
				t.Parallel()
				var keepers []*child.Process
				var far []string
				nodes := 2*copies - 1 // with two copies, another takes what is written while one is away
				for range nodes {
					k, addr := startKeptNode(t, "--manager", manager)
					keepers, far = append(keepers, k), append(far, addr)
				}
				server := startServer(t, strings.Join(far, ","), "4MiB", "--manager", manager, "--copies", strconv.Itoa(copies), "--repair-after", "1m")
				load := startLoad(t, server, 2, 3000)
				metric := func(name string) int64 { return proctest.State(t, server).Metrics.Int("polder_copies_" + name) }
				load.until("much is far", func() bool { return proctest.State(t, server).Metrics.Int("polder_far_live_bytes") > 2*mib })
				for round := range rounds {
					killNode(t, keepers[round%nodes])
					load.proceed(300)
				}
				load.lostNothing()
				proctest.Until(t, "all is well", func() bool { return metric("endangered_segments") == 0 })
				// What is written while a node is away has fewer copies until it is there again.
				if s := statusOf(t, server); s.Heap.Corrupt != 0 || metric("lost_total") != 0 || metric("condemned_total") != 0 {
					t.Errorf("%d entries were corrupt, %d copies were lost, %d had other bytes; want none of it", s.Heap.Corrupt, metric("lost_total"), metric("condemned_total"))
				}
				t.Logf("%d operations; the slowest took %v", load.done.Load(), time.Duration(load.slowest.Load()))
			})
		}
	}
}

// TestADurableServerLosesNothingWithNodesThatKeepTheirMemory: the server of a heap with a name, and nodes that have its
// only copy, are killed again and again, together or alone. What clients were answered is there afterwards.
func TestADurableServerLosesNothingWithNodesThatKeepTheirMemory(t *testing.T) {
	rounds := 4
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 200
	}
	witnesses := startWitnesses(t)
	a, first := startKeptNode(t)
	b, second := startKeptNode(t)
	losesNothing(t, rounds, func(round int) *child.Process {
		if round > 0 {
			killNode(t, a) // and the server, which losesNothing has killed
		}
		server := proctest.Start(t, "serve", named(first+","+second, witnesses, "--durable", "--copies", "1", "--repair-after", "1m")...)
		killNode(t, b)
		return server
	})
}

// TestAServiceManagerRestartsANode ends a node by SIGTERM or SIGKILL, under load, and starts another one with what it
// has put into the descriptor store.
func TestAServiceManagerRestartsANode(t *testing.T) {
	m := newManager(t)
	addr := keptAddr()
	args := []string{"node", "--lend", "128MiB", "--client-budget", "0", "--grace", "1m", "--admin", "off", "--listen", addr}
	node := m.start(args...)
	server := startServer(t, addr, "4MiB")
	load := startLoad(t, server, 2, 3000)
	metric := func(name string) int64 { return proctest.State(t, server).Metrics.Int("polder_" + name) }
	m.until("much is far", func() bool { return metric("far_live_bytes") > 2*mib }) // reading what the node says meanwhile
	for round := range 4 {
		signal := syscall.SIGTERM
		if round%2 == 1 {
			signal = syscall.SIGKILL
		}
		if err := node.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = node.Wait() // it may have been killed
		// Half of what is free is another amount each time.
		args[2] = fmt.Sprintf("%dMiB", 16<<round)
		node = m.start(args...)
		resumed := load.done.Load() + 300
		m.until("the load goes on", func() bool {
			load.until("no client fails", func() bool { return true })
			return load.done.Load() >= resumed
		})
	}
	load.lostNothing()
	t.Logf("%d operations; the slowest took %v", load.done.Load(), time.Duration(load.slowest.Load()))
}
