package robustness

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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"polder/internal/child"
	"polder/internal/proctest"
	"polder/soft"
	"polder/soft/coordinator"
)

var tortureTime = flag.Duration("torture", 6*time.Second, "how long the torture test runs")

// checkedValue carries its own checksum.
type checkedValue [1024]byte

func makeChecked(key, salt uint64) (v checkedValue) {
	binary.LittleEndian.PutUint64(v[:], key)
	for i := 8; i < len(v)-4; i += 4 {
		binary.LittleEndian.PutUint32(v[i:], uint32(salt)*uint32(i))
	}
	binary.LittleEndian.PutUint32(v[len(v)-4:], crc32.ChecksumIEEE(v[:len(v)-4]))
	return v
}

func (v *checkedValue) right(key uint64) bool {
	return binary.LittleEndian.Uint64(v[:]) == key &&
		binary.LittleEndian.Uint32(v[len(v)-4:]) == crc32.ChecksumIEEE(v[:len(v)-4])
}

// softClient is the first argument of this test program as a client of the
// coordinator's.
const softClient = "soft-client"

// client reads and writes from 16 goroutines until it is killed, and says how
// it is doing. A wrong byte ends it.
func client(socket string, out io.Writer) error {
	h, err := soft.Open(soft.Config{Budget: soft.MinBudget, Max: 512 << 20, Coordinator: socket, Name: "tortured"})
	if err != nil {
		return err
	}
	m, err := soft.NewMap(h, soft.MapConfig[uint64, checkedValue]{})
	if err != nil {
		return err
	}
	var reads, hits, wrong atomic.Uint64
	var wg sync.WaitGroup
	for g := range uint64(16) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 1))
			for wrong.Load() == 0 {
				k := r.Uint64N(60000)
				v, ok := m.Get(k)
				reads.Add(1)
				switch {
				case !ok:
					_ = m.Set(k, makeChecked(k, r.Uint64()))
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
	p, err := child.Start(child.Command{Path: self, Args: []string{softClient, socket}, Stdout: w})
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
	proctest.Until(t, "the client goes on", func() bool {
		select {
		case <-c.p.Done():
			t.Fatalf("the client has ended: %v\n%s", c.p.Err(), c.p.Stderr())
		default:
		}
		now, _, _, _ := c.said()
		return now > before+1000
	})
}

// scene is a coordinator and its clients, of which each is a process.
type scene struct {
	t      *testing.T
	self   string
	socket string
	r      *rand.Rand

	daemon  *child.Process
	clients []*tortured
	gone    struct{ reads, hits, revoked int64 } // what the dead had done
}

// coordinate starts a coordinator that has so much to give.
func (s *scene) coordinate(max string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 60*time.Second)
	defer cancel()
	p, err := child.StartReady(ctx, child.Command{Path: proctest.Binary(), Args: []string{
		"coordinator", "--socket", s.socket, "--admin", "127.0.0.1:0", "--interval", "20ms", "--grace", "50ms", "--deadline", "10ms",
		"--max", max, "--max-per-user", max}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.Kill)
	s.daemon = p
}

func (s *scene) come() *tortured {
	c := startClient(s.t, s.self, s.socket)
	s.clients = append(s.clients, c)
	return c
}

// kill kills one of the clients.
func (s *scene) kill(i int) {
	c := s.clients[i]
	reads, hits, revoked, _ := c.said()
	s.gone.reads, s.gone.hits, s.gone.revoked = s.gone.reads+reads, s.gone.hits+hits, s.gone.revoked+revoked
	c.p.Kill()
	s.clients = slices.Delete(s.clients, i, i+1)
}

func (s *scene) signal(p *child.Process, sig syscall.Signal) {
	s.t.Helper()
	if err := p.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// status is what the coordinator says of itself.
func (s *scene) status() (st coordinator.Stats) {
	s.t.Helper()
	m := proctest.State(s.t, s.daemon).Metrics
	return coordinator.Stats{
		Clients: int(m.Int("polder_coordinator_clients")), Granted: m.Int("polder_coordinator_granted_bytes"), Resident: m.Int("polder_coordinator_resident_bytes"),
		Malformed: uint64(m.Int("polder_coordinator_malformed_total")), Ended: uint64(m.Int("polder_coordinator_ended_total")),
	}
}

// events are what can happen to a coordinator and its clients; i is the client
// to whom it does.
var events = []struct {
	name   string
	happen func(s *scene, i int)
}{
	{"the coordinator is killed, and another one has more or less", func(s *scene, i int) {
		s.daemon.Kill()
		s.clients[i].goesOn(s.t)
		s.coordinate([]string{"48MiB", "96MiB", "256MiB"}[s.r.IntN(3)])
	}},
	{"the coordinator is stopped, and continued", func(s *scene, i int) {
		s.signal(s.daemon, syscall.SIGSTOP)
		s.clients[i].goesOn(s.t)
		s.signal(s.daemon, syscall.SIGCONT)
	}},
	{"a client is stopped, and is given another coordinator meanwhile", func(s *scene, i int) {
		s.signal(s.clients[i].p, syscall.SIGSTOP)
		s.daemon.Kill()
		s.coordinate("32MiB")
		s.signal(s.clients[i].p, syscall.SIGCONT)
	}},
	{"a client is stopped, and memory is taken from it for another one", func(s *scene, i int) {
		stopped := s.clients[i]
		s.signal(stopped.p, syscall.SIGSTOP)
		c := s.come()
		c.goesOn(s.t)
		s.signal(stopped.p, syscall.SIGCONT)
		stopped.goesOn(s.t)
		s.kill(s.r.IntN(len(s.clients)))
	}},
	{"a client is killed, and another comes", func(s *scene, i int) {
		s.kill(i)
		s.come()
	}},
	{"a client is stopped and killed", func(s *scene, i int) {
		s.signal(s.clients[i].p, syscall.SIGSTOP)
		s.kill(i)
		s.come()
	}},
}

func TestClientsSurviveEverythingThatHappensToTheCoordinatorAndThem(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{t: t, self: self, socket: filepath.Join(t.TempDir(), "s"), r: rand.New(rand.NewPCG(1, 2))}
	s.coordinate("192MiB")
	s.come()
	s.come()
	rounds := 0
	for end := time.Now().Add(*tortureTime); time.Now().Before(end) || rounds < len(events); rounds++ {
		what := rounds // each at least once
		if rounds >= len(events) {
			what = s.r.IntN(len(events))
		}
		events[what%len(events)].happen(s, s.r.IntN(len(s.clients)))
		for _, c := range s.clients {
			c.goesOn(t)
		}
	}
	for len(s.clients) > 0 {
		s.kill(0)
	}
	proctest.Until(t, "all is accounted for", func() bool {
		st := s.status()
		return st.Clients == 0 && st.Granted == 0 && st.Resident == 0
	})
	if st := s.status(); st.Malformed != 0 || st.Ended != 0 {
		t.Errorf("clients that behave are found to be hostile: %+v", st)
	}
	t.Logf("%d events; %d reads, %d hits, %d segments revoked", rounds, s.gone.reads, s.gone.hits, s.gone.revoked)
	if s.gone.hits == 0 || s.gone.revoked == 0 {
		t.Errorf("%d hits and %d revoked segments show nothing", s.gone.hits, s.gone.revoked)
	}
}
