package entry

import "polder/far/heap"

// MaxHeadKey is the longest key of an entry that Heads should remember, because the memory of Heads is not in the
// budget.
const MaxHeadKey = 256

// MostHeads is the most far entries that Heads remember.
const MostHeads = 16

// Heads are the headers and keys of the far entries that were read last. They are not safe for concurrent use.
type Heads struct {
	heads []Head
	next  int // where Keep puts the next head; once all are used, the oldest is there
}

// Head is the header and key of a far entry, and its Large if it has one. It is right for as long as the address
// means the same segment: far bytes are written only once.
type Head struct {
	Addr uint64
	Seg  *heap.FarSegment
	E    Local
}

// Is reports whether h is the head of the entry at addr, to which the index refers, in the segment seg.
func (h *Head) Is(addr uint64, seg *heap.FarSegment) bool { return h.Addr == addr && h.Seg == seg }

// Keep remembers the head of e, which was read from the far address addr in the segment seg.
func (h *Heads) Keep(addr uint64, seg *heap.FarSegment, e Local) {
	if len(h.heads) < MostHeads {
		h.heads = append(h.heads, Head{})
	}
	d := &h.heads[h.next%len(h.heads)]
	h.next = (h.next + 1) % MostHeads
	d.Addr, d.Seg = addr, seg
	d.E = AppendHead(d.E[:0], e)
}

// Of returns the remembered head of the entry at the far address addr, to which the index refers, in the segment seg,
// or nil if none is remembered. A nil Heads remembers nothing.
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
