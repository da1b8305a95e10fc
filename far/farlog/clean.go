package farlog

// cleanAbove is the part of far memory that may be dead, provided there
// are at least cleanFrom segments.
const (
	cleanAbove = 1.0 / 3
	cleanFrom  = 4
)

// cleanable reports whether the writer may clean s.
func (s *Segment) cleanable() bool {
	return s.sealed.Load() && !s.Broken && s.Writes == 0 && !s.HasPages() && s.Live.Load() > 0 && !s.Gone()
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
// to read what was written and to write what lives; old segments come first,
// since what lives in a young one may soon be dead. It is nil if far memory is
// clean enough. It is the writer's.
func (f *Log) Worst() (best *Segment) {
	var live, filled, n int64
	var most float64
	f.All(func(s *Segment) {
		if !s.sealed.Load() || s.HasPages() || s.Gone() {
			return
		}
		n++
		live += s.Live.Load()
		filled += s.filled.Load()
		if s.cleanable() {
			u := float64(s.Live.Load()) / float64(s.filled.Load())
			if gain := (1 - u) / (1 + u) * float64(f.age.Load()-s.age+1); gain > most {
				best, most = s, gain
			}
		}
	})
	if n < cleanFrom || float64(filled-live) < cleanAbove*float64(filled) {
		return nil
	}
	return best
}

// Dying reports whether there is a segment that waits for pins of it to end.
func (f *Log) Dying() (yes bool) {
	f.All(func(s *Segment) { yes = yes || s.sealed.Load() && s.Live.Load() == 0 })
	return yes
}
