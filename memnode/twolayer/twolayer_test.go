package twolayer

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"
)

// Logs of 30 bits are what they were after packing and unpacking.
func TestLogPacksExactly(t *testing.T) {
	seen := uint64(0)
	for v := uint64(0); v < 1<<30; v += 1021 {
		l := unpackLog(v << logShift)
		if l.pack() != v<<logShift {
			t.Fatalf("%+v packs as %#x, want %#x", l, l.pack()>>logShift, v)
		}
		seen |= l.pack()
	}
	if seen != (1<<30-1)<<logShift {
		t.Fatalf("logs fill the bits %#x", seen)
	}
}

func genLog(t *rapid.T) Log {
	return Log{
		InUse: rapid.Bool().Draw(t, "in use"), Time: rapid.Uint8Max(127).Draw(t, "time"),
		Offset: rapid.Uint8Max(31).Draw(t, "offset"), Size: rapid.Uint8Max(7).Draw(t, "size"),
		User: rapid.Uint16Max(MaxUser).Draw(t, "user"),
	}
}

func TestHeadersPackExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, v, level := genLog(t), rapid.Uint32().Draw(t, "map"), rapid.Uint8Max(3).Draw(t, "level")
		if h := MakeSpan(v, level, l); h.Free() != v || h.Level() != level || h.Log() != l || h.Open() != l.InUse {
			t.Fatalf("span %#x: %#x %d %+v", uint64(h), h.Free(), h.Level(), h.Log())
		}
		h := MakeSection(v, level, l)
		if h.States() != v || h.Level() != level || h.Log() != l {
			t.Fatalf("section %#x: %#x %d %+v", uint64(h), h.States(), h.Level(), h.Log())
		}
		for i := range SectionSpans {
			for s := range State(4) {
				w := h.With(i, s)
				if w.State(i) != s || w.Log() != l || (w^h)&^(3<<(2*i)) != 0 {
					t.Fatalf("%#x with span %d %d is %#x", uint64(h), i, s, uint64(w))
				}
			}
		}
	})
}

// Fit finds a place exactly where there is one, and splits nothing larger than it
// must.
func TestSpanFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		free := rapid.Uint32().Draw(t, "free") | rapid.Uint32().Draw(t, "more")
		avoid := rapid.SampledFrom([]uint32{0, rapid.Uint32().Draw(t, "avoid")}).Draw(t, "avoided")
		k := rapid.IntRange(0, SpanClass-1).Draw(t, "class")
		usable := free &^ avoid
		wholeOf := func(i int) int { // class of the largest free block that has block i
			w := k
			for w < 5 && usable&(blockMask(w+1)<<(i&^(1<<(w+1)-1))) == blockMask(w+1)<<(i&^(1<<(w+1)-1)) {
				w++
			}
			return w
		}
		best := 99
		for i := 0; i < SpanChunks; i += 1 << k {
			if m := blockMask(k) << i; usable&m == m {
				best = min(best, wholeOf(i))
			}
		}
		got := MakeSpan(free, 0, Log{}).Fit(k, avoid)
		switch {
		case best == 99 && got != -1:
			t.Fatalf("class %d in %#x: got %d, want none", k, usable, got)
		case best < 99 && (got < 0 || got%(1<<k) != 0 || usable&(blockMask(k)<<got) != blockMask(k)<<got):
			t.Fatalf("class %d in %#x: got %d, which is not free", k, usable, got)
		case best < 99 && wholeOf(got) != best:
			t.Fatalf("class %d in %#x: got %d in a block of class %d, want one of class %d", k, usable, got, wholeOf(got), best)
		}
	})
}

func TestSectionFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Section(rapid.Uint32().Draw(t, "states") & rapid.Uint32().Draw(t, "fewer"))
		avoid := rapid.Uint16().Draw(t, "avoid") & rapid.Uint16().Draw(t, "less")
		n := 1 << rapid.IntRange(0, 4).Draw(t, "n")
		fits := func(i int) bool {
			for j := i; j < i+n; j++ {
				if h.State(j) != Empty || avoid>>j&1 == 1 {
					return false
				}
			}
			return true
		}
		some := false
		for i := 0; i < SectionSpans; i += n {
			some = some || fits(i)
		}
		if got := h.Fit(n, avoid); got >= 0 != some || got >= 0 && (got%n != 0 || !fits(got)) {
			t.Fatalf("%d spans in %#x: got %d, want some: %v", n, h.States(), got, some)
		}
	})
}

