package farbench

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"polder/far"
	"polder/internal/proctest"
	"polder/measure/benchout"
	"polder/pages"
)

func TestScanComparesEveryAmountOfWork(t *testing.T) {
	dir := t.TempDir()
	text := bytes.Repeat([]byte("All work and no play makes Jack a dull boy.\n"), 200_000)
	if err := os.WriteFile(filepath.Join(dir, "text"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	o, out := tiny()
	o.Corpus = dir
	if err := runScan(t.Context(), o, scanScale{
		pages: 2 << 10, works: []time.Duration{0, 50 * time.Microsecond}, rounds: 1, span: 10 * time.Millisecond,
		corpus: 16 << 20, passes: 1,
	}); err != nil {
		t.Fatal(err)
	}
	reads, packs, unpacks := out.of("read"), out.of("compress"), out.of("decompress")
	for _, c := range []string{"tcp, 0s of work", "tcp, 50µs of work", "shm, 0s of work", "shm, 50µs of work"} {
		if reads[c] <= 0 {
			t.Errorf("%s: %v reads a second", c, reads[c])
		}
	}
	for _, c := range []string{"snappy, tcp, 20% local", "snappy, tcp, 50% local", "snappy, shm, 20% local", "snappy, shm, 50% local"} {
		if packs[c] <= 0 || unpacks[c] <= 0 {
			t.Errorf("%s: compressed %v MB/s and decompressed %v", c, packs[c], unpacks[c])
		}
	}
}

func TestThreadsCoversEveryNumber(t *testing.T) {
	o, out := tiny()
	if err := runThreads(t.Context(), o, threadsScale{entries: 1 << 16, goroutines: []int{1, 64}, rounds: 1, span: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	gets, misses := out.of("get"), out.of("misses")
	for _, c := range []string{"tcp, 1 goroutines", "tcp, 64 goroutines", "shm, 1 goroutines", "shm, 64 goroutines"} {
		// One goroutine may get four keys in that time, which says nothing of the ratio.
		few := strings.Contains(c, " 1 ")
		if gets[c] <= 0 || !few && (misses[c] < 40 || misses[c] > 95) {
			t.Errorf("%s: %v gets a second, of which %v %% missed", c, gets[c], misses[c])
		}
	}
}

func TestWebComparesAllFrontEnds(t *testing.T) {
	o, out := tiny()
	if err := runWeb(t.Context(), o, webScale{pairs: 1 << 16, rounds: 1, span: 20 * time.Millisecond, settle: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	requests := out.of("requests")
	for _, c := range []string{"all local", "tcp, temporal", "tcp, non-temporal", "shm, temporal", "shm, non-temporal"} {
		if requests[c] <= 0 {
			t.Errorf("%s: %v requests a second", c, requests[c])
		}
	}
	for c, v := range out.of("array misses") {
		if v <= 0 || v > 100 {
			t.Errorf("%s: %v %% of the array's accesses missed", c, v)
		}
	}
}

// interrupter ends a run when it prints its first row.
type interrupter struct{ cancel context.CancelCauseFunc }

var errEnough = errors.New("enough")

func (i interrupter) Print(benchout.Row) error {
	i.cancel(errEnough)
	return nil
}

func TestBenchesEndWhenTheyAreInterrupted(t *testing.T) {
	const span = time.Millisecond
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "zero"), make([]byte, 4*far.MinLocal), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]func(context.Context, Options) error{
		"map": func(ctx context.Context, o Options) error {
			return runMap(ctx, o, mapScale{entries: 1 << 13, skews: []float64{0, 1}, rounds: 1, span: span, settle: span, gc: time.Hour})
		},
		"scan": func(ctx context.Context, o Options) error {
			return runScan(ctx, o, scanScale{pages: 2 << 10, works: make([]time.Duration, 100), rounds: 1, span: span, corpus: 1 << 40})
		},
		"paging": func(ctx context.Context, o Options) error {
			return pagingScale{data: 16 << 20, sizes: []int{4096, 1}, rounds: 1, span: span, timed: 10}.run(ctx, o)
		},
		"threads": func(ctx context.Context, o Options) error {
			return runThreads(ctx, o, threadsScale{entries: 1 << 13, goroutines: []int{1, 1 << 20}, rounds: 1, span: span})
		},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		o, _ := tiny()
		o.Corpus, o.Out = dir, interrupter{cancel}
		if err := run(ctx, o); !errors.Is(err, errEnough) {
			t.Errorf("%s: got %v, want %v", name, err, errEnough)
		}
	}
}

func TestACorpusSmallerThanLocalMemoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "few"), make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := readCorpus(dir, 1<<20)
	if err == nil || !strings.Contains(err.Error(), "100 bytes in all, want at least") {
		t.Errorf("got %v, want how much there is and should be", err)
	}
	if _, err := readCorpus(filepath.Join(dir, "none"), 1<<20); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that there is no such directory", err)
	}
}

func TestPageSumIsThatOfEveryPage(t *testing.T) {
	for _, i := range []int{0, 1, 4095, 1 << 20} {
		var p page
		fillPage(&p, i)
		if got, want := pageSum(i), sumPage(&p); got != want {
			t.Errorf("pageSum(%d) = %d, want %d", i, got, want)
		}
	}
}

func TestPicturesLieAllOver(t *testing.T) {
	const n = 977
	var seen []int
	for i := range n {
		seen = append(seen, scattered(i, n))
	}
	slices.Sort(seen)
	for i, at := range seen {
		if i != at {
			t.Fatalf("no picture lies at %d", i)
		}
	}
}

func TestFilesComeBackFromCompression(t *testing.T) {
	data := make([]byte, 300_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(r.IntN(4))
	}
	f, err := openFiles(t.Context(), far.NewMemStore(256<<10, 32), far.MinLocal, data)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	}()
	c := newCodec()
	if err := c.pack(f.packed, f.in); err != nil {
		t.Fatal(err)
	}
	if f.packed.size >= len(data) {
		t.Errorf("%d bytes were compressed to %d", len(data), f.packed.size)
	}
	if err := c.unpack(f.out, f.packed); err != nil {
		t.Fatal(err)
	}
	if err := f.out.check(data); err != nil {
		t.Error(err)
	}
	data[len(data)-1] ^= 1
	f.out.at = 0
	if err := f.out.check(data); err == nil {
		t.Error("a difference in the last byte was not found")
	}
}

