package finemem

import (
	"context"

	"polder/memnode/twolayer"
)

// A section is what is known of the headers of a section and its spans. It may be out of date, which shows when a CAS
// fails. It is refreshed only then, and when no memory is left.
type section struct {
	h       twolayer.Section
	flushed bool // h's log is in the full log, or on its way
	avoid   uint16
	spans   [twolayer.SectionSpans]span
}

// A span is what is known of a span's header.
type span struct {
	h       twolayer.Span
	flushed bool
	avoid   uint32 // chunks that old keys may open, until the node has dealt with them
}

// The least and the most sections that are read at a time. While a search finds only full sections, it reads more and
// more at a time.
const (
	readLeast = 8
	readMost  = 128
)

// readSections reads the headers of up to n sections, from first on, and returns how many it has read.
func (a *Allocator) readSections(ctx context.Context, first, n uint32) (uint32, error) {
	n = min(n, a.l.Sections()-first, uint32(a.readMax()/(1+twolayer.SectionSpans)))
	a.begin()
	// The sections come first: see package twolayer on opening a span.
	hs := a.read(a.l.SectionAt(first), int(n), StepReadHeaders)
	ss := a.read(a.l.SpanAt(first*twolayer.SectionSpans), int(n)*twolayer.SectionSpans, StepReadHeaders)
	if err := a.run(ctx); err != nil {
		return 0, err
	}
	a.stats.Refreshes += uint64(n)
	for i := range int(n) {
		s := a.sections[first+uint32(i)]
		if s == nil {
			s = &section{}
			a.sections[first+uint32(i)] = s
		}
		s.see(twolayer.Section(a.word(hs + i)))
		for j := range s.spans {
			s.spans[j].see(twolayer.Span(a.word(ss + i*twolayer.SectionSpans + j)))
		}
	}
	return n, nil
}

// see notes the current value of a header.
func (s *section) see(h twolayer.Section) {
	if s.h != h {
		s.h, s.flushed = h, false
	}
}

func (s *span) see(h twolayer.Span) {
	if s.h != h {
		s.h, s.flushed = h, false
	}
}

// known returns a section. If its headers have never been read, it reads them, with those of some sections behind it.
func (a *Allocator) known(ctx context.Context, i uint32) (*section, error) {
	if s := a.sections[i]; s != nil {
		return s, nil
	}
	if i == a.readEnd && a.readFull {
		a.readAhead = min(2*a.readAhead, readMost)
	} else {
		a.readAhead = readLeast
	}
	n, err := a.readSections(ctx, i, a.readAhead)
	if err != nil {
		return nil, err
	}
	a.readEnd, a.readFull = i+n, true
	for _, s := range a.sections[i : i+n] {
		a.readFull = a.readFull && s.h.States() == ^uint32(0)
	}
	return a.sections[i], nil
}

// refresh reads all headers.
func (a *Allocator) refresh(ctx context.Context) error {
	for i := uint32(0); i < a.l.Sections(); {
		n, err := a.readSections(ctx, i, readMost)
		if err != nil {
			return err
		}
		i += n
	}
	return nil
}

// forget makes the headers of the section that has a chunk be read again.
func (a *Allocator) forget(chunk uint32) { a.sections[chunk/twolayer.SectionChunks] = nil }

// forgive ends the avoiding of chunks and spans everywhere.
func (a *Allocator) forgive() {
	if !a.avoiding {
		return
	}
	a.avoiding = false
	for _, s := range a.sections {
		if s == nil {
			continue
		}
		s.avoid = 0
		for i := range s.spans {
			s.spans[i].avoid = 0
		}
	}
}

// shun makes a avoid the 1<<k chunks from first on until the node has dealt with them.
func (a *Allocator) shun(first uint32, k int) {
	a.avoiding = true
	s := a.sections[first/twolayer.SectionChunks]
	if s == nil {
		return
	}
	i := first % twolayer.SectionChunks / twolayer.SpanChunks
	if k < twolayer.SpanClass {
		s.spans[i].avoid |= uint32(uint64(1)<<(1<<k)-1) << (first % twolayer.SpanChunks)
		return
	}
	s.avoid |= uint16(uint32(1)<<twolayer.SpansOf(k)-1) << i
}
