//go:build !race

// One goroutine counts hits, in a million of accesses.

package far

import (
	"context"
	"errors"
	goscanner "go/scanner"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"polder/far/heap"
)

// youngFirst is S3-FIFO without ghosts, as far as a log of segments can have it: what is new stays for a part of the
// memory only, unless it is used, and what was used once is given the rest.
type youngFirst struct {
	heap.Clock
	share float64 // of segments that what is new may have
}

func (y youngFirst) Rank(s heap.Age) uint64 {
	if young := float64(s.Fresh) > y.share*float64(s.Fresh+s.Again); young == s.Kept {
		return s.Seq + 1<<40
	}
	return s.Seq
}

// forgetful keeps nothing: a FIFO.
type forgetful struct{ heap.Clock }

func (forgetful) Keeps(bool) bool { return false }

// playTrace reads keys in turn through a heap with the policy p, and stores those that are not there. It returns the part of the
// accesses to keys that are there which are local.
func playTrace(tb testing.TB, p heap.Policy, local int64, size int, trace []int) float64 {
	cfg := Config{Local: local}
	store := heap.NewMemStore(1<<20, 4000)
	lay, err := layoutFor(store, &cfg)
	if err != nil {
		tb.Fatal(err)
	}
	lay.policy = p
	h, err := newHeap(store, cfg, lay)
	if err != nil {
		tb.Fatal(err)
	}
	m, ctx, buf := h.NewByteMap("trace"), context.Background(), make([]byte, 0, size)
	for _, k := range trace {
		_, err := m.Get(ctx, key(k), buf)
		if errors.Is(err, ErrNotFound) {
			err = m.Set(ctx, key(k), Entry{Value: value(uint64(k), size)})
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	st := h.Stats().Maps[0]
	if err := h.Close(); err != nil {
		tb.Fatal(err)
	}
	return share(st.Hits, st.Hits+st.Misses)
}

// identifiers is the identifiers of Go's own source in the order in which they stand there, by number, up to n.
func identifiers(tb testing.TB, n int) (trace []int) {
	numbers := map[string]int{}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		tb.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(strings.TrimSpace(string(root)), "src"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var s goscanner.Scanner
		f := token.NewFileSet().AddFile(path, -1, len(src))
		s.Init(f, src, nil, 0)
		for len(trace) < n {
			_, tok, word := s.Scan()
			if tok == token.EOF {
				return nil
			}
			if tok == token.IDENT {
				if _, ok := numbers[word]; !ok {
					numbers[word] = len(numbers)
				}
				trace = append(trace, numbers[word])
			}
		}
		return fs.SkipAll
	})
	if err != nil {
		tb.Fatal(err)
	}
	return trace
}

// BenchmarkPolicies reports hit ratios of policies: on the identifiers of Go's source, and on keys of Zipfian popularity
// between which there is a scan of all keys.
func BenchmarkPolicies(b *testing.B) {
	const n, size = 3_000_000, 1000
	z := newZipf(rand.New(rand.NewPCG(1, 2)), 0.99, 100_000)
	var zipf []int
	for len(zipf) < n {
		for range 900_000 {
			zipf = append(zipf, z.next())
		}
		for k := range 100_000 {
			zipf = append(zipf, k)
		}
	}
	for _, t := range []struct {
		name  string
		trace []int
	}{{"words", identifiers(b, n)}, {"zipf+scans", zipf}} {
		for _, p := range []struct {
			name   string
			policy heap.Policy
		}{{"CLOCK", heap.Clock{}}, {"FIFO", forgetful{}}, {"young=10%", youngFirst{share: 0.1}}, {"young=30%", youngFirst{share: 0.3}}} {
			b.Run(t.name+"/"+p.name, func(b *testing.B) {
				for b.Loop() {
					b.ReportMetric(100*playTrace(b, p.policy, 8<<20, size, t.trace), "%hits")
				}
			})
		}
	}
}

// A heap asks the policy that it was made with: one that keeps nothing misses what CLOCK keeps.
func TestThePolicyDecidesWhatStays(t *testing.T) {
	t.Parallel()
	z := newZipf(rand.New(rand.NewPCG(1, 2)), 0.99, 20_000)
	trace := make([]int, 200_000)
	for i := range trace {
		trace[i] = z.next()
	}
	clock, fifo := playTrace(t, nil, heap.MinLocal, 1000, trace), playTrace(t, forgetful{}, heap.MinLocal, 1000, trace)
	t.Logf("%.1f%% hits with CLOCK, %.1f%% with FIFO", 100*clock, 100*fifo)
	if clock < fifo+0.01 {
		t.Errorf("CLOCK has %.1f%% hits, FIFO %.1f%%", 100*clock, 100*fifo)
	}
	young := playTrace(t, youngFirst{share: 0.1}, heap.MinLocal, 1000, trace)
	if t.Logf("%.1f%% with what is new in a tenth", 100*young); young == clock {
		t.Errorf("the order of segments makes no difference: %.3f%% hits", 100*young)
	}
}
