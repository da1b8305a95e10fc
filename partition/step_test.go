package partition

import (
	"cmp"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func nobodyDied(string) bool { return false }

// owned is how many partitions each server that does not leave owns, or is to own after the moves.
func owned(m *Map, moved bool) map[string]int {
	n := map[string]int{}
	for _, s := range m.Servers {
		if !s.Leaving {
			n[s.ID] = 0
		}
	}
	for p, id := range m.Owner {
		if moved {
			id = cmp.Or(m.Next[p], id)
		}
		if _, ok := n[id]; ok {
			n[id]++
		}
	}
	return n
}

// fewest is how many partitions must change their owners at least until the map is balanced: each server that has too few needs some, and
// each that has too many, or leaves, must give some away.
func fewest(m *Map) int {
	n := owned(m, false)
	if len(n) == 0 {
		return 0
	}
	low := m.Partitions / len(n)
	high := low
	if m.Partitions%len(n) > 0 {
		high++
	}
	need, give := 0, m.Partitions
	for _, has := range n {
		need += max(low-has, 0)
		give -= min(has, high)
	}
	return max(need, give)
}

func moves(m *Map) int {
	return len(slices.DeleteFunc(slices.Clone(m.Next), func(id string) bool { return id == "" }))
}

// checkStepped checks a map to which all has been done that must be.
func checkStepped(t *rapid.T, m *Map) {
	n := owned(m, true)
	if len(n) == 0 {
		if moves(m) != 0 {
			t.Fatalf("%d partitions move although nobody can take them", moves(m))
		}
		return
	}
	least, most := m.Partitions, 0
	for _, has := range n {
		least, most = min(least, has), max(most, has)
	}
	even := !slices.ContainsFunc(m.Servers, func(s Server) bool { return s.Extra != 0 })
	if low, high := bounds(m.Partitions, len(n)); least < low || most > high && most-least > 1 {
		t.Fatalf("servers will own %d to %d partitions, want %d to %d: %v", least, most, low, high, n)
	}
	if even && most-least > 1 {
		t.Fatalf("servers will own %d to %d partitions: %v", least, most, n)
	}
	for p := range m.Owner {
		if s, ok := m.Server(m.Owner[p]); !ok {
			t.Fatalf("partition %d is %q's, which is not in the map", p, m.Owner[p])
		} else if s.Leaving && m.Next[p] == "" {
			t.Fatalf("partition %d stays with a server that leaves", p)
		}
		if s, ok := m.Server(m.Next[p]); m.Next[p] != "" && (!ok || s.Leaving || m.Next[p] == m.Owner[p]) {
			t.Fatalf("partition %d is to move from %q to %q", p, m.Owner[p], m.Next[p])
		}
	}
	if got, want := moves(m), fewest(m); even && got != want {
		t.Fatalf("%d partitions move, want %d, to balance %v", got, want, owned(m, false))
	}
	if again := m.clone(); step(again, nobodyDied) || !reflect.DeepEqual(again, m) {
		t.Fatalf("a second step makes of %+v %+v", m, again)
	}
	if again, err := Decode(m.Encode()); err != nil || !reflect.DeepEqual(again, m) {
		t.Fatalf("%+v is read as %+v, %v", m, again, err)
	}
}

// TestStepBalancesWithFewestMoves while servers come, go and die, and moves are made one by one. What load has shifted stays within bounds.
func TestStepBalancesWithFewestMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMap(rapid.IntRange(1, 40).Draw(t, "partitions"))
		some := rapid.IntRange(0, 7)
		shifted := rapid.Bool().Draw(t, "shifted") // because of load
		t.Repeat(map[string]func(*rapid.T){
			"join": func(t *rapid.T) {
				s := Server{ID: id(some.Draw(t, "server")), Addr: "a:1"}
				if i, ok := m.find(s.ID); ok {
					m.Servers[i].Leaving = false
				} else {
					m.Servers = slices.Insert(m.Servers, i, s)
				}
			},
			"shift": func(t *rapid.T) {
				i, ok := m.find(id(some.Draw(t, "server")))
				if !shifted || !ok {
					t.Skip("there is nothing to shift")
				}
				m.Servers[i].Extra = rapid.IntRange(-m.Partitions, m.Partitions).Draw(t, "extra")
			},
			"leave": func(t *rapid.T) {
				if i, ok := m.find(id(some.Draw(t, "server"))); ok {
					m.Servers[i].Leaving = true
				}
			},
			"die": func(t *rapid.T) {
				dead := id(some.Draw(t, "server"))
				was := m.clone()
				step(m, func(id string) bool { return id == dead })
				for p, owner := range was.Owner {
					if s, ok := m.Server(owner); ok && m.Owner[p] != s.ID {
						t.Fatalf("partition %d was taken from %q, which lives, for %q", p, owner, m.Owner[p])
					}
				}
				checkStepped(t, m)
			},
			"move": func(t *rapid.T) {
				step(m, nobodyDied)
				var waiting []int
				for p := range m.Next {
					if m.Next[p] != "" {
						waiting = append(waiting, p)
					}
				}
				if len(waiting) == 0 {
					t.Skip("nothing moves")
				}
				p := rapid.SampledFrom(waiting).Draw(t, "partition")
				m.Owner[p], m.Next[p] = m.Next[p], ""
				if was := m.clone(); step(m, nobodyDied) {
					t.Fatalf("after the move of partition %d a step makes of %+v %+v", p, was, m)
				}
			},
			"": func(t *rapid.T) {
				now := m.clone()
				was := now.clone()
				if changed := step(now, nobodyDied); changed == reflect.DeepEqual(now, was) {
					t.Fatalf("step says %v about making of %+v %+v", changed, was, now)
				}
				checkStepped(t, now)
				if least, most := extremes(was); !shifted && most-least <= 1 && moves(was) == 0 && !slices.Contains(was.Owner, "") && noneLeaves(was) && !reflect.DeepEqual(now, was) {
					t.Fatalf("a step makes of a balanced map %+v %+v", was, now)
				}
			},
		})
	})
}

func extremes(m *Map) (least, most int) {
	least = m.Partitions
	for _, has := range owned(m, false) {
		least, most = min(least, has), max(most, has)
	}
	return least, most
}

func noneLeaves(m *Map) bool {
	return !slices.ContainsFunc(m.Servers, func(s Server) bool { return s.Leaving })
}

// TestAServerThatGoesBeforeItGotAnythingMovesNothing: what was planned for it stays where it is.
func TestAServerThatGoesBeforeItGotAnythingMovesNothing(t *testing.T) {
	m := newMap(9)
	m.Servers = []Server{{ID: id(1)}, {ID: id(2)}}
	step(m, nobodyDied)
	was := m.clone()
	m.Servers = append(m.Servers, Server{ID: id(3)})
	step(m, nobodyDied)
	if n := moves(m); n != 3 {
		t.Errorf("%d partitions move to the third server, want 3", n)
	}
	step(m, func(server string) bool { return server == id(3) })
	if !reflect.DeepEqual(m, was) {
		t.Errorf("the map is %+v, want that of before, %+v", m, was)
	}
}
