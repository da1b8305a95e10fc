// Package ahead notices accesses whose distance stays the same, and says what comes next, so
// that it can be read before it is asked for.
//
// Whoever reads ahead may see every access, as a server of a block device does, or only those
// to what is not there, as a pager does, which has to keep the page that Window.Mark says away from
// its client to hear that the stream has come so far. What is read ahead grows from a window of 4
// to one of Streams.Most pages as the stream goes on, and the next window is read when half of
// the one before has been used, so that whoever follows the stream seldom waits. A stream that
// is not followed is forgotten for the next new one: what was read in vain is a window at most.
// Accesses at random in a small range that was read in a row before look like its stream now and
// then, so one that skips pages goes on only where its reader has to come by: at the mark, and
// at the first page that was not read ahead.
package ahead

const (
	first     = 4 // pages of the first window
	streams   = 8 // that are known at a time
	maxStride = 1 << 10
	maxSkip   = 4  // accesses that may come later than the next one
	maxAge    = 32 // accesses after which a stream may have ended, and starts with the first window again
)

// Streams are the latest streams of accesses. It is not safe for concurrent use.
type Streams struct {
	Most int64 // pages of a window

	of   [streams]stream
	tick uint32
}

// stream is a series of accesses.
type stream struct {
	last   int64 // first page of the latest access
	n      int64 // pages of it
	stride int64 // from an access to the next one, 0 until two have been seen
	asked  int64 // the last access that was read ahead, or last
	mark   int64 // of the latest window
	window int64 // accesses that are read ahead at a time
	used   uint32
}

// Window is what to read ahead: Count accesses of N pages, at First, First + Stride, and so on.
type Window struct{ First, Stride, Count, N int64 }

// Mark is the first page of that access of the window with which the next one is to be read.
func (w Window) Mark() int64 { return w.First + (w.Count-1)/2*w.Stride }

// last is the first page of its last access.
func (w Window) last() int64 { return w.First + (w.Count-1)*w.Stride }

// Reached takes in that a window of one page an access went on to the page last, since some of its pages were there already,
// and that the next one is to be read with the access to mark.
func (s *Streams) Reached(w Window, last, mark int64) {
	for i := range s.of {
		if t := &s.of[i]; t.stride == w.Stride && t.asked == w.last() && t.window > 0 {
			t.asked, t.mark = last, mark
			return
		}
	}
}

// Access takes in that n pages are used, and says what to read ahead, of which Count may be 0.
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
	if next.stride == t.n { // what is read is in a row, however much of it at a time
		next.last, next.n, next.stride, next.asked = page+n-1, 1, 1, page+n-1
	}
	*t = next
	return Window{}
}

// expects reports whether an access to a page is one that was expected. Of a stream that is old, only those are that its
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

// follow takes in an access that was expected.
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
