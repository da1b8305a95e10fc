package respbench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"polder/internal/load"
	"polder/internal/proctest"
	"polder/measure/benchout"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// steps is what a benchmark has told Progress. Progress is called at the beginning of a step.
type steps struct {
	t           *testing.T
	said        map[string]bool
	done, total int // of the last call
}

func (s *steps) progress(done, total int, what string) {
	if done < s.done || done > s.done+1 || s.said != nil && total != s.total {
		s.t.Errorf("progress went from %d of %d to %d of %d, %s", s.done, s.total, done, total, what)
	}
	if s.said == nil {
		s.said = map[string]bool{}
	}
	s.said[what], s.done, s.total = true, done, total
}

// ended fails the test unless the last step was the last of the total.
func (s *steps) ended() {
	s.t.Helper()
	if s.done != s.total-1 {
		s.t.Errorf("the last step began when %d of %d were done", s.done, s.total)
	}
}

// TestEveryCaseIsMeasured runs the whole benchmark with next to no data: the
// servers start, the cases come in order, and the figures make sense.
func TestEveryCaseIsMeasured(t *testing.T) {
	var out bytes.Buffer
	said := steps{t: t}
	b := &bench{
		scale: scale{rounds: 1, duration: 5 * time.Millisecond, settle: 5 * time.Millisecond, data: 8 << 20, most: 10_000, wide: 500, large: 2 << 20},
		cfg:   Config{Polder: proctest.Binary(), Printer: benchout.New(&out, true), Progress: said.progress},
	}
	if err := b.run(context.Background()); err != nil {
		t.Fatal(err)
	}
	said.ended()
	if !said.said["fill redis"] || !said.said["far tcp settles"] || !said.said["local GET 64B P1"] {
		t.Errorf("progress said %v", said.said)
	}
	hits, stale, spared := 0, 0, 0.0
	seen := map[string]benchout.Row{}
	for line := range strings.Lines(out.String()) {
		var r benchout.Row
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if strings.HasPrefix(r.Metric, "stale ") {
			if r.Value < 0 || r.Unit != "us" {
				t.Errorf("got the row %s", line)
			}
			stale++
			continue
		}
		if r.Metric == "local hits" {
			least, most := 1.0, 99.9
			switch {
			case strings.HasPrefix(r.Case, "origin "): // one case may be over before anything is asked for twice
				least, most = 0, 100
				spared += r.Value
			case strings.HasPrefix(r.Case, "local "):
				least = 100
				fallthrough
			case strings.Contains(r.Case, " 64B "): // the least budget is enough for so few
				most = 100
			}
			if r.Value < least || r.Value > most || r.Unit != "%" || r.Rival != "" {
				t.Errorf("got the row %s, want %v to %v %%", line, least, most)
			}
			hits++
			continue
		}
		if r.Bench != "resp" || r.Rival != "redis" || r.Value <= 0 || r.RivalValue <= 0 || r.Ratio <= 0 {
			t.Errorf("got the row %s", line)
		}
		seen[r.Case+" "+r.Metric] = r
	}
	for _, server := range []string{"local", "far tcp", "far inproc"} {
		for _, op := range []string{"GET", "SET"} {
			for _, size := range []string{"64B", "1KiB", "4KiB"} {
				for _, pipeline := range []string{"P1", "P16"} {
					for _, metric := range []string{"throughput", "p50", "p99"} {
						name := strings.Join([]string{server, op, size, pipeline, metric}, " ")
						if _, ok := seen[name]; !ok {
							t.Errorf("%s was not measured", name)
						}
					}
				}
			}
		}
	}
	for _, wide := range []string{"HSET of 500 fields", "HGETALL of 500 fields", "MSET of 500 keys", "WATCH of 50 keys", "DEL of 500 keys", "SET of 2MiB", "GET of 2MiB"} {
		if _, ok := seen["local "+wide+" time"]; !ok {
			t.Errorf("%s was not measured", wide)
		}
	}
	for _, name := range []string{"origin GET 1KiB P1 p50", "origin GET 1KiB P16 throughput", "origin SET 1KiB P1 p99", "origin 1ms away, GET 1KiB P1 p50"} {
		if _, ok := seen[name]; !ok {
			t.Errorf("%s was not measured", name)
		}
	}
	if want := 3*2*3*2*3 + 7 + 2*2*2*3; len(seen) != want {
		t.Errorf("got %d rows, want %d", len(seen), want)
	}
	if want := 3*3*2 + 2*2; hits != want || stale != 2 {
		t.Errorf("got %d rows of local hits, want one for every GET, %d; and %d of staleness", hits, want, stale)
	}
	if spared == 0 {
		t.Error("a cache before a Redis answered nothing itself")
	}
}