// An allocation takes exactly its bits, and a free gives exactly them back, under a
// timestamp that has advanced by one.
func TestAllocateThenFree(t *testing.T) {
	for k := range SpanClass {
		for at := 0; at < SpanChunks; at += 1 << k {
			for time := range uint8(128) {
				h := MakeSpan(AllFree, 0, Log{InUse: true, Time: time, User: 9})
				a := h.Allocated(at, k, 77, 2)
				if bits.OnesCount32(a.Free()) != SpanChunks-1<<k || !a.Has(at, k) || h.Has(at, k) {
					t.Fatalf("class %d at %d: the map is %#x", k, at, a.Free())
				}
				if l := a.Log(); !l.Allocated() || !l.InUse || l.User != 77 || int(l.Offset) != at || int(l.Size) != k {
					t.Fatalf("class %d at %d: the log is %+v", k, at, l)
				}
				f := a.Freed(at, k, 78, 0)
				if f.Free() != AllFree || f.Log().Allocated() || f.Log().Time != (a.Log().Time+1)&127 {
					t.Fatalf("freed: %#x, %+v", f.Free(), f.Log())
				}
				if time&1 == 1 != (a.Log().Time == time) {
					t.Fatalf("allocated at time %d after %d", a.Log().Time, time)
				}
			}
		}
	}
	for k := SpanClass; k < Classes; k++ {
		for at := 0; at < SectionSpans; at += SpansOf(k) {
			a := Section(0).Allocated(at, k, 5, 0)
			if a.Count(Full) != SpansOf(k) || a.Count(Empty) != SectionSpans-SpansOf(k) || !a.Has(at, k) {
				t.Fatalf("class %d at %d: the states are %#x", k, at, a.States())
			}
			if f := a.Freed(at, k, 5, 0); !f.Whole() || f == 0 {
				t.Fatalf("class %d at %d freed: %#x", k, at, uint64(f))
			}
		}
	}
}

// Timestamps alternate with the operations, whatever their order, and wrap around.
func TestTimestamps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ops := rapid.SliceOfN(rapid.Bool(), 1, 600).Draw(t, "ops")
		time, turns, last := uint8(0), 0, false
		for _, allocate := range ops {
			time = NextTime(time, allocate)
			if allocate != last {
				turns++
				last = allocate
			}
			if int(time) != turns%128 || time&1 == 1 != allocate {
				t.Fatalf("after %d turns, the last an allocation: %v, the time is %d", turns, allocate, time)
			}
		}
	})
}

func TestLevels(t *testing.T) {
	for failed, want := range []uint8{0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2} {
		if got := Level(failed); got != want {
			t.Errorf("%d failures: level %d, want %d", failed, got, want)
		}
	}
	s := Section(0).With(3, InUse)
	some, none := MakeSpan(1, 0, Log{InUse: true}), MakeSpan(0, 0, Log{InUse: true})
	for _, c := range []struct {
		from   State
		h      Span
		failed int
		want   State
	}{
		{InUse, some, 0, InUse}, {InUse, some, 11, Contended}, {Contended, some, 5, Contended},
		{Contended, some, 2, InUse}, {Contended, none, 20, Full}, {Full, some, 0, InUse}, {InUse, some, 10, InUse},
	} {
		if got := s.With(3, c.from).Mark(3, c.h, c.failed); got != c.want {
			t.Errorf("from %d after %d failures, free %#x: got %d, want %d", c.from, c.failed, c.h.Free(), got, c.want)
		}
	}
}

// An entry tells whose the memory is, whatever header the log comes from.
func TestEntries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, e := genLog(t), Entry(rapid.Uint64().Draw(t, "old"))
		section := rapid.Bool().Draw(t, "section")
		l.Size = min(l.Size, SizeRun)
		if !section {
			l.Size = min(l.Size, SpanClass-1)
		}
		f := e.Follow(l, section)
		if !f.Is(l, section) || f.Is(l, !section) || uint32(f>>32) != uint32(e>>32)+1 || f == e {
			t.Fatalf("%#x after %#x is not %+v", uint64(f), uint64(e), l)
		}
		user, k, run, ok := f.Owner()
		if ok != l.Allocated() {
			t.Fatalf("%+v: allocated: %v", l, ok)
		}
		want := int(l.Size)
		if section {
			want = min(want+SpanClass, SectionClass)
		}
		if ok && (user != l.User || k != want || run != (section && l.Size == SizeRun)) {
			t.Fatalf("%+v of a section: %v: user %d, class %d, run %v", l, section, user, k, run)
		}
	})
}

func TestCaps(t *testing.T) {
	c := MakeCap(7, 9)
	if c.Main() != 7 || c.Backup() != 9 || c.IsSwapped() {
		t.Fatalf("%#x: %v, %v", uint64(c), c.Main(), c.Backup())
	}
	if s := c.Swapped(); s.Main() != 9 || s.Backup() != 0 || !s.IsSwapped() {
		t.Fatalf("%#x swapped is %#x", uint64(c), uint64(s))
	}
	if Cap(0).IsSwapped() {
		t.Fatal("an unused entry waits for the node")
	}
}

