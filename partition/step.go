package partition

import (
	"cmp"
	"slices"
	"sort"
	"strings"
)

// share is how many partitions a server has.
type share struct {
	id    string
	extra int // Server.Extra
	has   int // how many it owns, counting the moves that step has planned so far as done
	then  int // how many it would own after the moves that are already in the map
	want  int // how many it is to own
}

// step brings a map up to date, and reports whether it has changed anything. It uses neither clock nor chance. It
// leaves Epoch as it is.
//
// First it takes out the servers that are dead. Then it gives each partition without an owner to the server that
// lacks most. Then it plans moves: as few as it takes to balance the numbers of partitions of the servers that stay,
// which also get the partitions of the servers that leave. Moves that the map has already, and that fit such a plan,
// it keeps, so that a plan does not change while it is carried out.
func step(m *Map, dead func(id string) bool) bool {
	was := m.clone()
	m.remove(dead)
	shares := map[string]*share{}
	var takers []*share // by ID
	for _, s := range m.Servers {
		l := &share{id: s.ID, extra: s.Extra}
		if shares[s.ID] = l; !s.Leaving {
			takers = append(takers, l)
		}
	}
	for p, id := range m.Owner {
		if id != "" {
			shares[id].has++
			shares[cmp.Or(m.Next[p], id)].then++
		}
	}
	if len(takers) == 0 {
		clear(m.Next)
		return !slices.Equal(m.Next, was.Next) || !m.sameOwners(was)
	}
	divide(m.Partitions, takers)
	neediest := func() *share {
		return slices.MaxFunc(takers, func(a, b *share) int { return cmp.Compare(a.want-a.has, b.want-b.has) })
	}
	for p, id := range m.Owner {
		if id == "" {
			l := neediest()
			m.Owner[p] = l.id
			l.has++
		}
	}

	move := func(p int, to *share) {
		m.Next[p] = to.id
		shares[m.Owner[p]].has--
		to.has++
	}
	for p, id := range m.Next {
		if id == "" {
			continue
		}
		m.Next[p] = ""
		if from, to := shares[m.Owner[p]], shares[id]; from.has > from.want && to.has < to.want {
			move(p, to)
		}
	}
	for p, id := range m.Owner {
		if from := shares[id]; m.Next[p] == "" && from.has > from.want {
			move(p, neediest())
		}
	}
	return !slices.Equal(m.Next, was.Next) || !m.sameOwners(was)
}

// remove takes servers out of the map, and leaves their partitions without an owner.
func (m *Map) remove(gone func(id string) bool) {
	m.Servers = slices.DeleteFunc(m.Servers, func(s Server) bool { return gone(s.ID) })
	for p := range m.Owner {
		if _, ok := m.find(m.Owner[p]); !ok {
			m.Owner[p], m.Next[p] = "", ""
		}
		if _, ok := m.find(m.Next[p]); !ok {
			m.Next[p] = ""
		}
	}
}

// bounds returns how many partitions a server has at least and at most, if this many servers (takers) share them.
func bounds(partitions, takers int) (least, most int) {
	n := partitions / takers
	return min(n, 1), max(2*n, 1)
}

// divide sets how many partitions each taker is to own (want): n or n+1, plus its extra, within bounds. Fewest
// partitions move if n+1 goes to the takers that own more than n now, so these come first. Among them the moves that
// the map has already decide.
func divide(partitions int, takers []*share) {
	least, most := bounds(partitions, len(takers))
	with := func(l *share, n int) int { return min(max(n+l.extra, least), most) }
	left := func(n int) int {
		rest := partitions
		for _, l := range takers {
			rest -= with(l, n)
		}
		return rest
	}
	// No extra is more than partitions.
	n := sort.Search(3*partitions, func(i int) bool { return left(i-partitions+1) < 0 }) - partitions
	rest := left(n)
	is := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	grows := func(l *share) int { return is(with(l, n+1) > with(l, n)) }
	over := func(l *share, has int) int { return has - with(l, n) }
	above := func(l *share) int { return is(over(l, l.has) > 0) }
	byNeed := slices.Clone(takers)
	slices.SortFunc(byNeed, func(a, b *share) int {
		return cmp.Or(grows(b)-grows(a), above(b)-above(a), over(b, b.then)-over(a, a.then), over(b, b.has)-over(a, a.has), strings.Compare(a.id, b.id))
	})
	for i, l := range byNeed {
		if l.want = with(l, n); i < rest {
			l.want++
		}
	}
}
