package resp

// sight is what replies that are to be sent show of a server's data.
type sight struct {
	seen   uint64 // number of the last record of the journal when the last command ended
	ticket uint64 // of the evidence for that
	dated  bool   // there is a ticket
}

// partedSight is that of a partition, which the session uses until it is shown.
type partedSight struct {
	of *Server
	sight
}

// looked takes note that the reply to be sent shows what the heap has now.
func (s *session) looked() {
	at := &s.sight
	if s.srv != s.front {
		at = s.sightOf(s.srv)
	}
	if j := s.srv.journal; j != nil {
		at.seen = j.last.Load()
	}
	if e := s.srv.cfg.Evidence; e != nil {
		at.dated, at.ticket = true, e.Ask()
	}
}

// shown reports whether the replies that the session has may be sent, and waits until that is known.
func (s *session) shown() bool {
	ok := s.sight.shown(s.srv)
	for i := range s.sights {
		ok = s.sights[i].shown(s.sights[i].of) && ok
	}
	s.forgetSights()
	return ok
}

// shown reports whether that may be sent, and waits until that is known. Then there is nothing to be shown.
func (v *sight) shown(srv *Server) bool {
	seen, dated := v.seen, v.dated
	v.seen, v.dated = 0, false
	return (seen == 0 || srv.journal.settle(seen)) && (!dated || srv.cfg.Evidence.Shown(v.ticket))
}

// sightOf is what the replies to be sent show of a partition that the session uses.
func (s *session) sightOf(at *Server) *sight {
	for i := range s.sights {
		if s.sights[i].of == at {
			return &s.sights[i].sight
		}
	}
	at.part.uses.Add(1)
	s.sights = append(s.sights, partedSight{of: at})
	return &s.sights[len(s.sights)-1].sight
}

// forgetSights ends what the session shows of partitions.
func (s *session) forgetSights() {
	for i := range s.sights {
		s.sights[i].of.endUse()
		s.sights[i].of = nil
	}
	s.sights = s.sights[:0]
}
