package resp

import "polder/resp/keyspace"

// partedSight is what the replies to be sent show of a partition, which the session uses until it is shown.
type partedSight struct {
	of *part
	keyspace.Sight
}

// looked takes note that the reply to be sent shows what the heap has now.
func (s *session) looked() {
	if s.part == s.srv.data {
		s.Space.Look(&s.Sight)
	} else {
		s.Space.Look(s.sightOf(s.part))
	}
}

// shown reports whether the replies that the session has may be sent, and waits until that is known.
func (s *session) shown() bool {
	ok := s.srv.data.Shown(&s.Sight)
	for i := range s.sights {
		ok = s.sights[i].of.Shown(&s.sights[i].Sight) && ok
	}
	s.forgetSights()
	return ok
}

// sightOf is what the replies to be sent show of a partition that the session uses.
func (s *session) sightOf(at *part) *keyspace.Sight {
	for i := range s.sights {
		if s.sights[i].of == at {
			return &s.sights[i].Sight
		}
	}
	at.Hold()
	s.sights = append(s.sights, partedSight{of: at})
	return &s.sights[len(s.sights)-1].Sight
}

// forgetSights ends what the session shows of partitions.
func (s *session) forgetSights() {
	for i := range s.sights {
		s.sights[i].of.EndUse()
		s.sights[i].of = nil
	}
	s.sights = s.sights[:0]
}
