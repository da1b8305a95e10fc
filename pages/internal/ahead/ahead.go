// Package ahead notices accesses whose distance stays the same, and says what comes next, so that it can be read
// before it is asked for.
//
// A server of a block device tells it of every access. A pager sees only accesses to pages that are not there: so it
// keeps the page of Window.Mark away from its client, and learns from the access to it that the stream has come so
// far. As a stream goes on, the window that is read ahead grows from 4 pages to Streams.Most. The next window is read
// when half of the one before has been used, so that whoever follows the stream seldom waits. A stream that ends is
// forgotten when a new one needs its place: at most a window was read in vain. Random accesses in a small range that
// was read in a row before look like its stream now and then. So an access that skips pages continues a stream only
// at places that its reader must come by: at the mark, and at the first page that was not read ahead.
package ahead

const (
	first     = 4 // pages of the first window
	streams   = 8 // known at a time
	maxStride = 1 << 10
	maxSkip   = 4  // how many accesses after the latest one an access may be
	maxAge    = 32 // after so many other accesses a stream may have ended: it starts with the first window again
)

// Streams are the latest streams of accesses. It is not safe for concurrent use.
type Streams struct {
	Most int64 // the most pages of a window

	of   [streams]stream
	tick uint32
}

// stream is a series of accesses.
type stream struct {
	last   int64 // first page of the latest access
	n      int64 // pages of it
	stride int64 // from an access to the next one, 0 until two have been seen
	asked  int64 // the last access that was read ahead, or last
	mark   int64 // mark of the latest window
	window int64 // accesses that are read ahead at a time
	used   uint32
}

// Window is what to read ahead: Count accesses of N pages each, at First, First + Stride, and so on.
type Window struct{ First, Stride, Count, N int64 }

// Mark is the first page of the access in the window at which the next window is to be read.
func (w Window) Mark() int64 { return w.First + (w.Count-1)/2*w.Stride }

// last is the first page of the window's last access.
func (w Window) last() int64 { return w.First + (w.Count-1)*w.Stride }

// Reached tells the stream of window w, whose accesses are of one page, that reading went on to the page last, since
// some pages were there already, and that the next window is to be read at the access to mark.
func (s *Streams) Reached(w Window, last, mark int64) {
	for i := range s.of {
		if t := &s.of[i]; t.stride == w.Stride && t.asked == w.last() && t.window > 0 {
			t.asked, t.mark = last, mark
			return
		}
	}
}

// Access notes that n pages are used, and returns what to read ahead: nothing if Count is 0.
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
	if next.stride == t.n { // the reads are adjacent, however long each is
		next.last, next.n, next.stride, next.asked = page+n-1, 1, 1, page+n-1
	}
	*t = next
	return Window{}
}

// expects reports whether the stream expects an access to page. An old stream expects only the accesses that its
// reader must come by: at the mark, and behind what was read ahead.
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

// follow moves the stream on to an access that it expected, and returns what to read ahead now.
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
