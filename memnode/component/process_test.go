package component_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"polder/internal/offload"
	"polder/internal/proctest"
	"polder/internal/testaddr"
	"polder/pool"
)

// element is the key to write element i of a vector, and one that to read it.
func element(i int) string { return string(binary.LittleEndian.AppendUint64(nil, uint64(i))) }
func one(i int) string     { return element(i) + "\x01\x00\x00\x00" }

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

func TestARealNode(t *testing.T) {
	args := []string{"--lend", "64MiB", "--component-memory", "32MiB", "--component-client-memory", "16MiB", "--grace", "500ms"}
	n := proctest.Start(t, "node", append(args, "--listen", testaddr.Host()+":0")...)
	dial := func() *pool.Pool {
		p, err := pool.Dial(t.Context(), n.Addr("verbs"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p, other := dial(), dial()
	defer p.Close()
	column := construct(t, p, offload.Vector)
	mustWrite(t, column, element(0), "1234")
	mine := children(t, n.PID())
	if len(mine) != 1 {
		t.Fatalf("the node has children %v, want one", mine)
	}
	bystander := construct(t, other, offload.Vector)
	mustWrite(t, bystander, element(0), "5678")

	// Kill the worker under requests.
	var wg sync.WaitGroup
	failed := make(chan error, 8)
	for id := range 8 {
		wg.Go(func() {
			for {
				if err := column.Write(context.Background(), []byte(element(0)), fmt.Append(nil, 1000+id)); err != nil {
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
	mustRead(t, bystander, one(0), "5678")
	again := construct(t, p, offload.Vector)
	mustWrite(t, again, element(0), "1234")

	// The client goes, and its worker with it, after the grace period.
	other.Close()
	proctest.Until(t, "one worker is left", func() bool { return len(children(t, n.PID())) == 1 })
	mustRead(t, again, one(0), "1234")
	workers := children(t, n.PID())
	n.Kill()
	proctest.Until(t, "the worker has ended with its node", func() bool {
		return syscall.Kill(workers[0], 0) != nil
	})
	n2 := proctest.Start(t, "node", append(args, "--listen", n.Addr("verbs"))...)
	proctest.Until(t, "the object is lost and the node is back", func() bool {
		_, err := again.Read(t.Context(), []byte("key"), nil)
		return errors.Is(err, pool.ErrLost) && p.Stats().Nodes[0].State == "up"
	})
	mustWrite(t, construct(t, p, offload.Vector), element(0), "1234")
	if got := children(t, n2.PID()); len(got) != 1 {
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
	table := construct(t, p, offload.Table)
	mustWrite(t, table, "key", "value")
	mustRead(t, table, "key", "value")
	column := construct(t, p, offload.Vector)
	mustWrite(t, column, element(0), "1234")
	mustRead(t, column, one(0), "1234")
}
