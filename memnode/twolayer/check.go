package twolayer

import "fmt"

// Census is what a table holds.
type Census struct {
	Owner      []uint16 // by chunk; 0 if it is free
	Extents    int      // how many extents are allocated
	Unrepaired int      // spans that are closed though their section does not say so
	Hints      int      // open spans that the section calls full although they are not, or the reverse
	Swapped    int      // capabilities that wait for the node
}

// Count takes a table's census while nothing changes the table, and flushes every log. The error describes an
// impossible state: memory that two users have, or that is neither free nor anybody's.
func (t *Table) Count() (*Census, error) {
	n := &Census{Owner: make([]uint16, t.Chunks)}
	for i := range t.Spans() {
		t.flush(t.spanHeader(i))
	}
	for i := range t.Sections() {
		t.flush(t.sectionHeader(i))
	}
	for c := range t.Chunks {
		user, k, _, ok := t.Entry(c).Owner()
		if !ok {
			continue
		}
		n.Extents++
		if c&(1<<k-1) != 0 || !t.Whole(c, k) {
			return nil, fmt.Errorf("user %d has class %d at chunk %d, where it cannot lie", user, k, c)
		}
		for i := c; i < c+1<<k; i++ {
			if n.Owner[i] != 0 {
				return nil, fmt.Errorf("user %d and user %d both have chunk %d", n.Owner[i], user, i)
			}
			n.Owner[i] = user
		}
		section, span := c/SectionChunks, c/SpanChunks
		if k < SpanClass {
			if h := t.Span(span); !h.Open() || !h.Has(int(c%SpanChunks), k) {
				return nil, fmt.Errorf("user %d has class %d at chunk %d, but the span's header is %#x", user, k, c, h)
			}
		} else if h := t.Section(section); !h.Has(int(span%SectionSpans), k) {
			return nil, fmt.Errorf("user %d has class %d at chunk %d, but the section's header is %#x", user, k, c, h)
		}
	}
	for span := range t.Spans() {
		if err := t.countSpan(n, span); err != nil {
			return nil, err
		}
	}
	for layer := range Layers {
		grain := t.Grain(layer)
		for c := uint32(0); grain > 0 && c < t.Chunks; c += grain {
			if t.Cap(layer, c).IsSwapped() {
				n.Swapped++
			}
		}
	}
	return n, nil
}

// countSpan checks a span's header against its section's header and against the owners.
func (t *Table) countSpan(n *Census, span uint32) error {
	h, state := t.Span(span), t.Section(span/SectionSpans).State(int(span%SectionSpans))
	have := t.has(span)
	switch {
	case have == 0:
		return nil
	case h.Open() && state == Empty:
		return fmt.Errorf("span %d is open, but the section's header says that it is empty", span)
	case h.Open() && (state == Full) != (h.Free() == 0):
		n.Hints++
	case !h.Open() && h.Free() != AllFree:
		return fmt.Errorf("span %d is closed with the header %#x", span, uint64(h))
	case !h.Open() && (state == InUse || state == Contended):
		n.Unrepaired++
	}
	for i := range uint32(SpanChunks) {
		c := span*SpanChunks + i
		if have>>i&1 == 0 {
			continue
		}
		free := h.Free()>>i&1 == 1
		if !h.Open() {
			free = state != Full
		}
		if owned := n.Owner[c] != 0; free == owned {
			return fmt.Errorf("chunk %d is free: %v, and its owner is %d", c, free, n.Owner[c])
		}
	}
	return nil
}