// The tables follow each other without gaps, and take 16 bytes a chunk and a little.
func TestLayout(t *testing.T) {
	for _, c := range []struct{ bytes, least uint64 }{
		{1 << 30, 4096}, {3 * 4096, 4096}, {1536, 512}, {5 << 20, 1 << 20}, {1 << 34, 1 << 30}, {100 << 16, 1 << 16},
	} {
		l, err := NewLayout(c.bytes, c.least)
		if err != nil {
			t.Fatal(err)
		}
		if l.Size(l.Least) != c.least || uint64(l.Chunks)*l.Unit != c.bytes {
			t.Errorf("%d bytes by %d: %+v", c.bytes, c.least, l)
		}
		all := l.Sections() * SectionChunks
		for name, gap := range map[string]bool{
			"frees after sections": l.FreesAt(0) != l.SectionAt(l.Sections()),
			"spans after frees":    l.SpanAt(0) != l.FreesAt(l.Sections()),
			"log after spans":      l.EntryAt(0) != l.SpanAt(l.Spans()),
			"chunks' keys":         l.CapAt(ChunkLayer, 0) != l.EntryAt(all),
			"spans' keys":          l.CapAt(SpanLayer, 0) != l.CapAt(ChunkLayer, all),
			"sections' keys":       l.CapAt(SectionLayer, 0) != l.CapAt(SpanLayer, all),
		} {
			if gap {
				t.Errorf("%d bytes by %d: %s: there is a gap", c.bytes, c.least, name)
			}
		}
		for k := l.Least; k < Classes; k++ {
			if n := l.KeysOf(k); n < 1 || uint64(n)*uint64(l.Grain(LayerOf(k))) != 1<<k {
				t.Errorf("least %d: class %d has %d keys of %d chunks", l.Least, k, n, l.Grain(LayerOf(k)))
			}
		}
	}
	l, _ := NewLayout(1<<30, 4096)
	if perGiB := float64(l.Bytes()) / (1 << 30); perGiB > 0.0042 {
		t.Errorf("the metadata is %.4f of the memory", perGiB)
	}
	for _, c := range []struct{ bytes, least uint64 }{{1 << 20, 0}, {1 << 20, 5000}, {4096, 8192}, {1 << 40, 1 << 31}, {1 << 50, 4096}} {
		if _, err := NewLayout(c.bytes, c.least); err == nil {
			t.Errorf("%d bytes by %d: no error", c.bytes, c.least)
		}
	}
}

// A new table is all free, and what there is no memory for is nobody's.
func TestNewTable(t *testing.T) {
	for _, bytes := range []uint64{4096, 3 * 4096, 31 * 4096, 1 << 17, 1<<17 + 4096, 2 << 20, 5<<20 + 3<<12} {
		table := newTable(t, bytes, 4096)
		n, err := table.Count()
		if err != nil {
			t.Fatal(err)
		}
		if n.Extents != 0 || n.Hints != 0 || n.Unrepaired != 0 || table.Allocated() != 0 {
			t.Errorf("%d bytes: %+v, %d allocated", bytes, n, table.Allocated())
		}
	}
}

func newTable(t testing.TB, bytes, least uint64) *Table {
	t.Helper()
	l, err := NewLayout(bytes, least)
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(make([]byte, l.Bytes()), l)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// What a dead user had is found although its last operation was not flushed, and
// given back, once, however often the recovery begins again.
func TestRelease(t *testing.T) {
	table := newTable(t, 4<<20, 4096)
	const user = 42
	store := func(at uint64, v uint64) { table.word(at).Store(v) }
	// A span opened, with two allocations of which the second is not flushed.
	store(table.SectionAt(0), uint64(table.Section(0).Opened(0, user)))
	h := table.Span(0).Allocated(0, 0, user, 0)
	store(table.SpanAt(0), uint64(h))
	table.flush(table.spanHeader(0))
	store(table.SpanAt(0), uint64(h.Allocated(4, 2, user, 0)))
	// A span of another section as a whole, not flushed.
	store(table.SectionAt(1), uint64(table.Section(1).Allocated(3, SpanClass, user, 0)))
	var got []Extent
	table.Owned(user, func(x Extent) { got = append(got, x) })
	want := []Extent{{First: 0, Class: 0}, {First: 4, Class: 2}, {First: SectionChunks + 3*SpanChunks, Class: SpanClass}}
	if len(got) != len(want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	}
	if n := table.Allocated(); n != 1+4+SpanChunks {
		t.Fatalf("%d chunks are allocated", n)
	}
	for range 2 {
		for _, x := range got {
			table.Release(user, x, func(string) {})
		}
		n, err := table.Count()
		if err != nil {
			t.Fatal(err)
		}
		if n.Extents != 0 || table.Allocated() != 0 {
			t.Fatalf("%+v", n)
		}
	}
}

func TestCandidates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Section(rapid.Uint64().Draw(t, "header"))
		for state := Empty; state <= Full; state++ {
			var want uint16
			for i := range SectionSpans {
				if s.State(i) == state {
					want |= 1 << i
				}
			}
			if got := s.Candidates(state); got != want {
				t.Fatalf("%#x, state %d: got %#x, want %#x", uint64(s), state, got, want)
			}
		}
	})
}
