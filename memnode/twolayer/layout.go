package twolayer

import "fmt"

// Numbers of the granularities.
const (
	SpanChunks    = 32
	SectionSpans  = 16
	SectionChunks = SpanChunks * SectionSpans

	SpanClass    = 5 // of a span
	SectionClass = 9 // of a section
	Classes      = 19

	// DefaultUnit is the size of a chunk.
	DefaultUnit = 4096
)

// Layout says how much memory is managed, and where in the metadata region its words lie, as offsets in bytes.
// NewLayout makes one.
type Layout struct {
	Unit   uint64 // bytes of a chunk, a power of two
	Chunks uint32
	Least  int // the smallest class that may be allocated
}

// NewLayout returns the layout of bytes bytes of memory. No allocation is smaller than least, a power of two. Chunks
// have DefaultUnit bytes, or least if that is less. A remainder that does not fill a chunk is left out.
func NewLayout(bytes, least uint64) (Layout, error) {
	if least == 0 || least&(least-1) != 0 {
		return Layout{}, fmt.Errorf("the least allocation is %d bytes, want a power of two", least)
	}
	l := Layout{Unit: min(DefaultUnit, least)}
	for l.Size(l.Least) < least {
		l.Least++
	}
	n := bytes / l.Unit
	switch {
	case l.Least >= Classes:
		return Layout{}, fmt.Errorf("the least allocation is %d bytes, want at most %d", least, l.Size(Classes-1))
	case n < 1<<l.Least || n > 1<<31:
		return Layout{}, fmt.Errorf("%d bytes to manage, want %d to %d", bytes, least, l.Unit<<31)
	}
	l.Chunks = uint32(n)
	return l, nil
}

// Size is class k in bytes.
func (l Layout) Size(k int) uint64 { return l.Unit << k }

// ClassOf is the smallest class that may be allocated and has at least n bytes.
func (l Layout) ClassOf(n uint64) (k int, ok bool) {
	for k = l.Least; k < Classes; k++ {
		if l.Size(k) >= n {
			return k, true
		}
	}
	return 0, false
}

// Sections is how many section headers there are.
func (l Layout) Sections() uint32 { return (l.Chunks + SectionChunks - 1) / SectionChunks }

// Spans is how many span headers there are: all that the sections have room for.
func (l Layout) Spans() uint32 { return l.Sections() * SectionSpans }

// SectionAt is the offset of a section's header. The headers of neighbouring sections are next to each other; this
// holds for all the words below, too.
func (l Layout) SectionAt(i uint32) uint64 { return 8 * uint64(i) }

// FreesAt is the offset of the word that counts the frees in a section, which tells the memory node where to look.
func (l Layout) FreesAt(i uint32) uint64 { return 8 * (uint64(l.Sections()) + uint64(i)) }

// SpanAt is the offset of a span's header.
func (l Layout) SpanAt(i uint32) uint64 { return 8 * (2*uint64(l.Sections()) + uint64(i)) }

// EntryAt is the offset of a chunk's entry in the full log.
func (l Layout) EntryAt(chunk uint32) uint64 { return l.SpanAt(l.Spans()) + 8*uint64(chunk) }

// The layers of capabilities.
const (
	ChunkLayer = iota
	SpanLayer
	SectionLayer
	Layers
)

// LayerOf is the layer whose keys open allocations of class k.
func LayerOf(k int) int {
	switch {
	case k < SpanClass:
		return ChunkLayer
	case k < SectionClass:
		return SpanLayer
	}
	return SectionLayer
}

// layerChunks is how many chunks an entry of a layer is for.
func layerChunks(layer int) uint32 { return [...]uint32{1, SpanChunks, SectionChunks}[layer] }

// CapAt is the offset of the capability, in a layer, that a chunk belongs to.
func (l Layout) CapAt(layer int, chunk uint32) uint64 {
	all := uint64(l.Sections()) * SectionChunks
	at := l.EntryAt(0) + 8*all
	if layer > ChunkLayer {
		at += 8 * all
	}
	if layer > SpanLayer {
		at += 8 * all / SpanChunks
	}
	return at + 8*uint64(chunk/layerChunks(layer))
}

// BeatAt is the offset of the word that a user counts up to show that it is alive.
func (l Layout) BeatAt(user uint16) uint64 {
	return l.CapAt(SectionLayer, l.Sections()*SectionChunks) + 8*uint64(user)
}

// WorkerAt is the offset of the word that says whether the node's worker sleeps. It lies where the heartbeat of user
// 0 would be, since there is no user 0.
func (l Layout) WorkerAt() uint64 { return l.BeatAt(0) }

// Bytes is the size of the metadata region.
func (l Layout) Bytes() uint64 { return l.BeatAt(MaxUser + 1) }

// Grain is how many chunks a key of a layer opens. It is more than layerChunks if the smallest allocation is larger
// than that; then only the first of the entries of so many chunks is used. It is 0 for a layer that no allocation
// uses.
func (l Layout) Grain(layer int) uint32 {
	if l.Least >= SpanClass && layer == ChunkLayer || l.Least >= SectionClass && layer == SpanLayer {
		return 0
	}
	return max(layerChunks(layer), 1<<l.Least)
}

// KeysOf is how many keys open an allocation of class k.
func (l Layout) KeysOf(k int) int { return 1 << k / int(l.Grain(LayerOf(k))) }

// Whole reports whether there is memory for all of 1<<k chunks from first on.
func (l Layout) Whole(first uint32, k int) bool {
	return uint64(first)+1<<k <= uint64(l.Chunks)
}
