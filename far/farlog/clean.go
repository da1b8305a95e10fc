package farlog

// cleanAbove is how large a part of far memory may be dead before it is cleaned, provided there are at least
// cleanFrom segments.
const (
	cleanAbove = 1.0 / 3
	cleanFrom  = 4
	// Memory is tight if the store has room for fewer segments than a tightShare-th of those in use.
	tightShare = 4
)

// cleanable reports whether the writer may clean s.
func (s *Segment) cleanable() bool {
	return s.sealed.Load() && !s.Broken && s.Writes == 0 && !s.HasPages() && s.Live.Load() > 0 && !s.Gone()
}

// Yields reports whether at least the given part of s is dead, or was never written. Records count in whole classes,
// which may come to more than a segment.
func (s *Segment) Yields(part float64) bool {
	return float64(s.Live.Load()) <= (1-part)*float64(max(s.filled.Load(), int64(s.log.SegSize)))
}

// Sparsest returns the segment with the fewest live bytes of those that may be cleaned, or nil. It is the writer's.
func (f *Log) Sparsest() (best *Segment) {
	f.All(func(s *Segment) {
		if s.cleanable() && (best == nil || s.Live.Load() < best.Live.Load()) {
			best = s
		}
	})
	return best
}

// Worst returns the segment whose cleaning yields most for its cost, or nil if far memory is clean enough. The cost
// is to read the part of the segment that has not been cleaned yet, and to write what lives. Old segments come first,
// since what lives in a young one may soon be dead. Where memory is tight, the unwritten part counts as dead, too, in
// segments that are less than half full: they ended early, with a checkpoint or since a copy was late. It is the
// writer's.
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

// tight reports whether the store has little room, but some: cleaning takes room before it makes some.
func (f *Log) tight() bool {
	room, _ := f.room()
	f.mu.Lock()
	defer f.mu.Unlock()
	return room > 0 && room*tightShare < f.count
}

// Dying reports whether there is a segment that only waits for its pins to end.
func (f *Log) Dying() (yes bool) {
	f.All(func(s *Segment) { yes = yes || s.sealed.Load() && s.Live.Load() == 0 })
	return yes
}
