package robustness

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/console"
	"polder/internal/proctest"
)

// TestIdleMemoryIsGivenBack: of three nodes one lends what its host does not need. It has to give all of it back, again and again,
// while clients read and write, who see no error and no wrong byte. Then another node is killed, and what might have vanished
// takes the place of what was there; what the node that is left has then cannot be given back, which is said.
func TestIdleMemoryIsGivenBack(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef"
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fixed := []*child.Process{startNode(t, "128MiB", "--grace", "2s"), startNode(t, "128MiB", "--grace", "2s")}
	idle := startNode(t, "idle:128MiB", "--admin-token-file", token)
	far := []string{fixed[0].Addr("verbs"), fixed[1].Addr("verbs"), idle.Addr("verbs")}
	server := startServer(t, strings.Join(far, ","), "4MiB", "--copies", "2", "--repair-after", "100ms")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var done, slowest atomic.Int64
	failed := make(chan error, 2)
	end := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer end()
	for w := range cap(failed) {
		wg.Go(func() {
			if err := copiesLoad(t.Context(), connect(t, server), w, 4000, stop, &done, &slowest); err != nil {
				failed <- err
			}
		})
	}
	until := func(what string, cond func() bool) {
		t.Helper()
		proctest.UntilWithin(t, 4*time.Minute, what, func() bool { // spare copies are made when there is nothing else to do
			select {
			case err := <-failed:
				t.Fatal(err)
			default:
			}
			return cond()
		})
	}
	goOn := func() {
		t.Helper()
		from := done.Load()
		until("the load goes on", func() bool { return done.Load() >= from+200 })
	}
	metric := func(p *child.Process, name string, labels ...string) int64 {
		t.Helper()
		s, err := console.Query(t.Context(), nil, secret, p.Addr("admin"), 0)
		if err != nil {
			t.Fatal(err)
		}
		return s.Metrics.Int(name, labels...)
	}
	lend := func(size string, args ...string) (said string, code int) {
		t.Helper()
		out, errs, code := proctest.Output(t, nil, append([]string{"lend", idle.Addr("admin"), size, "--admin-token-file", token}, args...)...)
		return out + errs, code
	}
	for range 2 {
		until("there are copies that may vanish", func() bool { return metric(server, "polder_copies_spare_segments") > 2 })
		said, code := lend("0", "--within", "1m")
		if code != 0 || !strings.Contains(said, "given back") {
			t.Fatalf("lend 0: exit code %d, %s", code, said)
		}
		t.Log(said)
		until("nothing is lent any more", func() bool { return metric(idle, "polder_node_memory_bytes", "use=lent") == 0 })
		if n := metric(server, "polder_copies_endangered_segments"); n > 0 {
			until("nothing is endangered", func() bool { return metric(server, "polder_copies_endangered_segments") == 0 })
		}
		goOn()
		if said, code := lend("all"); code != 0 {
			t.Fatalf("lend all: exit code %d, %s", code, said)
		}
	}
	if metric(idle, "polder_node_dropped_bytes_total") == 0 || metric(server, "polder_copies_vanished_total") == 0 {
		t.Error("nothing has vanished")
	}
	until("there are copies that may vanish", func() bool { return metric(server, "polder_copies_spare_segments") > 2 })
	fixed[0].Kill()
	<-fixed[0].Done()
	until("they take the place of what was lost", func() bool { return metric(server, "polder_copies_promoted_total") > 0 })
	until("nothing is endangered", func() bool { return metric(server, "polder_copies_endangered_segments") == 0 })
	goOn()
	if said, code := lend("0", "--within", "100ms"); code != 1 || !strings.Contains(said, "still lent") {
		t.Fatalf("lend 0 by a node that cannot be done without: exit code %d, %s", code, said)
	}
	until("it is said that the host may swap", func() bool { return strings.Contains(idle.Stderr(), "it may have to swap") })
	if n := metric(idle, "polder_node_over_bytes"); n == 0 {
		t.Error("the node does not say by how much it lends too much")
	}
	goOn()
	if said, code := lend("all"); code != 0 {
		t.Fatalf("lend all: exit code %d, %s", code, said)
	}
	until("it is said that all is well", func() bool { return strings.Contains(idle.Stderr(), "clients have moved what the host needed") })
	end()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	if s := statusOf(t, server); s.Heap.Lost != 0 || s.Redis.Lost != 0 {
		t.Errorf("%d entries were lost", s.Heap.Lost)
	}
	t.Logf("%d operations; the slowest took %d ms", done.Load(), slowest.Load()/1e6)
}

