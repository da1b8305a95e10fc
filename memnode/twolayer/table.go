package twolayer

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"polder/internal/arena"
)

// Table is the metadata in the memory node's own memory. One goroutine at a time may call its methods, while clients
// change the same words through the device.
type Table struct {
	Layout
	mem []byte
	// Swap, if it is set, compares and swaps the word at an offset in place of the processor. It is for devices whose
	// atomics are not atomic with the processor's and could undo what the processor writes. It is set once, before
	// there are clients.
	Swap func(at, old, new uint64) bool
}

// NewTable writes the metadata of memory that nobody has into mem, which has at least l.Bytes() zero bytes and is
// aligned to 8.
func NewTable(mem []byte, l Layout) (*Table, error) {
	if uint64(len(mem)) < l.Bytes() {
		return nil, fmt.Errorf("%d bytes for the metadata, want %d", len(mem), l.Bytes())
	}
	t := &Table{Layout: l, mem: mem}
	for s := range l.Sections() {
		var h Section
		for i := range SectionSpans {
			span := s*SectionSpans + uint32(i)
			switch have := t.has(span); have {
			case AllFree:
				t.word(l.SpanAt(span)).Store(uint64(Span(AllFree)))
			case 0:
				h = h.With(i, Full) // closed: there is no memory for any of its chunks
			default:
				// It can never be free as a whole, so it is never closed.
				h = h.With(i, InUse)
				t.word(l.SpanAt(span)).Store(uint64(MakeSpan(have, 0, Log{InUse: true})))
			}
		}
		t.word(l.SectionAt(s)).Store(uint64(h))
	}
	return t, nil
}

// has is the bitmap of a span's chunks that there is memory for.
func (l Layout) has(span uint32) uint32 {
	first := uint64(span) * SpanChunks
	switch n := uint64(l.Chunks) - min(uint64(l.Chunks), first); {
	case n >= SpanChunks:
		return AllFree
	default:
		return uint32(uint64(1)<<n - 1)
	}
}

// cas compares and swaps a word.
func (t *Table) cas(at, old, new uint64) bool {
	if t.Swap != nil {
		return t.Swap(at, old, new)
	}
	return t.word(at).CompareAndSwap(old, new)
}

func (t *Table) word(at uint64) *atomic.Uint64 { return arena.Word64(t.mem[at : at+8]) }

// Section loads a section's header.
func (t *Table) Section(i uint32) Section { return Section(t.word(t.SectionAt(i)).Load()) }

// Span loads a span's header.
func (t *Table) Span(i uint32) Span { return Span(t.word(t.SpanAt(i)).Load()) }

// Entry loads a chunk's entry of the full log.
func (t *Table) Entry(chunk uint32) Entry { return Entry(t.word(t.EntryAt(chunk)).Load()) }

// Cap loads the capability, in a layer, that a chunk belongs to.
func (t *Table) Cap(layer int, chunk uint32) Cap { return Cap(t.word(t.CapAt(layer, chunk)).Load()) }

// SetCap stores a capability.
func (t *Table) SetCap(layer int, chunk uint32, c Cap) {
	at := t.CapAt(layer, chunk)
	if t.Swap == nil {
		t.word(at).Store(uint64(c))
		return
	}
	for !t.cas(at, t.word(at).Load(), uint64(c)) {
	}
}

// SwapCap replaces a capability if it is old.
func (t *Table) SwapCap(layer int, chunk uint32, old, c Cap) bool {
	return t.cas(t.CapAt(layer, chunk), uint64(old), uint64(c))
}

// Frees is how many frees clients have counted in a section.
func (t *Table) Frees(section uint32) uint64 { return t.word(t.FreesAt(section)).Load() }

// SetWorker publishes the state of the node's worker: odd if it sleeps. Nobody else changes that word.
func (t *Table) SetWorker(state uint64) { t.word(t.WorkerAt()).Store(state) }

// Worker is the state that the node's worker has published.
func (t *Table) Worker() uint64 { return t.word(t.WorkerAt()).Load() }

// Beats is how often a user has shown that it is alive.
func (t *Table) Beats(user uint16) uint64 { return t.word(t.BeatAt(user)).Load() }

// Allocated is how many chunks are allocated.
func (t *Table) Allocated() (n int) {
	for s := range t.Sections() {
		h := t.Section(s)
		for i := range SectionSpans {
			span := s*SectionSpans + uint32(i)
			have := t.has(span)
			if v := t.Span(span); v.Open() {
				n += bits.OnesCount32(have &^ v.Free())
			} else if h.State(i) == Full {
				n += bits.OnesCount32(have)
			}
		}
	}
	return n
}

// header stands for a span's or a section's header, in code that is the same for both.
type header struct {
	at      uint64
	section bool
	first   uint32 // chunk
}

func (t *Table) spanHeader(i uint32) header {
	return header{at: t.SpanAt(i), first: i * SpanChunks}
}

func (t *Table) sectionHeader(i uint32) header {
	return header{at: t.SectionAt(i), section: true, first: i * SectionChunks}
}

// EntryOf is the chunk whose entry the log l of a header is flushed to; first is the header's first chunk.
func (l Log) EntryOf(first uint32, section bool) uint32 {
	if section {
		return first + uint32(l.Offset)*SpanChunks
	}
	return first + uint32(l.Offset)
}

// flush writes a header's log to the full log, and returns the header whose log it has flushed.
func (t *Table) flush(h header) uint64 {
	w := t.word(h.at)
	for {
		v := w.Load()
		l := unpackLog(v)
		if !l.ToFlush(h.section) {
			return v
		}
		at := t.EntryAt(l.EntryOf(h.first, h.section))
		old := Entry(t.word(at).Load())
		if w.Load() != v {
			continue
		}
		if old.Is(l, h.section) || t.cas(at, uint64(old), uint64(old.Follow(l, h.section))) {
			return v
		}
	}
}