// TestAWrongReplyIsNoFigure has a server that answers a wide command with less
// than it should.
func TestAWrongReplyIsNoFigure(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1<<16))
		_, _ = io.WriteString(conn, ":9\r\n")
		_, _ = io.Copy(io.Discard, conn)
	})
	w, err := dialWide(context.Background(), &server{name: "short", addr: lis.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.conn.Close()
	if _, err := w.measure(wideCases(10)[4]); err == nil || !strings.Contains(err.Error(), `":9\r\n"`) {
		t.Errorf("got %v, want an error that shows the reply", err)
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{3, 1}, 2}, {[]float64{9, 1, 2}, 2}} {
		if got := median(tt.in); got != tt.want {
			t.Errorf("median(%v) = %v, want %v", tt.in, got, tt.want)
		}
	}
}

func TestNothingIsInfinitelyFast(t *testing.T) {
	for _, tt := range []struct{ n, seconds, want float64 }{{0, 0, 0}, {5, 0, 0}, {0, 2, 0}, {5, 2, 2.5}} {
		if got := perSecond(tt.n, tt.seconds); got != tt.want {
			t.Errorf("%v in %v s: got %v a second, want %v", tt.n, tt.seconds, got, tt.want)
		}
	}
}

func TestADistanceIsAsLongAsItIsSaid(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var echo sync.WaitGroup
	defer echo.Wait()
	defer lis.Close()
	echo.Go(func() {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	})
	const late = 20 * time.Millisecond
	d, err := newDistance(lis.Addr().String(), late)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	conn, err := net.Dial("tcp", d.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begun := time.Now()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != "hello" {
		t.Fatalf("got %q, %v", b, err)
	}
	if took := time.Since(begun); took < 2*late {
		t.Errorf("there and back took %v, want at least %v", took, 2*late)
	}
}

// TestWhatIsDurableIsMeasured does the same for RunDurable.
func TestWhatIsDurableIsMeasured(t *testing.T) {
	var out bytes.Buffer
	said := steps{t: t}
	cfg := Config{Polder: proctest.Binary(), Printer: benchout.New(&out, true), Progress: said.progress}
	scale := durableScale{clients: []int{2}, rounds: 1, duration: 5 * time.Millisecond, keys: 1000, heaps: map[int][]int{64: {1000, 2000}}}
	if err := runDurable(t.Context(), cfg, t.TempDir(), scale); err != nil {
		t.Fatal(err)
	}
	said.ended()
	rivals := map[string]int{}
	for line := range strings.Lines(out.String()) {
		var r benchout.Row
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Bench != "durable" || r.Value <= 0 || r.Rival != "" && r.RivalValue <= 0 {
			t.Fatalf("got the row %s, %v", line, err)
		}
		rivals[r.Rival]++
	}
	for rival, want := range map[string]int{"redis always": 9, "redis everysec": 3, "redis WAIT 1": 3, "reads by lease": 3, "redis AOF": 4, "redis RDB": 4, "": 2} {
		if rivals[rival] != want {
			t.Errorf("%d rows beside %s, want %d", rivals[rival], rival, want)
		}
	}
}

// TestAServerThatComesBackWithAnotherValueIsNoFigure has Redis keep another value of the last key before it is killed.
func TestAServerThatComesBackWithAnotherValueIsNoFigure(t *testing.T) {
	b, dir := &bench{}, t.TempDir()
	start := func(ctx context.Context) (string, func() error, error) {
		r, err := startAOF(ctx, dir, "everysec", "--appendonly", "no")
		if err != nil {
			return "", nil, err
		}
		return r.Addr, killer(r.Process), nil
	}
	_, err := b.killed(t.Context(), "redis", start, 10, 64, func(c *redis.Client) error {
		return errors.Join(c.Set(t.Context(), string(load.Key(9)), "another", 0).Err(), c.Save(t.Context()).Err())
	})
	if err == nil || !strings.HasSuffix(err.Error(), "has another value of the last key, of 10: 7 bytes, want 64") {
		t.Errorf("got %v, want that the value is another one", err)
	}
}

// TestWhatCopiesCostIsMeasured does the same for RunSurvive.
func TestWhatCopiesCostIsMeasured(t *testing.T) {
	var out bytes.Buffer
	said := steps{t: t}
	cfg := Config{Polder: proctest.Binary(), Printer: benchout.New(&out, true), Progress: said.progress}
	if err := runSurvive(t.Context(), cfg, surviveScale{rounds: 1, duration: 5 * time.Millisecond, keys: 10_000, copies: []int{1, 2}, second: 50 * time.Millisecond, idle: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	said.ended()
	metrics := map[string]int{}
	for line := range strings.Lines(out.String()) {
		var r benchout.Row
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Bench != "survive" || r.Value <= 0 {
			t.Fatalf("got the row %s, %v", line, err)
		}
		metrics[r.Metric+" "+r.Rival]++
	}
	for metric, want := range map[string]int{"throughput redis": 4, "throughput redis WAIT 1": 2, "throughput 1 copy": 2, "repair WRITE": 1, "repair WRITE to fresh memory": 1, "GET p99 in the second after before": 1, "from demand to answer goal": 2} {
		if metrics[metric] != want {
			t.Errorf("%d rows of %s, want %d", metrics[metric], metric, want)
		}
	}
}

// TestRepairOverLimitedLinksIsMeasured, or it is said in one line why not; and nothing of it is left, either way, nor when it is interrupted.
func TestRepairOverLimitedLinksIsMeasured(t *testing.T) {
	devices := func() string {
		b, err := os.ReadFile("/proc/net/dev")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for line := range strings.Lines(string(b)) {
			name, _, _ := strings.Cut(line, ":")
			names = append(names, strings.TrimSpace(name))
		}
		return strings.Join(names, " ")
	}
	before := devices()
	var out bytes.Buffer
	var notes []string
	b := &bench{cfg: Config{Polder: proctest.Binary(), Printer: benchout.New(&out, true), Progress: func(int, int, string) {}, Note: func(what string) { notes = append(notes, what) }}}
	if err := b.overLinks(t.Context(), []int{1}, 16<<20); err != nil {
		t.Fatal(err)
	}
	if canLimit(t.Context()) == nil {
		for i, line := range slices.Collect(strings.Lines(out.String())) {
			var r benchout.Row
			want := []string{"repair WRITE", "all copies again "}[i%2]
			if err := json.Unmarshal([]byte(line), &r); err != nil || r.Case != "2 copies, links of 1 Gbit/s" || r.Value <= 0 || r.Metric+" "+r.Rival != want {
				t.Errorf("got the row %s, want %s", line, want)
			}
			if most := 1e9 / 8 / (1 << 20) * 2; r.Unit == "MiB/s" && (r.Value > most || r.RivalValue > most) {
				t.Errorf("got the row %s over a link that carries half of %.0f MiB/s", line, most)
			}
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 2 && len(notes) != 1 || n > 0 && len(notes) > 0 {
		t.Errorf("%d rows and the notes %q, want two rows or one note", n, notes)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := b.overLinks(ctx, []int{1}, 16<<20); err == nil && len(notes) == 0 {
		t.Error("it goes on when it is interrupted")
	}
	if now := devices(); now != before {
		t.Errorf("network devices are %q, and were %q", now, before)
	}
}

// TestNoLinksAreLimitedWithoutTheTools, and that is said.
func TestNoLinksAreLimitedWithoutTheTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var notes []string
	b := &bench{cfg: Config{Polder: "/no/such/program", Progress: func(int, int, string) {}, Note: func(what string) { notes = append(notes, what) }}}
	if err := b.overLinks(t.Context(), []int{1}, 1<<20); err != nil || len(notes) != 1 || !strings.Contains(notes[0], "ip") {
		t.Errorf("got %v and the notes %q, want one note", err, notes)
	}
	if b.done != 1 {
		t.Errorf("%d steps are done, want 1 also where it cannot be measured", b.done)
	}
}

// TestClusterIsMeasured runs all of bench cluster with next to no data.
func TestClusterIsMeasured(t *testing.T) {
	var out bytes.Buffer
	said := steps{t: t}
	cfg := Config{Polder: proctest.Binary(), Printer: benchout.New(&out, true), Progress: said.progress}
	if err := runCluster(t.Context(), cfg, clusterScale{servers: []int{1, 2}, partitions: 4, keys: 1000, duration: 5 * time.Millisecond, local: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	said.ended()
	n := 0
	for line := range strings.Lines(out.String()) {
		var r benchout.Row
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Bench != "cluster" || r.Value <= 0 {
			t.Errorf("got the row %s", line)
		}
		n++
	}
	if n != 5 {
		t.Errorf("got %d rows, want 5", n)
	}
}
