package entry

import "polder/far/heap"

// MaxHeadKey is the longest key of an entry that Heads remember: their memory is not in the budget.
const MaxHeadKey = 256

// MostHeads is how many far entries Heads remember.
const MostHeads = 16

// Heads are headers and keys of the far entries that were read last. They are not safe for concurrent use.
type Heads struct {
	heads []Head
	next  int // the one to be forgotten next
}

// Head is the header and key of a far entry, and its Large if it has one. It holds good for as long as the address
// means the same segment: far bytes are written once.
type Head struct {
	Addr uint64
	Seg  *heap.FarSegment
	E    Local
}

// Is reports whether h is of a far address, to which the index refers, in a segment.
func (h *Head) Is(addr uint64, seg *heap.FarSegment) bool { return h.Addr == addr && h.Seg == seg }

// Keep remembers e, which was read from a far address, in a segment.
func (h *Heads) Keep(addr uint64, seg *heap.FarSegment, e Local) {
	if len(h.heads) < MostHeads {
		h.heads = append(h.heads, Head{})
	}
	d := &h.heads[h.next%len(h.heads)]
	h.next = (h.next + 1) % MostHeads
	d.Addr, d.Seg = addr, seg
	d.E = AppendHead(d.E[:0], e)
}

// Of returns what is remembered of a far address, to which the index refers, in a segment: nil if it is nothing. A nil Heads has none.
func (h *Heads) Of(addr uint64, seg *heap.FarSegment) Local {
	if h == nil {
		return nil
	}
	for i := range h.heads {
		if d := &h.heads[i]; d.Is(addr, seg) {
			return d.E
		}
	}
	return nil
}