// Extent is memory that a user has got by one allocation, or one section of a run of sections.
type Extent struct {
	First uint32 // chunk
	Class int
	Run   bool
}

// Owned calls f for every extent of user, ordered by address. user must not be allocating or freeing meanwhile.
func (t *Table) Owned(user uint16, f func(Extent)) {
	for i := range t.Spans() {
		if unpackLog(t.word(t.SpanAt(i)).Load()).User == user {
			t.flush(t.spanHeader(i))
		}
	}
	for i := range t.Sections() {
		if unpackLog(t.word(t.SectionAt(i)).Load()).User == user {
			t.flush(t.sectionHeader(i))
		}
	}
	for c := range t.Chunks {
		if u, k, run, ok := t.Entry(c).Owner(); ok && u == user {
			f(Extent{First: c, Class: k, Run: run})
		}
	}
}

// Caps calls f for the first chunk of every capability of a layer that overlaps the 1<<k chunks from first on.
func (l Layout) Caps(layer int, first uint32, k int, f func(chunk uint32)) {
	grain := l.Grain(layer)
	if grain == 0 {
		return
	}
	for c := first &^ (grain - 1); c < first+1<<k; c += grain {
		f(c)
	}
}

// Release frees an extent of user, who is gone: it swaps the extent's keys, unless they are swapped already, and
// frees the extent in its header. It calls step before each change.
func (t *Table) Release(user uint16, x Extent, step func(string)) {
	layer := LayerOf(x.Class)
	t.Caps(layer, x.First, x.Class, func(c uint32) {
		for old := t.Cap(layer, c); old.Backup() != 0; old = t.Cap(layer, c) {
			step("recover.swap")
			if t.SwapCap(layer, c, old, old.Swapped()) {
				break
			}
		}
	})
	t.countFree(x.First / SectionChunks)
	if x.Class < SpanClass {
		t.releaseChunks(user, x, step)
		return
	}
	h := t.sectionHeader(x.First / SectionChunks)
	i := int(x.First % SectionChunks / SpanChunks)
	for {
		v := Section(t.flush(h))
		if !v.Has(i, x.Class) {
			break // an earlier recovery has freed it
		}
		step("recover.free")
		if t.cas(h.at, uint64(v), uint64(v.Freed(i, x.Class, user, 0))) {
			break
		}
	}
	step("recover.flush")
	t.flush(h)
}

// countFree counts a free in a section.
func (t *Table) countFree(section uint32) {
	at := t.FreesAt(section)
	for n := t.Frees(section); !t.cas(at, n, n+1); n = t.Frees(section) {
	}
}

func (t *Table) releaseChunks(user uint16, x Extent, step func(string)) {
	span := x.First / SpanChunks
	h, i := t.spanHeader(span), int(x.First%SpanChunks)
	for {
		v := Span(t.flush(h))
		if !v.Open() || !v.Has(i, x.Class) {
			break
		}
		step("recover.free")
		if t.cas(h.at, uint64(v), uint64(v.Freed(i, x.Class, user, 0))) {
			break
		}
	}
	step("recover.flush")
	t.flush(h)
	// The section may still say that the span has no free chunk.
	at, k := t.SectionAt(span/SectionSpans), int(span%SectionSpans)
	for {
		s := Section(t.word(at).Load())
		if v := t.Span(span); s.State(k) != Full || !v.Open() || v.Free() == 0 {
			return
		}
		step("recover.hint")
		if t.cas(at, uint64(s), uint64(s.With(k, InUse))) {
			return
		}
	}
}

// CloseSpan closes a span that is open and without allocations, or repairs a span that is closed though its section
// says otherwise; it reports whether it did so. It does nothing while one of the span's chunks has a swapped
// capability.
func (t *Table) CloseSpan(span uint32, step func(string)) bool {
	section, j := t.sectionHeader(span/SectionSpans), int(span%SectionSpans)
	s := Section(t.flush(section))
	v := Span(t.flush(t.spanHeader(span)))
	state := s.State(j)
	if v.Free() != AllFree || state == Empty || !v.Open() && state == Full {
		return false
	}
	swapped := false
	if t.Grain(ChunkLayer) != 0 {
		t.Caps(ChunkLayer, span*SpanChunks, SpanClass, func(c uint32) {
			swapped = swapped || t.Cap(ChunkLayer, c).IsSwapped()
		})
	}
	next := v.Closed()
	if !v.Open() {
		next = v.Reclosed()
	}
	if swapped {
		return false
	}
	if state == Full {
		// A closed span whose section says Full would be lost: see the package comment.
		step("rebind.hint")
		hinted := s.With(j, InUse)
		if !t.cas(section.at, uint64(s), uint64(hinted)) {
			return false
		}
		s = hinted
	}
	step("rebind.close-span")
	if !t.cas(t.SpanAt(span), uint64(v), uint64(next)) {
		return false
	}
	step("rebind.close-section")
	return t.cas(section.at, uint64(s), uint64(s.Closed(j, 0)))
}

// CloseIdle calls CloseSpan for every span of a section that is all free, and returns how many it closed or repaired.
func (t *Table) CloseIdle(section uint32, step func(string)) (n int) {
	for j := range uint32(SectionSpans) {
		span := section*SectionSpans + j
		if v := t.Span(span); v.Free() == AllFree && t.CloseSpan(span, step) {
			n++
		}
	}
	return n
}
