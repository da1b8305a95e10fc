package sharebench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/internal/config"
	"polder/measure/benchout"
	"polder/share/resource"
	"polder/share/server"
)

// TestMain lets this binary be the daemon and the workers, too.
func TestMain(m *testing.M) {
	var err error
	switch os.Getenv("SHAREBENCH_ROLE") {
	case "worker":
		err = Worker(context.Background(), os.Stdin, os.Stdout)
	case "daemon":
		err = runDaemon(os.Args[1:])
	default:
		goleak.VerifyTestMain(m)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runDaemon(args []string) error {
	opt := server.Options{}
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "--dir":
			i++
			opt.Dir = args[i]
		case "--socket":
			i++
			opt.Socket = args[i]
		case "--pool":
			i++
			_, size, _ := strings.Cut(args[i], ":")
			n, err := config.ParseSize(size)
			if err != nil {
				return err
			}
			opt.Pools = []resource.Spec{{Kind: resource.Memfd, Size: n}}
		case "--lru":
			opt.LRU = true
		}
	}
	s, err := server.Start(opt)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	return s.Close()
}

func TestADaemonThatEndsTooEarlyIsExplainedAlsoIfItEndsCleanly(t *testing.T) {
	_, err := startDaemon(t.Context(), Options{Daemon: []string{"/bin/true"}}, t.TempDir())
	if err == nil || !strings.HasSuffix(err.Error(), "exit code 0") {
		t.Errorf("got %v, want how it has ended", err)
	}
}

func TestTraceIsReplayed(t *testing.T) {
	t.Setenv("SHAREBENCH_ROLE", "worker")
	env, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = Run(t.Context(), Options{
		Daemon:        []string{"/usr/bin/env", "SHAREBENCH_ROLE=daemon", env},
		WorkerCommand: []string{env},
		Out:           benchout.New(&out, true),
		Trace:         "testdata/trace.jsonl",
		Chunk:         4 << 10,
		Workers:       2,
		Capacities:    []int{20, 100},
	})
	if err != nil {
		t.Fatal(err)
	}
	figures := readFigures(t, &out)
	most := figures["trace/hits at most"]
	if most <= 0 {
		t.Fatalf("the trace has no block twice: %v", figures)
	}
	for _, c := range []string{"trace 20%", "trace 100%"} {
		if got := figures[c+"/not stored"]; got != 0 {
			t.Errorf("%s with eviction: %v blocks were not stored, want 0", c, got)
		}
		if got := figures[c+"/hits"]; got <= 0 || got > most+0.001 {
			t.Errorf("%s: %v%% hits, want some, and at most %v%% are possible", c, got, most)
		}
	}
	if got := figures["trace 100%/hits"]; got < 0.9*most {
		t.Errorf("with room for everything: %v%% hits, want nearly the %v%% that are possible", got, most)
	}
	const own = "trace 100%, at the trace's rate"
	if got := figures[own+"/rate"]; got < 2 || got > 4.1 { // 60 requests in 15 s
		t.Errorf("at the trace's rate: %v requests a second, want 4 or somewhat less", got)
	}
	if got := figures[own+"/p99"]; got <= 0 || figures[own+"/busy"] <= 0 || figures[own+"/busy"] >= 100 {
		t.Errorf("at the trace's rate: a p99 of %v µs, busy for %v%% of the time, want some of both", got, figures[own+"/busy"])
	}
	if figures["trace 20% no eviction/not stored"] == 0 {
		t.Error("a fifth of the room without eviction: all blocks were stored")
	}
}

// readFigures returns what was printed as JSON by case and metric, the last one
// of those that have several rivals.
func readFigures(t *testing.T, out io.Reader) map[string]float64 {
	t.Helper()
	figures := map[string]float64{}
	for dec := json.NewDecoder(out); dec.More(); {
		var r benchout.Row
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		figures[r.Case+"/"+r.Metric] = r.Value
	}
	return figures
}

