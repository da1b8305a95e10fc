package softcmd

import (
	"bufio"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/internal/child"
	"polder/soft"
)

var tortureTime = flag.Duration("torture", 6*time.Second, "how long the torture test runs")

// TestMain lets the test program be the daemon and its clients.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "coordinator":
			cmd := Command()
			cmd.SetArgs(os.Args[2:])
			if err := cmd.ExecuteContext(context.Background()); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case "client":
			if err := client(os.Args[2], os.Stdout); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	goleak.VerifyTestMain(m)
}

// value carries its own checksum.
type value [1024]byte

func makeValue(key, salt uint64) (v value) {
	binary.LittleEndian.PutUint64(v[:], key)
	for i := 8; i < len(v)-4; i += 4 {
		binary.LittleEndian.PutUint32(v[i:], uint32(salt)*uint32(i))
	}
	binary.LittleEndian.PutUint32(v[len(v)-4:], crc32.ChecksumIEEE(v[:len(v)-4]))
	return v
}

func (v *value) right(key uint64) bool {
	return binary.LittleEndian.Uint64(v[:]) == key &&
		binary.LittleEndian.Uint32(v[len(v)-4:]) == crc32.ChecksumIEEE(v[:len(v)-4])
}

// client reads and writes from 16 goroutines until it is killed, and says how
// it is doing. A wrong byte ends it.
func client(socket string, out io.Writer) error {
	h, err := soft.Open(soft.Config{Budget: soft.MinBudget, Max: 512 << 20, Coordinator: socket, Name: "tortured"})
	if err != nil {
		return err
	}
	m, err := soft.NewMap(h, soft.MapConfig[uint64, value]{})
	if err != nil {
		return err
	}
	var reads, hits, wrong atomic.Uint64
	var wg sync.WaitGroup
	for g := range uint64(16) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 1))
			for wrong.Load() == 0 {
				k := r.Uint64N(200000)
				v, ok := m.Get(k)
				reads.Add(1)
				switch {
				case !ok:
					_ = m.Set(k, makeValue(k, r.Uint64()))
				case v.right(k):
					hits.Add(1)
				default:
					wrong.Add(1)
				}
			}
		})
	}
	go func() {
		t := time.NewTicker(20 * time.Millisecond)
		for range t.C {
			s := h.Stats()
			fmt.Fprintf(out, "%d reads %d hits %d revoked %d budget\n", reads.Load(), hits.Load(), s.RevokedSegments, s.Budget)
		}
	}()
	wg.Wait()
	return fmt.Errorf("wrong bytes after %d reads", reads.Load())
}

// tortured is a running client and what it said last.
type tortured struct {
	p    *child.Process
	w    *io.PipeWriter
	mu   sync.Mutex
	last struct{ reads, hits, revoked, budget int64 }
}

func startClient(t *testing.T, self, socket string) *tortured {
	t.Helper()
	r, w := io.Pipe()
	p, err := child.Start(child.Command{Path: self, Args: []string{"client", socket}, Stdout: w})
	if err != nil {
		t.Fatal(err)
	}
	c := &tortured{p: p, w: w}
	var done sync.WaitGroup
	done.Go(func() {
		sc := bufio.NewScanner(r)
		for sc.Scan() {
			c.mu.Lock()
			l := &c.last
			_, _ = fmt.Sscan(strings.NewReplacer("reads", "", "hits", "", "revoked", "", "budget", "").Replace(sc.Text()), &l.reads, &l.hits, &l.revoked, &l.budget)
			c.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		p.Kill()
		w.Close()
		done.Wait()
	})
	return c
}

func (c *tortured) said() (reads, hits, revoked, budget int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last.reads, c.last.hits, c.last.revoked, c.last.budget
}

// goesOn waits until the client has read more.
func (c *tortured) goesOn(t *testing.T) {
	t.Helper()
	before, _, _, _ := c.said()
	until(t, "the client goes on", func() bool {
		select {
		case <-c.p.Done():
			t.Fatalf("the client has ended: %v\n%s", c.p.Err(), c.p.Stderr())
		default:
		}
		now, _, _, _ := c.said()
		return now > before+1000
	})
}

func TestClientsSurviveEverythingThatHappensToTheCoordinatorAndThem(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	coordinate := func(max string) *child.Process {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		p, err := child.StartReady(ctx, child.Command{Path: self, Args: []string{
			"coordinator", "--socket", socket, "--admin", "off", "--interval", "20ms", "--deadline", "10ms",
			"--max", max, "--max-per-user", max}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		return p
	}
	daemon := coordinate("192MiB")
	a := startClient(t, self, socket)
	b := startClient(t, self, socket)
	r := rand.New(rand.NewPCG(1, 2))
	rounds := 0
	for end := time.Now().Add(*tortureTime); rounds < 2 || time.Now().Before(end); rounds++ {
		victim := a
		if r.IntN(2) == 0 {
			victim = b
		}
		victim.goesOn(t)
		switch what := r.IntN(3); what {
		case 0: // the coordinator is killed, and another one has more or less
			daemon.Kill()
			victim.goesOn(t)
			daemon = coordinate([]string{"48MiB", "96MiB", "256MiB"}[r.IntN(3)])
		case 1: // a client is stopped, and memory is taken from it meanwhile
			if err := victim.p.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			daemon.Kill()
			daemon = coordinate("32MiB")
			if err := victim.p.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		case 2: // a client is killed, and another comes
			victim.p.Kill()
			c := startClient(t, self, socket)
			if victim == a {
				a = c
			} else {
				b = c
			}
		}
		a.goesOn(t)
		b.goesOn(t)
	}
	reads, hits, revoked, _ := a.said()
	t.Logf("%d rounds; one client: %d reads, %d hits, %d segments revoked", rounds, reads, hits, revoked)
}
