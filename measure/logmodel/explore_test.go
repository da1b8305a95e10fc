package logmodel

import (
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
)

// A model is a part of the protocol: a state, and the steps that can be taken in it.
type model[S comparable] struct {
	first S
	// steps offers every step that can be taken in s.
	steps func(s *S, o *offers[S])
	// wrong says what must never be so and is so in s, "" if nothing is.
	wrong func(s *S) string
	// lacking says what has yet to become true in s when nothing fails any more, "" if all is well.
	lacking func(s *S) string
}

// offers takes the steps that can be taken in a state: where each leads, and what is done, in words with numbers.
type offers[S comparable] struct {
	each func(to *S, must bool, format string, args []int)
}

// may offers what happens or does not: a fault, a client's command, a decision that can wait for ever.
func (o *offers[S]) may(to S, format string, args ...int) { o.each(&to, false, format, args) }

// will offers what somebody does sooner or later, if nothing prevents it.
func (o *offers[S]) will(to S, format string, args ...int) { o.each(&to, true, format, args) }

// A finding is what exploring a model has found.
type finding struct {
	states, depth int
	whole         bool     // every state that can be reached was visited
	wrong         string   // "" if nothing is
	trace         []string // the steps to it, as few as possible
}

// explore visits every state of m that can be reached, breadth first, but no more than most. From each state, steps that will be taken
// must lead to one in which nothing is lacking. States are remembered by hashes of 64 bits: two of a million
// have the same one with a chance of one in 30 million.
func explore[S comparable](m model[S], most int) finding {
	type origin struct {
		from   int32
		choice uint16
	}
	type edge struct{ from, to int32 }
	seed := maphash.MakeSeed()
	ids := map[uint64]int32{maphash.Comparable(seed, m.first): 0}
	tree, edges := []origin{{-1, 0}}, []edge(nil)
	frontier, numbers := []S{m.first}, []int32{0}
	well := []bool{m.lacking(&m.first) == ""}
	f := finding{}
	traceTo := func(id int32) (S, []string) {
		var path []uint16
		for ; tree[id].from >= 0; id = tree[id].from {
			path = append(path, tree[id].choice)
		}
		return replay(m, path)
	}
	for len(frontier) > 0 {
		var next []S
		var nextNumbers []int32
		for k := range frontier {
			choice, bad := uint16(0), int32(-1)
			m.steps(&frontier[k], &offers[S]{func(to *S, must bool, _ string, _ []int) {
				choice++
				if bad >= 0 {
					return
				}
				h := maphash.Comparable(seed, *to)
				id, known := ids[h]
				if !known {
					id = int32(len(tree))
					ids[h], tree = id, append(tree, origin{numbers[k], choice})
					well = append(well, m.lacking(to) == "")
					if f.wrong = m.wrong(to); f.wrong != "" {
						bad = id
						return
					}
					next, nextNumbers = append(next, *to), append(nextNumbers, id)
				}
				if must {
					edges = append(edges, edge{numbers[k], id})
				}
			}})
			if f.states = len(tree); bad >= 0 || f.states >= most {
				if bad >= 0 {
					_, f.trace = traceTo(bad)
				}
				return f
			}
		}
		frontier, numbers = next, nextNumbers
		f.depth++
	}
	f.whole = true
	// Backwards from where all is well, over steps that will be taken.
	first, into := make([]int32, len(tree)+1), make([]int32, len(edges))
	for _, e := range edges {
		first[e.to+1]++
	}
	for i := range tree {
		first[i+1] += first[i]
	}
	free := append([]int32(nil), first...)
	for _, e := range edges {
		into[free[e.to]] = e.from
		free[e.to]++
	}
	var todo []int32
	for id, ok := range well {
		if ok {
			todo = append(todo, int32(id))
		}
	}
	for len(todo) > 0 {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, from := range into[first[id]:first[id+1]] {
			if !well[from] {
				well[from] = true
				todo = append(todo, from)
			}
		}
	}
	for id, ok := range well {
		if !ok { // the first of them has a shortest trace
			s, trace := traceTo(int32(id))
			f.wrong, f.trace = "for ever "+m.lacking(m.onwards(seed, s)), trace
			break
		}
	}
	return f
}

// onwards takes steps that will be taken, as long as they lead to states that it has not been in.
func (m model[S]) onwards(seed maphash.Seed, s S) *S {
	been := map[uint64]bool{}
	for more := true; more; {
		been[maphash.Comparable(seed, s)] = true
		more = false
		now := s
		m.steps(&now, &offers[S]{func(to *S, must bool, _ string, _ []int) {
			if must && !more && !been[maphash.Comparable(seed, *to)] {
				s, more = *to, true
			}
		}})
	}
	return &s
}

// replay takes the steps of a path, the last one first, and returns where it leads, and what is done on it.
func replay[S comparable](m model[S], path []uint16) (s S, trace []string) {
	s = m.first
	for i := len(path) - 1; i >= 0; i-- {
		choice, after := uint16(0), s
		m.steps(&s, &offers[S]{func(to *S, _ bool, format string, args []int) {
			if choice++; choice == path[i] {
				after = *to
				a := make([]any, len(args))
				for k := range args {
					if a[k] = args[k]; args[k] >= 1<<8 {
						a[k] = set(args[k] >> 8)
					}
				}
				trace = append(trace, fmt.Sprintf(format, a...))
			}
		}})
		s = after
	}
	return s, trace
}

// A set is one of small numbers.
type set uint8

func (s set) String() string {
	var all []string
	for n := range 8 {
		if s&set(bit(n)) != 0 {
			all = append(all, strconv.Itoa(n))
		}
	}
	return strings.Join(all, ", ")
}

// these are the members of a set, as an argument of may and will.
func these(mask uint8) int { return int(mask) << 8 }

// bit is a set that has n alone.
func bit(n int) uint8 { return 1 << n }