// TestAtTheTracesRateRequestsWaitForThoseBefore: two come at once, and a third one
// when they are served.
func TestAtTheTracesRateRequestsWaitForThoseBefore(t *testing.T) {
	var clock pace
	for i, want := range []time.Duration{4, 8, 4} {
		r := request{Timestamp: []float64{0, 0, 10}[i]}
		if got := clock.serve(r.arrival(), 4*time.Millisecond); got != want*time.Millisecond {
			t.Errorf("request %d: got %v, want %v", i, got, want*time.Millisecond)
		}
	}
	if clock.free != 14*time.Millisecond || clock.busy != 12*time.Millisecond {
		t.Errorf("got the time %v, busy for %v, want 14ms and 12ms", clock.free, clock.busy)
	}
}

func TestIdealLRU(t *testing.T) {
	reqs := []request{{HashIDs: []int64{1, 2}}, {HashIDs: []int64{1, 2, 3}}, {HashIDs: []int64{9, 1}}}
	if got, want := idealLRU(reqs, 100), 2.0/7; got != want {
		t.Errorf("with room for all: got %v, want %v", got, want)
	}
	if got := idealLRU(reqs, 1); got != 0 {
		t.Errorf("with room for one: got %v, want 0", got)
	}
}

// TestAQuantileOfATraceIsOfTheRequestsOfAllWorkers: a fast worker with most of
// the requests and a slow one. A mean of their medians is nobody's request.
func TestAQuantileOfATraceIsOfTheRequestsOfAllWorkers(t *testing.T) {
	var got []result
	for _, latencies := range [][]time.Duration{{1e3, 1e3, 2e3}, {100e3, 90e3}} {
		var s summary
		for _, d := range latencies {
			s.add(d)
		}
		var r result // as it comes from a process
		line, err := json.Marshal(result{Series: map[string]summary{"request": s.withSamples()}, Figures: map[string]float64{"blocks": 1}})
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	var out bytes.Buffer
	run := traceRun{opt: Options{Out: benchout.New(&out, true)}, name: "trace"}
	if err := run.print(got, nil, time.Second); err != nil {
		t.Fatal(err)
	}
	figures := readFigures(t, &out)
	for metric, want := range map[string]float64{"p50": 2, "p99": 100, "rate": 5} {
		if got := figures["trace/"+metric]; got != want {
			t.Errorf("%s: got %v, want %v", metric, got, want)
		}
	}
}

// TestABatchIsOneSample: what is told of puts of several blobs at once, and of
// the copies that they are measured against, are times of whole batches.
func TestABatchIsOneSample(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "batch")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := server.Start(server.Options{
		Dir: filepath.Join(dir, "state"), Socket: filepath.Join(dir, "s"),
		Pools: []resource.Spec{{Kind: resource.Memfd, Size: 16 << 20}}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w := worker{}
	defer w.close()
	const size, n = 4 << 10, 100
	for _, op := range []string{"open", "put"} {
		res, err := w.do(t.Context(), task{Op: op, Socket: filepath.Join(dir, "s"), Size: size, N: n, Page: size, Region: 1 << 20, Prefix: "t"})
		if err != nil {
			t.Fatal(err)
		}
		if op == "open" {
			continue
		}
		for _, name := range []string{"batch", "memcpy of a batch"} {
			got := res.Series[name]
			if got.N != batches(n) || got.Bytes != float64(batches(n)*batchSize*size) || got.P50 <= 0 {
				t.Errorf("%s: got %d samples of %v bytes with a p50 of %v ns, want %d of %d bytes, and more than 0 ns",
					name, got.N, got.Bytes, got.P50, batches(n), batches(n)*batchSize*size)
			}
		}
		var out bytes.Buffer
		if err := printSize(benchout.New(&out, true), "4KiB", res.Series, nil, nil); err != nil {
			t.Fatal(err)
		}
		if got, want := readFigures(t, &out)["put 4KiB, 8 at once/p50"], res.Series["batch"].P50/1e3; got != want {
			t.Errorf("the row of the batches: got %v µs, want %v, the p50 of the batches", got, want)
		}
	}
}
