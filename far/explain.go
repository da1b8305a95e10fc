package far

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"polder/far/heap"
)

// StructureStats is what has happened to a data structure since it was made, and its present state.
type StructureStats struct {
	ClassStats        // of its objects; Warmed samples the local hits
	Kind       string // "array", "vector", "list", "stack", "queue"
	Len        int    // elements
	Group      int    // elements in an object
	ObjectSize int    // bytes of an object's data
	Prefetch   PrefetchStats
}

func (tr *tracker) structure() StructureStats {
	return StructureStats{tr.Class.Stats(), tr.kind, tr.len(), tr.Group, tr.Class.Size, tr.Structure.Stats()}
}

// track adds a structure to the heap's statistics.
func (h *Heap) track(tr *tracker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.structures = append(h.structures, tr)
}

// untrack undoes track, and ends the structure's class, of which no objects may be left.
func (h *Heap) untrack(tr *tracker) {
	h.mu.Lock()
	if i := slices.Index(h.structures, tr); i >= 0 {
		h.structures = slices.Delete(h.structures, i, i+1)
	}
	h.mu.Unlock()
	h.objects.Retire(tr.Class)
}

// Structures returns the statistics of the data structures on the heap. Maps are
// in Stats.Maps.
func (h *Heap) Structures() []StructureStats {
	h.mu.Lock()
	trs := slices.Clone(h.structures)
	h.mu.Unlock()
	all := make([]StructureStats, len(trs))
	for i, tr := range trs {
		all[i] = tr.structure()
	}
	return all
}

// Explain says in words what the heap is doing: a line for each thing worth knowing, with the setting that would
// help, if there is one. It goes by what has happened since the heap was made.
func (h *Heap) Explain() string {
	s := h.Stats()
	return s.Explain()
}

// Explain is Heap.Explain for statistics that were taken earlier, or for the difference between two.
func (s *Stats) Explain() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s of local memory are resident. %s of entries and objects live there, and %s in %d far segments.\nThe budget:",
		bytesSay(s.Resident), bytesSay(s.Budget), bytesSay(s.LocalLive), bytesSay(s.FarLive), s.FarSegments)
	sep := " "
	for u, n := range s.Lines {
		if n != 0 {
			fmt.Fprintf(&b, "%s%v %s", sep, heap.Line(u), bytesSay(n))
			sep = ", "
		}
	}
	b.WriteString(".\n")
	n := 0
	for _, f := range findings {
		for _, line := range f(s) {
			b.WriteString(line)
			b.WriteByte('\n')
			n++
		}
	}
	if n == 0 {
		b.WriteString("Nothing needs attention.\n")
	}
	return b.String()
}

// A finding returns what is to be said about one aspect of the statistics; nothing if all is well.
type finding func(s *Stats) []string

// findings are the aspects that Explain looks at, the most urgent first.
var findings = []finding{
	findLost, findCorrupt, findUnreturned, findScarce, findIndex, findLeaves, findFarFull,
	findAllLocal, findMapMisses, findObjectMisses, findPrefetch, findStreams, findGroups, findPace,
}

const (
	enough = 1000 // events that a finding needs before it says anything
	many   = 0.2  // the share of all events from which on a finding calls them many
)

