package nbd

import (
	"context"

	"polder/pages"
	"polder/pages/internal/ahead"
)

// readAhead notes that a client reads n bytes at off, and has what will be read next, if that can be told, brought
// into local memory. It does not wait for it.
func (s *Server) readAhead(off, n int64) {
	first, end := off/pages.Size, (off+n+pages.Size-1)/pages.Size
	s.aheadMu.Lock()
	w := s.streams.Access(first, end-first)
	s.aheadMu.Unlock()
	if w.Count == 0 {
		return
	}
	select {
	case s.reading <- struct{}{}:
	default:
		return // far memory is slow, and what clients wait for comes first
	}
	s.done.Go(func() {
		defer func() { <-s.reading }()
		ctx, cancel := context.WithTimeoutCause(s.ctx, s.cfg.Timeout, errLate)
		defer cancel()
		s.prefetch(ctx, w)
	})
}

// prefetch brings a window into local memory. It drops errors: whoever reads the pages gets them.
func (s *Server) prefetch(ctx context.Context, w ahead.Window) {
	last := s.cfg.Volume.Size() / pages.Size
	for i := int64(0); i < w.Count; {
		run := int64(1) // accesses that are adjacent
		if w.Stride == w.N {
			run = w.Count
		}
		page := w.First + i*w.Stride
		n := min(run*w.N, last-page)
		if page < 0 || n <= 0 || s.cfg.Volume.Prefetch(ctx, page*pages.Size, n*pages.Size) != nil {
			return
		}
		s.stats.ahead.Add(n)
		i += run
	}
}
