package pager

// streams notices accesses whose distance stays the same, and says what comes next. It sees
// faults only: that the pages it has asked for were the right ones it learns when the first
// page after them is asked for, and doubles the window. A stream that is not followed is
// forgotten for the next new one, and what was asked for in vain is a window at most.
type streams struct {
	of   [8]stream
	tick uint32
}

// stream is a series of accesses.
type stream struct {
	last   int64 // page of the latest fault
	next   int64 // page whose fault would show that the window was right
	stride int64 // 0 until two faults have been seen
	window int64 // pages that were asked for ahead
	used   uint32
}

const (
	firstWindow = 4
	maxWindow   = 32
	maxStride   = 64 // pages
)

// fault takes the number of a page in, and returns which ones to read ahead: count of them,
// at page + stride, page + 2 * stride, and so on.
func (s *streams) fault(page int64) (stride, count int64) {
	s.tick++
	oldest, near := 0, -1
	for i := range s.of {
		t := &s.of[i]
		if past := (page - t.last) * sign(t.stride); t.stride != 0 && past > 0 && past <= (t.next-t.last)*sign(t.stride) && past%(t.stride*sign(t.stride)) == 0 {
			if page == t.next {
				t.window = min(max(2*t.window, firstWindow), maxWindow)
			} // else there was no room for all of the window
			t.last, t.next, t.used = page, page+(t.window+1)*t.stride, s.tick
			return t.stride, t.window
		}
		if s.tick-t.used > s.tick-s.of[oldest].used {
			oldest = i
		}
		if t.used == 0 || page == t.last {
			continue
		}
		if d := page - t.last; d >= -maxStride && d <= maxStride && t.window == 0 && (near < 0 || t.used > s.of[near].used) {
			near = i
		}
	}
	if near < 0 {
		s.of[oldest] = stream{last: page, used: s.tick}
		return 0, 0
	}
	t := &s.of[near]
	*t = stream{last: page, stride: page - t.last, next: 2*page - t.last, used: s.tick}
	return 0, 0
}

func sign(n int64) int64 {
	if n < 0 {
		return -1
	}
	return 1
}
