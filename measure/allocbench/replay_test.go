package allocbench

import (
	"bufio"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"polder/measure/benchout"
	"polder/memnode/wire"
	"polder/pool"
	"polder/pool/finemem"
)

// testTrace asks for 4 KiB, 16 KiB and 32 KiB, a millisecond apart.
const testTrace = "0 0\n1000 2\n2000 3\n"

func TestAReplayMeasuresEveryManager(t *testing.T) {
	tr, err := ReadTrace(strings.NewReader(testTrace), "small")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	o := ReplayOptions{Options: Options{Out: benchout.New(&out, true)}, Traces: []*Trace{tr}, ASAP: true,
		Clients: 2, ChunkSizes: []int{16 << 10, 64 << 10}}
	if err := Replay(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for s := bufio.NewScanner(strings.NewReader(out.String())); s.Scan(); {
		var row benchout.Row
		if err := json.Unmarshal(s.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		values[row.Case+" "+row.Metric] = row.Value
	}
	for _, m := range slices.Concat(pool.Managers(), wire.ManagerNames(wire.Baseline)) {
		if m == finemem.Name {
			continue
		}
		for chunk, want := range map[string]map[string]float64{
			// One chunk, one and two; and one for each request.
			"16KiB": {"requests": 3, "asked for": 52. / 1024, "peak memory": 64. / 1024, "utilisation": 81.25},
			"64KiB": {"requests": 3, "asked for": 52. / 1024, "peak memory": 192. / 1024, "utilisation": 100 * 52. / 192},
		} {
			name := "small: " + m + " " + chunk + " x2 "
			for metric, v := range want {
				if got := values[name+metric]; got != v {
					t.Errorf("%s%s: got %v, want %v", name, metric, got, v)
				}
			}
			for _, metric := range []string{"alloc rate", "alloc p50", "alloc p99", "free rate", "free p50", "free p99"} {
				if values[name+metric] <= 0 {
					t.Errorf("%s%s: got %v", name, metric, values[name+metric])
				}
			}
		}
	}
}

// TestBlocksOfEverySize: FineMem has them, and wastes nothing; so has the scan, but
// leaves gaps.
func TestBlocksOfEverySize(t *testing.T) {
	tr, err := ReadTrace(strings.NewReader("0 0\n0 9\n0 5\n0 1\n"), "sizes")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	o := ReplayOptions{Options: Options{Out: benchout.New(&out, true)}, Traces: []*Trace{tr}, Clients: 2,
		Managers: []string{finemem.Name, ArrayScan}}
	if err := Replay(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"case":"sizes: finemem x2","metric":"utilisation","value":100,`,
		`"case":"sizes: arrayscan x2","metric":"asked for","value":2.13671875,`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant %s", out.String(), want)
		}
	}
}

// TestAReplayKeepsTheTracesTimes: nothing is asked for before its time.
func TestAReplayKeepsTheTracesTimes(t *testing.T) {
	tr, err := ReadTrace(strings.NewReader(testTrace), "small")
	if err != nil {
		t.Fatal(err)
	}
	o := ReplayOptions{Options: Options{Out: benchout.New(new(strings.Builder), true)}, Traces: []*Trace{tr},
		Clients: 1, ChunkSizes: []int{64 << 10}, Managers: []string{"native"}}
	start := time.Now()
	if err := Replay(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 2*time.Millisecond {
		t.Errorf("the replay took %v, and the trace's last request comes after 2 ms", took)
	}
}

func TestAnUnknownManagerIsRefused(t *testing.T) {
	err := Replay(t.Context(), ReplayOptions{Managers: []string{"malloc"}})
	if err == nil || !strings.Contains(err.Error(), `"malloc", want some of rpcmw`) {
		t.Errorf("got %v", err)
	}
}