// takeMemory is the first argument of this test program when it is to use as many MiB as the second says, bit by bit, and keep them.
const takeMemory = "take-memory"

func take(size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	var kept [][]byte
	for range n / 4 {
		kept = append(kept, bytes.Repeat([]byte{1}, 4*mib))
		time.Sleep(20 * time.Millisecond) // 200 MiB/s
	}
	fmt.Println(len(kept))
	time.Sleep(time.Hour)
	runtime.KeepAlive(kept)
	return nil
}

// TestIdleMemoryOfAContainerIsGivenBackBeforeItIsFull: a node lends what its control group does not need, and another process in there needs
// all of it. Neither is killed, and nothing is lost; when that process has ended, it is lent again.
func TestIdleMemoryOfAContainerIsGivenBackBeforeItIsFull(t *testing.T) {
	t.Parallel()
	const limit, needs = 400 * mib, 310 // MiB: with what is lent it is more than the limit
	g := container(t, limit)
	far := []string{startNode(t, "256MiB").Addr("verbs"), startNode(t, "256MiB").Addr("verbs")}
	idle := startWithin(t, g, "node", "--listen", "127.0.0.1:0", "--lend", "idle:256MiB")
	server := startServer(t, strings.Join(append(far, idle.Addr("verbs")), ","), "4MiB", "--copies", "2")
	metric := func(p *child.Process, name string, labels ...string) int64 {
		t.Helper()
		return proctest.State(t, p).Metrics.Int(name, labels...)
	}
	lent := func() int64 { return metric(idle, "polder_node_memory_bytes", "use=lent") }
	stop := make(chan struct{})
	var done, slowest atomic.Int64
	failed := make(chan error, 1)
	var wg sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer end()
	wg.Go(func() {
		if err := copiesLoad(t.Context(), connect(t, server), 0, 50_000, stop, &done, &slowest); err != nil {
			failed <- err
		}
	})
	proctest.UntilWithin(t, 8*time.Minute, "more is lent than is left when the other needs its memory", func() bool { return lent() > limit-needs*mib })
	other, err := child.Start(child.Command{Path: "/proc/self/exe", Args: []string{enterGroup, g.Procs(), "/proc/self/exe", takeMemory, strconv.Itoa(needs)}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Kill()
	proctest.UntilWithin(t, time.Minute, "it has what it needs", func() bool {
		n, err := g.Usage()
		select {
		case <-other.Done():
			t.Fatalf("it has ended: %v", other.Err())
		default:
		}
		return err == nil && n-lent() > needs*mib
	})
	if metric(idle, "polder_node_dropped_bytes_total") == 0 {
		t.Error("nothing was dropped")
	}
	from := done.Load()
	proctest.Until(t, "the load goes on", func() bool { return done.Load() > from+200 })
	other.Kill()
	<-other.Done()
	had := lent()
	proctest.UntilWithin(t, 4*time.Minute, "it is lent again", func() bool { return lent() > had+32*mib })
	end()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	if s := statusOf(t, server); s.Heap.Lost != 0 || s.Redis.Lost != 0 {
		t.Errorf("%d entries were lost", s.Heap.Lost)
	}
	t.Logf("%d operations; the slowest took %v", done.Load(), time.Duration(slowest.Load()))
}

// TestBadSizesOfIdleMemoryAreRefused, with what would be right.
func TestBadSizesOfIdleMemoryAreRefused(t *testing.T) {
	for _, c := range []struct{ args, say string }{
		{"--lend idle:", `expected a size such as 64MiB, 1.5GiB or 4096 behind "idle:"`},
		{"--lend idle:lots", `expected a size such as 64MiB, 1.5GiB or 4096 behind "idle:"`},
		{"--lend idle:1PiB", `expected a size such as 64MiB`},
		{"--lend idle:900TiB", "are the reserve of the host"},
		{"--lend idle:64MiB --chunk 64KiB", "want more than 65536 to lend what is idle"},
		{"--lend idle:64MiB --manager finemem", "cannot lend what is idle"},
		{"--lend idle:64MiB --overcommit", "lends no more than there is"},
		{"--lend idle:64MiB --listen 127.0.0.1:0,unix:/tmp/polder-never.sock", "one kind of address"},
	} {
		args := append([]string{"node", "--admin", "off"}, strings.Fields(c.args)...)
		if !strings.Contains(c.args, "--listen") {
			args = append(args, "--listen", "127.0.0.1:0")
		}
		_, errs, code := proctest.Output(t, nil, args...)
		if code == 0 || !strings.Contains(errs, c.say) {
			t.Errorf("node %s: exit code %d, %s\nwant an error that says %q", c.args, code, errs, c.say)
		}
	}
}
