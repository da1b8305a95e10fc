package heap

import (
	"errors"
	"fmt"
	"sync/atomic"

	"polder/internal/sizeclass"
)

// counters are the counters of the slow paths. The owners have those of the fast ones.
type counters struct {
	Fetches, BytesIn, BytesOut         atomic.Uint64
	evacuated, evacuatedClean          atomic.Uint64
	evacuatedSegments, cleanedSegments atomic.Uint64
	cleanedBytes, Lost, Corrupt        atomic.Uint64
	unreturned, passes                 atomic.Uint64
}

// Stats is what a heap's memory has been through since it was made, and how it stands.
type Stats struct {
	Fetches           uint64 // reads of entries and objects from the store
	BytesIn           uint64 // read from the store
	BytesOut          uint64 // written to the store, by the evacuator and the cleaner
	Evacuated         uint64 // entries and objects written to the store and dropped
	EvacuatedClean    uint64 // entries and objects dropped because their far copy was good
	EvacuatedSegments uint64 // local segments emptied
	CleanedSegments   uint64 // far segments cleaned
	CleanedBytes      uint64 // of BytesOut, those that were moved by cleaning
	Lost              uint64 // entries lost with their far memory
	Corrupt           uint64 // reads that brought other bytes
	Unreturned        uint64 // far segments that the store did not take back
	Passes            uint64 // of the evacuator over what scopes keep in place

	// Local memory, in bytes. Lines is how the budget is divided, and sums to it. Resident is how much of the budget
	// is memory already; it exceeds the budget only while that shrinks.
	Budget, Resident int64
	Lines            [Lines]int64
	Index            int64 // of Lines: Tables, Leaves, Words and Nodes
	LocalLive        int64 // of entries and objects, in the logs
	Free             int64 // of Lines[Unused], in whole segments

	// Far memory. FarLive and FarDead are bytes of what has been written.
	FarSegments      int
	FarLive, FarDead int64
	Uncounted        int // segments whose loss is in no statistics yet
}

// Stats returns the statistics.
func (h *Heap) Stats() Stats {
	c := &h.Count
	s := Stats{
		Fetches:           c.Fetches.Load(),
		BytesIn:           c.BytesIn.Load(),
		BytesOut:          c.BytesOut.Load(),
		Evacuated:         c.evacuated.Load(),
		EvacuatedClean:    c.evacuatedClean.Load(),
		EvacuatedSegments: c.evacuatedSegments.Load(),
		CleanedSegments:   c.cleanedSegments.Load(),
		CleanedBytes:      c.cleanedBytes.Load(),
		Lost:              c.Lost.Load(),
		Corrupt:           c.Corrupt.Load(),
		Unreturned:        c.unreturned.Load(),
		Passes:            c.passes.Load(),
	}
	s.Free = int64(max(h.Logs.account(&s), 0)) * int64(h.Logs.SegSize)
	s.Lines[Staging] += narrow * stagingCost(h.Far.size)
	s.Lines[Cleaning] = int64(len(h.scratch))
	s.Lines[Fetching] = int64(h.Bufs.Size())
	h.Far.All(func(f *FarSegment) {
		s.FarSegments++
		if f.Gone() && !f.Counted.Load() {
			s.Uncounted++
		}
		live := f.Live.Load()
		s.FarLive += live
		s.FarDead += f.Filled() - live
	})
	return s
}

// Tally is what the owners refer to, counted again.
type Tally struct {
	h     *Heap
	local []struct{ live, clean int64 } // bytes, by segment
	far   map[uint64]int64              // bytes that live, by segment
	Index [Staging]int64                // bytes, by Line

	Unsure bool // not all of what is far could be counted
}

func (h *Heap) Tally() *Tally {
	return &Tally{h: h, local: make([]struct{ live, clean int64 }, len(h.Logs.Segs)), far: map[uint64]int64{}}
}

// AddLocal counts a local record of n bytes.
func (t *Tally) AddLocal(addr uint64, n int, clean bool) {
	s := &t.local[int(addr*Unit)/t.h.Logs.SegSize]
	s.live += int64(n)
	if clean {
		s.clean += int64(n)
	}
}

// AddFar counts a far record of n bytes.
func (t *Tally) AddFar(addr uint64, n int) { t.far[addr/t.h.Far.Units] += int64(sizeclass.Round(n)) }

// Audit returns an error that says where the heap's counts do not agree with the tally. Nothing may be under way.
func (h *Heap) Audit(t *Tally) error {
	for i := range t.local {
		s := &h.Logs.Segs[i]
		if live, clean := s.Live.Load(), s.Clean.Load(); live != t.local[i].live || clean != t.local[i].clean {
			return fmt.Errorf("log segment %d: %d bytes live, %d of them clean, but counted are %d, %d",
				i, t.local[i].live, t.local[i].clean, live, clean)
		}
	}
	var errs []error
	h.Far.All(func(s *FarSegment) {
		if live := s.Live.Load(); live != t.far[s.ID] && !t.Unsure && !(s.Restored && live > t.far[s.ID]) || s.Pinned() != 0 {
			errs = append(errs, fmt.Errorf("%s: %d bytes live, counted are %d, with %d reads under way",
				s.Seg.Name(), t.far[s.ID], live, s.Pinned()))
		}
		delete(t.far, s.ID)
	})
	if len(t.far) > 0 {
		errs = append(errs, fmt.Errorf("the index refers to far segments that are none: %v", t.far))
	}
	l := &h.Logs
	index := int64(0)
	for u, n := range t.Index {
		if index += n; n != l.of[u].Load() {
			errs = append(errs, fmt.Errorf("%d bytes of %v, but counted are %d", n, Line(u), l.of[u].Load()))
		}
	}
	// Buffers that may be made, but are not made yet, wait until the logs have given back their memory.
	window := l.window - int64(h.Far.may-h.Far.made)*stagingCost(h.Far.size)
	if resident := len(l.Segs) - len(l.absent); index != l.index || resident != l.resident ||
		l.index+window+int64(l.resident)*int64(l.SegSize) > l.budget {
		errs = append(errs, fmt.Errorf("%d bytes of index, %d of wider staging and %d segments of logs in a budget of %d, but counted are %d, %d, %d",
			index, window, resident, l.budget, l.index, l.window, l.resident))
	}
	if h.flights.listed() {
		errs = append(errs, errors.New("a fetch is still listed"))
	}
	if n := h.Bufs.InUse(); n != 0 {
		errs = append(errs, fmt.Errorf("%d bytes of buffers have not come back", n))
	}
	return errors.Join(errs...)
}