func share(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

func percent(part, whole uint64) string { return fmt.Sprintf("%.0f %%", 100*share(part, whole)) }

func bytesSay(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

func findLost(s *Stats) []string {
	if s.Lost == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d entries were lost with their far memory: a node died. Reading one gives a LostError until it is set or freed; a store that keeps two copies would help.", s.Lost)}
}

func findCorrupt(s *Stats) []string {
	if s.Corrupt == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d reads brought other bytes than were written, and were refused: look for a bad node or link.", s.Corrupt)}
}

func findUnreturned(s *Stats) []string {
	if s.Unreturned == 0 {
		return nil
	}
	return []string{fmt.Sprintf("The store did not take %d segments back when they were offered; they are offered again.", s.Unreturned)}
}

func findScarce(s *Stats) []string {
	if s.Free > 0 || s.EvacuatedSegments == 0 {
		return nil
	}
	return []string{"No local memory is free just now, so that whoever needs some waits for the evacuator: the program takes it faster than the store can be written. Raise Config.Local (SetLocal), hold scopes for a shorter time, or give the store more bandwidth."}
}

func findIndex(s *Stats) []string {
	if s.Index*2 <= s.Budget {
		return nil
	}
	return []string{fmt.Sprintf("Indexes and pointers take %s of the budget of %s, which leaves little for data: raise Config.Local (SetLocal), or put more elements into an object (StructureConfig.Group).", bytesSay(s.Index), bytesSay(s.Budget))}
}

func findLeaves(s *Stats) []string {
	if s.Settled == 0 {
		return nil
	}
	return []string{fmt.Sprintf("The words of maps' entries would take more than their part of the budget: tables have %s of them, and leaves in far memory %s, of which %d reads were needed. A first read of what has not been used for long waits for a leaf, too; a larger Config.Local (SetLocal) would spare that.", bytesSay(s.Lines[heap.Tables]), bytesSay(s.LeavesFar), s.LeafReads)}
}

func findFarFull(s *Stats) []string {
	evacuated := s.BytesOut - s.CleanedBytes // BytesOut includes what the cleaner writes
	if s.CleanedBytes < 64<<20 || s.CleanedBytes < evacuated {
		return nil
	}
	return []string{fmt.Sprintf("The cleaner has moved %s to get far segments back, beside %s that the evacuator wrote: far memory is nearly full. Lend more.", bytesSay(int64(s.CleanedBytes)), bytesSay(int64(evacuated)))}
}

func findAllLocal(s *Stats) []string {
	if s.Evacuated+s.EvacuatedClean+s.Fetches > 0 {
		return nil
	}
	return []string{fmt.Sprintf("Everything has been local so far: nothing was evacuated or fetched. Live data take %s of %s; a smaller Config.Local would do as well.", bytesSay(s.LocalLive+s.Index), bytesSay(s.Budget))}
}

func findMapMisses(s *Stats) (lines []string) {
	for i := range s.Maps {
		m := &s.Maps[i]
		if calls := m.Hits + m.Sets + m.Misses; calls >= enough && share(m.Misses, calls) > many {
			lines = append(lines, fmt.Sprintf("%s of the calls on map %q miss, and wait for the store: its hot entries do not fit. Raise Config.Local (SetLocal), or Prefetch keys that are known in advance.", percent(m.Misses, calls), m.Name))
		}
	}
	return lines
}

// used is how many uses of objects were noticed: not every use is.
func used(c *ClassStats) uint64 { return c.Warmed + c.Misses }

func findObjectMisses(s *Stats) (lines []string) {
	for i := range s.Classes {
		c := &s.Classes[i]
		if used(c) < enough || share(c.Misses, used(c)) <= many {
			continue
		}
		help := "Raise Config.Local (SetLocal), or Prefetch what is known in advance."
		if c.Prefetched == 0 {
			help = "There is no pattern in it, or a Prefetcher would know one. " + help
		}
		lines = append(lines, fmt.Sprintf("%s of the objects of %q that were used after a while had to be waited for. %s", percent(c.Misses, used(c)), c.Name, help))
	}
	return lines
}

func findPrefetch(s *Stats) (lines []string) {
	for i := range s.Structures {
		st := &s.Structures[i]
		p := &st.Prefetch
		switch asked := p.Issued + p.Dropped; {
		case asked < enough:
		case share(p.Unused, p.Issued) > many:
			lines = append(lines, fmt.Sprintf("%s of what was prefetched for %s %q was evacuated before it was used. If its order cannot be guessed, set StructureConfig.NewPrefetcher to one that does not, such as NoPrefetch; if it can, raise Config.Local (SetLocal).", percent(p.Unused, p.Issued), st.Kind, st.Name))
		case share(p.Dropped, asked) > many:
			lines = append(lines, fmt.Sprintf("%s of what should have been prefetched for %s %q was not, since earlier reads were not done: the program is faster than the store. Nothing but a faster store would help, or more nodes.", percent(p.Dropped, asked), st.Kind, st.Name))
		}
	}
	return lines
}

func findStreams(s *Stats) (lines []string) {
	for i := range s.Structures {
		st := &s.Structures[i]
		came := st.Misses + st.Prefetch.Issued
		if came >= enough && used(&st.ClassStats) < came+came/8 && len(s.Structures)+len(s.Maps) > 1 {
			lines = append(lines, fmt.Sprintf("Objects of %s %q are used once after they were fetched, and push out others that may be used again: read them with the Stream forms.", st.Kind, st.Name))
		}
	}
	return lines
}

func findGroups(s *Stats) (lines []string) {
	for i := range s.Structures {
		st := &s.Structures[i]
		if st.Group == 1 && st.ObjectSize < 256 && st.Misses+st.Prefetch.Issued >= enough {
			lines = append(lines, fmt.Sprintf("Objects of %s %q are %d bytes, and each is fetched by itself with as much around it: a larger StructureConfig.Group would bring neighbours along.", st.Kind, st.Name, st.ObjectSize))
		}
	}
	return lines
}

func findPace(s *Stats) []string {
	if s.PrefetchRate == 0 {
		return nil
	}
	return []string{fmt.Sprintf("Prefetching brings in %s a second in reads of at least %v, and is up to %s ahead.", bytesSay(s.PrefetchRate), s.PrefetchLatency.Round(time.Microsecond), bytesSay(s.PrefetchWindow))}
}
