package verbsbench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/measure/benchout"
)

// serverEnv makes the test binary the server.
const serverEnv = "POLDER_TEST_VERBSBENCH_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		if err := Serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestEveryCaseIsMeasuredBesideTheRival(t *testing.T) {
	for _, where := range []string{"in this process", "in a process of its own"} {
		t.Run(where, func(t *testing.T) {
			var out bytes.Buffer
			o := Options{Short: true, Out: benchout.New(&out, true)}
			if where != "in this process" {
				t.Setenv(serverEnv, "1")
				o.Server = []string{os.Args[0]}
			}
			if err := run(context.Background(), o, 1, 2*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			rows := 0
			for dec := json.NewDecoder(&out); dec.More(); rows++ {
				var r benchout.Row
				if err := dec.Decode(&r); err != nil {
					t.Fatal(err)
				}
				rival := "raw TCP"
				switch {
				case strings.Contains(r.Case, "groups"):
					rival = "1 group"
				case strings.HasPrefix(r.Case, "shm in place"):
					rival = "plain memory"
				case strings.HasPrefix(r.Case, "shm"):
					rival = "raw Unix"
				}
				if r.Bench != "verbs" || r.Value <= 0 || r.Rival != rival || r.RivalValue <= 0 || r.Ratio <= 0 {
					t.Errorf("got %+v, want a figure, a rival's and a ratio", r)
				}
			}
			// READ and WRITE at four sizes and CMP_SWAP, three drivers and two
			// metrics, and in place; 2 and 4 groups of queue pairs, three drivers and
			// two metrics.
			if want := (2*4+1)*(3*2+1) + 2*3*2; rows != want {
				t.Errorf("got %d rows, want %d", rows, want)
			}
		})
	}
}

func TestAServerThatDoesNotStartIsReported(t *testing.T) {
	o := Options{Short: true, Out: benchout.New(os.Stdout, true), Server: []string{"/nonexistent/server"}}
	if err := Run(context.Background(), o); err == nil {
		t.Error("got no error")
	}
}

func TestRunStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Run(ctx, Options{Short: true, Out: benchout.New(os.Stdout, true)}); err == nil {
		t.Error("got no error")
	}
}