// TestObjectsAreComparedWithPages over both fabrics. That nothing was lost, the benchmark sees
// itself.
func TestObjectsAreComparedWithPages(t *testing.T) {
	o, out := tiny()
	if err := (pagingScale{data: 6 << 20, sizes: []int{1024}, rounds: 1, span: 25 * time.Millisecond, timed: 20}).run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	rivals := map[string]int{}
	for _, r := range *out {
		name, _, _ := strings.Cut(r.Rival, ",")
		rivals[name]++
		if r.Value <= 0 || r.RivalValue <= 0 {
			t.Errorf("got the row %+v, want figures", r)
		}
		// Three of four objects are far, each in a page with three others. Pages that were written when the objects were
		// made may be on their way out meanwhile, which on a busy machine is more than is read.
		if r.Metric == "bytes moved" && strings.HasSuffix(r.Case, "read") && (r.Value > 2 || r.RivalValue < 2) {
			t.Errorf("%s moves %v bytes for each that is used, and pages %v; want less than 1, and at least 3", r.Case, r.Value, r.RivalValue)
		}
	}
	if rivals["pages"] != 8 || rivals["page fault"] != 4 || rivals["raw READ"] != 4 {
		t.Errorf("got so many rows of each rival: %v; want 8 of pages, and 4 of faults and READs", rivals)
	}
}

// TestWhatTheKernelCannotSwapToIsSaid, by both benchmarks that have it swap.
func TestWhatTheKernelCannotSwapToIsSaid(t *testing.T) {
	for name, run := range map[string]func(Options) error{
		"paging": func(o Options) error { return (pagingScale{data: 8 << 20, swap: true}).run(t.Context(), o) },
		"pages":  func(o Options) error { return (pagesScale{work: 8 << 20, accesses: 1}).swap(t.Context(), o) },
	} {
		o, out := tiny()
		var said strings.Builder
		o.Note = func(what string) { said.WriteString(what + "\n") }
		if err := run(o); err != nil || len(*out) > 0 {
			t.Errorf("%s: got %v and %d rows, want none of either", name, err, len(*out))
		}
		_, noClient := os.Stat("/sys/module/nbd")
		if left := strings.Contains(said.String(), "cannot swap to NBD here: the comparison with it is left out: exit status 1: polder: cannot swap to borrowed memory"); left != (noClient != nil) {
			t.Errorf("%s says %q, and the kernel's NBD client: %v", name, said.String(), noClient)
		}
	}
}

