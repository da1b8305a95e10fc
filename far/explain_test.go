package far

import (
	"strings"
	"testing"

	"polder/far/heap"
)

// Each finding is made where it applies, and not in a heap that does well.
func TestExplainNamesWhatWouldHelp(t *testing.T) {
	well := Stats{Stats: heap.Stats{Budget: 64 << 20, Resident: 60 << 20, LocalLive: 45 << 20, Free: 2 << 20,
		Lines:   [heap.Lines]int64{heap.InLogs: 52 << 20, heap.Tables: 4 << 20, heap.Leaves: 1 << 20, heap.Fetching: 3 << 20, heap.Staging: 2 << 20, heap.Unused: 2 << 20},
		Fetches: 5000, Evacuated: 5000, EvacuatedClean: 4000, EvacuatedSegments: 10, BytesOut: 1 << 30}}
	if got := well.Explain(); !strings.Contains(got, "Nothing needs attention") {
		t.Errorf("a heap that does well: %s", got)
	}
	if got, want := well.Explain(), "The budget: logs 52 MiB, tables 4096 KiB, leaves 1024 KiB, staging 2048 KiB, fetching 3072 KiB, unused 2048 KiB.\n"; !strings.Contains(got, want) {
		t.Errorf("%q is not in: %s", want, got)
	}
	for _, c := range []struct {
		name   string
		change func(s *Stats)
		want   []string
	}{
		{"lost", func(s *Stats) { s.Lost = 7 }, []string{"7 entries were lost"}},
		{"corrupt", func(s *Stats) { s.Corrupt = 3 }, []string{"3 reads brought other bytes"}},
		{"unreturned", func(s *Stats) { s.Unreturned = 2 }, []string{"did not take 2 segments back"}},
		{"scarce", func(s *Stats) { s.Free = 0 }, []string{"waits for the evacuator", "SetLocal"}},
		{"index", func(s *Stats) { s.Index = 40 << 20 }, []string{"40 MiB of the budget of 64 MiB", "StructureConfig.Group"}},
		{"leaves", func(s *Stats) { s.Settled, s.Lines[heap.Tables], s.LeavesFar, s.LeafReads = 9, 12<<20, 99<<20, 1234 }, []string{"tables have 12 MiB", "leaves in far memory 99 MiB", "1234 reads", "SetLocal"}},
		{"far full", func(s *Stats) { s.CleanedBytes, s.BytesOut = 2<<30, 5<<29 }, []string{"moved 2048 MiB", "beside 512 MiB that the evacuator wrote", "far memory is nearly full", "Lend more"}},
		{"all local", func(s *Stats) { s.Fetches, s.Evacuated, s.EvacuatedClean = 0, 0, 0 }, []string{"Everything has been local", "smaller Config.Local"}},
		{"map misses", func(s *Stats) { s.Maps = []MapStats{{Name: "users", Hits: 3000, Misses: 1000}} }, []string{`25 % of the calls on map "users" miss`, "Config.Local"}},
		{"object misses", func(s *Stats) { s.Classes = []ClassStats{{Name: "nodes", Warmed: 1000, Misses: 1000}} }, []string{`50 % of the objects of "nodes"`, "Prefetcher"}},
		{"prefetched in vain", func(s *Stats) {
			s.Structures = []StructureStats{{Kind: "array", ClassStats: ClassStats{Name: "a", Warmed: 1e6}, Prefetch: PrefetchStats{Issued: 2000, Unused: 800}}}
		}, []string{`40 % of what was prefetched for array "a"`, "NoPrefetch"}},
		{"prefetch dropped", func(s *Stats) {
			s.Structures = []StructureStats{{Kind: "queue", ClassStats: ClassStats{Name: "q", Warmed: 1e6}, Prefetch: PrefetchStats{Issued: 1000, Dropped: 1000}}}
		}, []string{`50 % of what should have been prefetched for queue "q"`, "faster store"}},
		{"used once", func(s *Stats) {
			s.Maps = []MapStats{{}}
			s.Structures = []StructureStats{{Kind: "array", Group: 4, ClassStats: ClassStats{Name: "pictures", Warmed: 2000}, Prefetch: PrefetchStats{Issued: 2000, Used: 2000}}}
		}, []string{`array "pictures" are used once`, "Stream"}},
		{"small objects", func(s *Stats) {
			s.Structures = []StructureStats{{Kind: "vector", Group: 1, ObjectSize: 8, ClassStats: ClassStats{Name: "v", Warmed: 1e6, Misses: 5000}}}
		}, []string{`vector "v" are 8 bytes`, "Group"}},
		{"pace", func(s *Stats) { s.PrefetchRate, s.PrefetchLatency, s.PrefetchWindow = 1<<30, 50_000, 100<<10 }, []string{"1024 MiB a second", "50µs", "100 KiB ahead"}},
	} {
		s := well
		c.change(&s)
		got := s.Explain()
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q is not in:\n%s", c.name, w, got)
			}
		}
		if n := strings.Count(got, "\n"); n != 3 {
			t.Errorf("%s: %d lines, want two of the state and one finding:\n%s", c.name, n, got)
		}
	}
}

// What a heap says of itself goes by what has happened to it.
func TestAHeapExplainsItself(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	if got := h.Explain(); !strings.Contains(got, "Everything has been local") {
		t.Errorf("an empty heap: %s", got)
	}
	a := newArray[[8]int64](t, h, 20_000, StructureConfig{Name: "big"})
	s := h.NewScope()
	defer s.Close()
	for range 3 {
		for i, b := range a.MutChunks(s, 0, a.Len()) {
			b[0][0] = int64(i)
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	got := h.Explain()
	if strings.Contains(got, "Everything has been local") || !strings.Contains(got, "far segments") {
		t.Errorf("a heap that evacuates: %s", got)
	}
	st := a.Stats()
	if st.Name != "big" || st.Len != a.Len() || st.Group != 16 || st.ObjectSize != 1024 || st.Evacuated == 0 || st.Misses+st.Prefetch.Issued == 0 {
		t.Errorf("the array's statistics are %+v", st)
	}
	if p := st.Prefetch; p.Used+p.Unused > p.Issued {
		t.Errorf("more was used than was prefetched: %+v", p)
	}
	if all := h.Stats(); all.Passes == 0 || len(all.Structures) != 1 {
		t.Errorf("the heap's statistics are %+v", all)
	}
}
