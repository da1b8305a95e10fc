package partition

import (
	"cmp"
	"slices"
	"strings"
)

// load is how many partitions a server has.
type load struct {
	id   string
	has  int // that it owns; once moves are planned, that it will own after them
	then int // that it would own after the moves that the map has
	want int // that it is to own
}

// step does what must be done to a map, and reports whether there was something. It uses no clock and no chance. The Epoch stays.
//
// It takes out the servers that are dead. Each partition without an owner goes to the server that owns fewest. Then it plans moves: as
// few as it takes to balance the servers that do not leave, to which those of leaving servers go, too. Of the moves that the map has it keeps all
// that are part of such a plan, so that a plan does not change while it is carried out.
func step(m *Map, dead func(id string) bool) bool {
	was := m.clone()
	m.remove(dead)
	loads := map[string]*load{}
	var takers []*load // by ID
	for _, s := range m.Servers {
		l := &load{id: s.ID}
		if loads[s.ID] = l; !s.Leaving {
			takers = append(takers, l)
		}
	}
	for p, id := range m.Owner {
		if id != "" {
			loads[id].has++
			loads[cmp.Or(m.Next[p], id)].then++
		}
	}
	if len(takers) == 0 {
		clear(m.Next)
		return !slices.Equal(m.Next, was.Next) || !m.sameOwners(was)
	}
	for p, id := range m.Owner {
		if id == "" {
			l := slices.MinFunc(takers, func(a, b *load) int { return cmp.Compare(a.has, b.has) })
			m.Owner[p] = l.id
			l.has++
			l.then++
		}
	}
	divide(m.Partitions, takers)

	move := func(p int, to *load) {
		m.Next[p] = to.id
		loads[m.Owner[p]].has--
		to.has++
	}
	for p, id := range m.Next {
		if id == "" {
			continue
		}
		m.Next[p] = ""
		if from, to := loads[m.Owner[p]], loads[id]; from.has > from.want && to.has < to.want {
			move(p, to)
		}
	}
	for p, id := range m.Owner {
		if from := loads[id]; m.Next[p] == "" && from.has > from.want {
			move(p, slices.MaxFunc(takers, func(a, b *load) int { return cmp.Compare(a.want-a.has, b.want-b.has) }))
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

// divide says how many of the partitions each taker is to own. All are to own n or n+1, whereby fewest partitions move if those that own more than n now
// are to own n+1. Among these the plan that the map has decides.
func divide(partitions int, takers []*load) {
	n := partitions / len(takers)
	above := func(l *load) int {
		if l.has > n {
			return 1
		}
		return 0
	}
	byNeed := slices.Clone(takers)
	slices.SortFunc(byNeed, func(a, b *load) int {
		return cmp.Or(above(b)-above(a), b.then-a.then, b.has-a.has, strings.Compare(a.id, b.id))
	})
	for i, l := range byNeed {
		if l.want = n; i < partitions%len(takers) {
			l.want++
		}
	}
}
