package farlog

// cleanAbove is the part of far memory that may be dead, provided there
// are at least cleanFrom segments.
const (
	cleanAbove = 1.0 / 3
	cleanFrom  = 4
	tightShare = 4 // memory is tight if the store has room for less than this share of the segments that there are
)

// cleanable reports whether the writer may clean s.
func (s *Segment) cleanable() bool {
	return s.sealed.Load() && !s.Broken && s.Writes == 0 && !s.HasPages() && s.Live.Load() > 0 && !s.Gone()
}

// Yields reports whether at least such a part of s is dead, or was never written. Records count in whole classes, which may come to more than a segment.
func (s *Segment) Yields(part float64) bool {
	return float64(s.Live.Load()) <= (1-part)*float64(max(s.filled.Load(), int64(s.log.SegSize)))
}

// Sparsest returns the segment to be cleaned with the fewest live bytes, or nil. It is the writer's.
func (f *Log) Sparsest() (best *Segment) {
	f.All(func(s *Segment) {
		if s.cleanable() && (best == nil || s.Live.Load() < best.Live.Load()) {
			best = s
		}
	})
	return best
}

// Worst returns the segment whose cleaning yields most for its cost, which is
// to read what has not been cleaned of it and to write what lives; old segments come first,
// since what lives in a young one may soon be dead. It is nil if far memory is
// clean enough. Where memory is tight, what was never written counts as dead, too, in segments that ended
// early, with a checkpoint or since a copy was late. It is the writer's.
func (f *Log) Worst() (best *Segment) {
	var live, filled, n int64
	var most float64
	tight := f.tight()
	f.All(func(s *Segment) {
		lives, size := s.Live.Load(), s.filled.Load()
		if !s.sealed.Load() || s.HasPages() || s.Gone() || lives == 0 { // what is empty is about to be given back
			return
		}
		n++
		read := max(size-int64(s.Cleaned), 0)
		if tight && size < int64(f.SegSize)/2 {
			size = int64(f.SegSize)
		}
		live += lives
		filled += size
		if s.cleanable() {
			if gain := float64(size-lives) / float64(read+lives) * float64(f.age.Load()-s.age+1); gain > most {
				best, most = s, gain
			}
		}
	})
	if n < cleanFrom || float64(filled-live) < cleanAbove*float64(filled) {
		return nil
	}
	return best
}

// tight reports whether the store has little room, but some: what is cleaned needs it first.
func (f *Log) tight() bool {
	room, _ := f.room()
	f.mu.Lock()
	defer f.mu.Unlock()
	return room > 0 && room*tightShare < f.count
}

// Dying reports whether there is a segment that waits for pins of it to end.
func (f *Log) Dying() (yes bool) {
	f.All(func(s *Segment) { yes = yes || s.sealed.Load() && s.Live.Load() == 0 })
	return yes
}
