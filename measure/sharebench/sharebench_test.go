package sharebench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

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
	figures := map[string]float64{}
	for dec := json.NewDecoder(&out); dec.More(); {
		var r benchout.Row
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		figures[r.Case+"/"+r.Metric] = r.Value
	}
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
	if figures["trace 20% no eviction/not stored"] == 0 {
		t.Error("a fifth of the room without eviction: all blocks were stored")
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