// TestTheKernelSwapsOut three quarters of a process's objects, none of which is lost, and
// there is nothing left of that in the end.
func TestTheKernelSwapsOut(t *testing.T) {
	before, _ := os.ReadFile("/proc/swaps")
	const size = 32 << 20
	z, err := newZram(t.Context(), size)
	if err != nil {
		t.Skipf("SKIPPED, so that nothing is known of the kernel's swapping: %v (it takes root and zram)", err)
	}
	p, err := startSwapped(proctest.Binary(), size, size/4)
	if err == nil {
		for _, j := range []job{{Do: "fill", Size: 4096}, {Do: "touch", Size: 4096, Threads: 1, Span: time.Millisecond, Update: true}, {Do: "check", Size: 4096}} {
			var r result
			if r, err = p.do(t.Context(), j); err != nil {
				break
			}
			if j.Do == "touch" && r.Count == 0 || j.Do == "check" && r.Count == 0 {
				t.Errorf("%+v: got %+v, want updates", j, r)
			}
		}
		err = errors.Join(err, p.close())
	}
	if errors.Is(err, errSwapped) {
		t.Skipf("SKIPPED, so that nothing is known of the kernel's swapping: %v", errors.Join(err, z.close()))
	}
	if moved, failed := z.moved(); moved < size/2 || failed != nil {
		t.Errorf("%d bytes were swapped, %v; want more than %d", moved, failed, size/2)
	}
	if err := errors.Join(err, z.close()); err != nil {
		t.Error(err)
	}
	if after, _ := os.ReadFile("/proc/swaps"); !bytes.Equal(before, after) {
		t.Errorf("there was swap memory of %q, and is of %q", before, after)
	}
}

func TestWhatIsWrongWithAnObjectIsSeen(t *testing.T) {
	b := make([]byte, 64)
	fillObject(b, 7)
	for want := range uint64(3) {
		if got, err := touchObject(b, 7, true); got != want || err != nil {
			t.Fatalf("version %d: %v, want %d", got, err, want)
		}
	}
	if _, err := touchObject(b, 8, false); err == nil {
		t.Error("it is taken for another object")
	}
	b[63]++
	if _, err := touchObject(b, 7, false); err == nil {
		t.Error("its last byte is not looked at")
	}
}

// TestPagesAreMeasured over both fabrics; that programs find what they must, the benchmark sees
// itself.
func TestPagesAreMeasured(t *testing.T) {
	o, out := tiny()
	s := pagesScale{size: 4 << 20, work: 1 << 20, accesses: 256, rounds: 1, timed: 100, percents: []int64{25}}
	for _, fabric := range fabrics {
		if err := s.run(t.Context(), o, fabric); err != nil {
			t.Fatal(err)
		}
		faults, times := out.of("p50"), out.of("time")
		if name := "fault, " + fabric + ", not pinned"; faults[name] <= 0 {
			t.Errorf("%s: %v us", name, faults[name])
		}
		for _, p := range programs(s.work, s.accesses) {
			if name := fabric + ", " + p.name + ", 25 % local"; times[name] <= 0 {
				t.Errorf("%s: %v ms", name, times[name])
			}
		}
	}
	bounds := map[string]int{}
	for _, r := range *out {
		bounds[r.Rival]++
		if r.Rival == "bound by bandwidth" || r.Rival == "bound by the kernel" || r.Rival == "zero page" {
			if r.RivalValue <= 0 {
				t.Errorf("%s: the %s is %v", r.Case, r.Rival, r.RivalValue)
			}
		}
	}
	for _, name := range []string{"bound by bandwidth", "bound by the kernel"} {
		if bounds[name] != len(fabrics) {
			t.Errorf("%d rows have a %s, want one for each of %d fabrics", bounds[name], name, len(fabrics))
		}
	}
}

// unprinted prints nothing.
type unprinted struct{}

func (unprinted) Print(benchout.Row) error { return errEnough }

func TestARowThatCannotBePrintedEndsPages(t *testing.T) {
	o, _ := tiny()
	o.Out = unprinted{}
	s := pagesScale{size: 4 << 20, timed: 10} // single accesses only
	if err := s.run(t.Context(), o, fabrics[0]); !errors.Is(err, errEnough) {
		t.Errorf("got %v, want what is wrong with the printer", err)
	}
}

// TestProgramsFindWhatTheyMust, and what they leave in the memory is looked at.
func TestProgramsFindWhatTheyMust(t *testing.T) {
	const size = 1 << 20
	mem := make([]byte, size)
	slots := joinSlots(mem)
	all := uint64(2 * (size/pages.Size + (size/pages.Size)*(size/pages.Size-1)/2*pages.Size)) // of the pages, twice
	want := map[string]uint64{"sequential": all, "strided": all}
	for i := slots; i < size/joinRow; i++ {
		if row := i * 7 % slots; row < slots/2 {
			want["hash join"] += uint64(row+1) * (joinRow/8 - 1)
		}
	}
	for _, p := range programs(size, 2*size/pages.Size) {
		p.prepare(mem)
		got := p.run(mem)
		if want[p.name] != 0 && got != want[p.name] {
			t.Errorf("%s: found %d, want %d", p.name, got, want[p.name])
		}
		if p.again {
			if again := p.run(mem); again != got {
				t.Errorf("%s: found %d, and %d the second time", p.name, got, again)
			}
		}
		if p.check == nil {
			continue
		}
		if err := p.check(mem); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
		mem[size/8]++
		if err := p.check(mem); err == nil || strings.Contains(err.Error(), "<nil>") {
			t.Errorf("%s: a byte that has changed: got %v, want what is wrong", p.name, err)
		}
	}
}
