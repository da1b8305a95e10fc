// Package ahead notices accesses at a constant distance from each other, and says which pages come next, so that they
// can be read before they are asked for.
//
// A user that reads ahead may see every access, as a server of a block device does, or only accesses to pages that
// are not there, as a pager does. A pager has to keep the page Window.Mark from its client, so that it hears when the
// stream has come so far. As a stream goes on, the window that is read ahead grows from 4 to Streams.Most pages. The
// next window is read when half of the one before has been used, so that the reader of the stream seldom waits. A
// stream that has no further accesses is forgotten when a new one needs its place: a window at most was read in vain.
//
// Now and then, random accesses in a small range that was read in a row before look like a continuation of that
// stream. So a stream that has had no access for a while goes on only where its reader has to come by: at the mark,
// and at the first page that was not read ahead.
package ahead

const (
	first     = 4 // pages of the first window
	streams   = 8 // that are remembered at a time
	maxStride = 1 << 10
	maxSkip   = 4  // how many steps, for each page of an access, the access may be ahead of the last one
	maxAge    = 32 // after so many accesses elsewhere a stream counts as old: it starts with the first window again
)

// Streams are the latest streams of accesses. It is not safe for concurrent use.
type Streams struct {
	Most int64 // pages of a window, at most

	of   [streams]stream
	tick uint32
}

// stream is a series of accesses.
type stream struct {
	last   int64  // first page of the latest access
	n      int64  // pages of the latest access
	stride int64  // from an access to the next one, 0 until two have been seen
	asked  int64  // first page of the last access that was read ahead, or last
	mark   int64  // Mark of the latest window
	window int64  // accesses that are read ahead at a time
	used   uint32 // Streams.tick at the latest access
}

// Window is what to read ahead: Count accesses of N pages, at First, First + Stride, and so on.
type Window struct{ First, Stride, Count, N int64 }

// Mark is the first page of the access, half way through the window, at which the next window is to be read.
func (w Window) Mark() int64 { return w.First + (w.Count-1)/2*w.Stride }

// last is the first page of its last access.
func (w Window) last() int64 { return w.First + (w.Count-1)*w.Stride }

// Reached records that a window of one-page accesses went on to the page last, because some of its pages were there
// already, and that the next window is to be read at the access to mark.
func (s *Streams) Reached(w Window, last, mark int64) {
	for i := range s.of {
		if t := &s.of[i]; t.stride == w.Stride && t.asked == w.last() && t.window > 0 {
			t.asked, t.mark = last, mark
			return
		}
	}
}

// Access records that n pages from page on are used, and returns what to read ahead; Count is 0 if there is nothing.
func (s *Streams) Access(page, n int64) Window {
	s.tick++
	oldest, near := 0, -1
	for i := range s.of {
		t := &s.of[i]
		if old := s.tick-t.used > maxAge; t.expects(page, n, old) {
			if t.used = s.tick; old {
				t.window = 0
			}
			return t.follow(page, n, max(s.Most, 1))
		}
		if s.tick-t.used > s.tick-s.of[oldest].used {
			oldest = i
		}
		if d := page - t.last; t.used != 0 && d != 0 && t.window == 0 && d >= -maxStride && d <= maxStride && (near < 0 || t.used > s.of[near].used) {
			near = i
		}
	}
	if near < 0 {
		s.of[oldest] = stream{last: page, n: n, asked: page, used: s.tick}
		return Window{}
	}
	t := &s.of[near]
	next := stream{last: page, n: n, stride: page - t.last, asked: page, used: s.tick}
	if next.stride == t.n { // pages are read in a row, however many at a time
		next.last, next.n, next.stride, next.asked = page+n-1, 1, 1, page+n-1
	}
	*t = next
	return Window{}
}

// expects reports whether the stream expected an access to a page. An old stream expects only the accesses that its
// reader has to come by.
func (t *stream) expects(page, n int64, old bool) bool {
	if t.stride == 0 || (page-t.last)%t.stride != 0 {
		return false
	}
	steps, left := (page-t.last)/t.stride, (t.asked-t.last)/t.stride
	if steps <= 0 || steps > left+1 {
		return false
	}
	return steps == left+1 || t.window > 0 && page == t.mark || !old && steps <= maxSkip*n
}

func (t *stream) sign() int64 {
	if t.stride < 0 {
		return -1
	}
	return 1
}

// follow records an access that was expected, and returns what to read ahead.
func (t *stream) follow(page, n, most int64) Window {
	due := t.window > 0 && page == t.mark
	if t.last = page; t.stride == 1 {
		t.last += n - 1
	}
	if (t.asked-t.last)*t.sign() < 0 {
		t.asked = t.last
	}
	left := (t.asked - t.last) / t.stride
	if 2*left > t.window && !due {
		return Window{}
	}
	least := int64(first)
	if t.stride == 1 {
		least = max(least, 2*n)
	}
	t.window = min(max(2*t.window, least), max(most/t.n, 1))
	w := Window{First: t.asked + t.stride, Stride: t.stride, Count: t.window, N: t.n}
	t.mark = w.Mark()
	t.asked += t.window * t.stride
	return w
}
