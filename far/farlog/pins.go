package farlog

// Pins keeps segments from being given back while somebody else, such as the store, looks at their records for the
// user of Pins. It has one user. It may be used again after Release.
type Pins struct {
	f    *Log
	segs map[*Segment]int // what Pin has returned for each
}

// NewPins returns Pins that hold nothing yet. They have to be released.
func (f *Log) NewPins() *Pins { return &Pins{f: f, segs: make(map[*Segment]int)} }

// Hold pins the segment of the far record at addr and returns it, if after that refers says that the owner of the
// record still refers to it. Otherwise it returns nil.
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
	// The cleaner changes owners' words first and looks for pins afterwards: so we pin first, and look at the word
	// afterwards.
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
