package farlog

// Pins keeps segments from being given back, for who has their records looked at by
// somebody else. It has one user. It may be used again after Release.
type Pins struct {
	f    *Log
	segs map[*Segment]int // their pins
}

// NewPins returns pins of nothing, to be released.
func (f *Log) NewPins() *Pins { return &Pins{f: f, segs: make(map[*Segment]int)} }

// Hold pins the segment of the far record at addr and returns it, if the record's owner still
// refers to that afterwards, as refers says. Otherwise it returns nil.
func (p *Pins) Hold(addr uint64, refers func() bool) *Segment {
	s := p.f.Seg(addr)
	if s == nil || s.Gone() {
		return nil
	}
	_, held := p.segs[s]
	part := 0
	if !held {
		part = s.Pin()
	}
	// The cleaner turns words first and looks for pins afterwards.
	if !refers() || p.f.Seg(addr) != s {
		if !held {
			s.Unpin(part)
		}
		return nil
	}
	if !held {
		p.segs[s] = part
	}
	return s
}

// Release ends the pins.
func (p *Pins) Release() {
	for s, part := range p.segs {
		s.Unpin(part)
	}
	clear(p.segs)
}
