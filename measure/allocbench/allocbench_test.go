package allocbench

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/measure/benchout"
	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryContestantIsMeasured(t *testing.T) {
	var out strings.Builder
	o := Options{Out: benchout.New(&out, true)}
	if err := run(t.Context(), o, 1, 10*time.Millisecond, []int{1, 3}); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"tcp", "shm"} {
		for _, m := range slices.Concat(pool.Managers(), wire.ManagerNames(wire.Baseline), []string{wire.MemFD}) {
			if f == "tcp" && m == wire.MemFD {
				continue
			}
			for _, n := range []string{"1", "3"} {
				name, figures := f+" "+m+" x"+n, map[string]float64{}
				for dec := json.NewDecoder(strings.NewReader(out.String())); dec.More(); {
					var row benchout.Row
					if err := dec.Decode(&row); err != nil {
						t.Fatal(err)
					}
					if row.Case == name {
						figures[row.Metric] = row.Value
					}
				}
				for _, metric := range []string{"alloc p50", "alloc p99", "free p50", "free p99", "alloc+free"} {
					if figures[metric] <= 0 {
						t.Errorf("%s, %s: got %v", name, metric, figures[metric])
					}
				}
				if figures["alloc p99"] < figures["alloc p50"] {
					t.Errorf("%s: p50 and p99 are %v and %v", name, figures["alloc p50"], figures["alloc p99"])
				}
				// What the CPU hands out costs it something.
				if busy, ok := figures["control path"]; !ok || busy < 0 || m == "rpcmw" && busy == 0 {
					t.Errorf("%s: the control path took %v us (printed: %v)", name, busy, ok)
				}
			}
		}
	}
}

// TestARigThatCannotStartLeavesNothing: who ends the benchmark while nodes and clients start,
// or has no room for temporary files, gets the error, and what was started is closed.
func TestARigThatCannotStartLeavesNothing(t *testing.T) {
	all, err := fabrics()
	if err != nil {
		t.Fatal(err)
	}
	f := &all[0]
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	node := func(ctx context.Context) error {
		_, err := f.start(ctx, f.managers[0], memnode.Config{Lend: chunks * chunkSize, ChunkSize: chunkSize}, 1)
		return err
	}
	scan := func(ctx context.Context) error {
		_, _, err := f.startScan(ctx, &Trace{Requests: []Request{{}}}, 1)
		return err
	}
	for name, start := range map[string]func(context.Context) error{"a node": node, "an array": scan} {
		if err := start(canceled); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, with a context that has ended: got %v, want Canceled", name, err)
		}
	}
	t.Setenv("TMPDIR", "/nonexistent")
	for name, start := range map[string]func(context.Context) error{"a node": node, "an array": scan} {
		if err := start(t.Context()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, without a directory for temporary files: got %v, want ErrNotExist", name, err)
		}
	}
}
