package finemem_test

import (
	"encoding/binary"
	"hash/fnv"
	"iter"
	"slices"
	"testing"
	"time"
)

// An explorer runs a small world again and again until every order in which its
// actors can take their steps has been tried, and, before every step, a crash of the
// actor whose step it is. States that have been seen are not gone on from again: an
// actor's state is a function of what its steps have brought, so the world's memory
// and a hash of that, for every actor, are all that a future depends on.
type explorer struct {
	seen   map[uint64]bool
	todo   [][]uint8 // prefixes of choices
	prefix []uint8
	at     int

	runs    int // of worlds, each up to a state that has been seen
	ends    int // worlds that came to their end
	crashes int // steps before which an actor has crashed
	late    int // flushes that another client had made before
	hints   int // ends in which a section called a span full that was not, or the reverse
}

// choose returns which of n possibilities comes next in a world in a state, or -1 if
// the state has been seen.
func (e *explorer) choose(state func() uint64, n int) int {
	if e.at < len(e.prefix) {
		e.at++
		return int(e.prefix[e.at-1])
	}
	now := state()
	if e.seen[now] {
		return -1
	}
	e.seen[now] = true
	for i := n - 1; i > 0; i-- {
		e.todo = append(e.todo, append(slices.Clone(e.prefix), uint8(i)))
	}
	e.prefix = append(e.prefix, 0)
	e.at++
	return 0
}

// explore runs worlds that build makes until everything has been tried, or until a
// time, if there is one.
func explore(t *testing.T, until time.Time, build func() *world) *explorer {
	t.Helper()
	e := &explorer{seen: make(map[uint64]bool), todo: [][]uint8{nil}}
	for len(e.todo) > 0 && !t.Failed() {
		if !until.IsZero() && time.Now().After(until) {
			t.Logf("not explored to its end, with %d prefixes left: the time is over", len(e.todo))
			return e
		}
		e.prefix, e.at = e.todo[len(e.todo)-1], 0
		e.todo = e.todo[:len(e.todo)-1]
		build().run(t, e)
		e.runs++
	}
	return e
}

// An actor is a process of a world: ordinary code that gives others their turn
// before every step.
type actor struct {
	name string
	user uint16 // that may crash; 0 for the node
	over bool
	at   string      // the step that comes next
	when func() bool // it comes no sooner, if set

	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	past  uint64 // hash of what its steps have brought
}

// killed is what an actor's code panics with when it is stopped.
type killed struct{}

func newActor(name string, user uint16, f func(a *actor)) *actor {
	a := &actor{name: name, user: user, at: "start"}
	a.next, a.stop = iter.Pull(func(yield func(struct{}) bool) {
		a.yield = yield
		defer func() {
			if r := recover(); r != nil && r != any(killed{}) {
				panic(r)
			}
		}()
		f(a)
	})
	return a
}

// step gives others their turn before what is called at.
func (a *actor) step(at string) {
	a.at = at
	if !a.yield(struct{}{}) {
		panic(killed{})
	}
}

// wait gives others their turn until cond holds.
func (a *actor) wait(at string, cond func() bool) {
	a.when = cond
	a.step(at)
	a.when = nil
}

// learn notes what a step has brought.
func (a *actor) learn(words ...uint64) {
	h := fnv.New64a()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], a.past)
	h.Write(b[:])
	for _, w := range words {
		binary.LittleEndian.PutUint64(b[:], w)
		h.Write(b[:])
	}
	a.past = h.Sum64()
}

// ready reports whether the actor can take its next step.
func (a *actor) ready() bool { return !a.over && (a.when == nil || a.when()) }

// turn has the actor go on until its next step.
func (a *actor) turn() {
	if _, on := a.next(); !on {
		a.over = true
	}
}

// crash stops the actor for good, before its next step.
func (a *actor) crash() {
	a.over = true
	a.stop()
}
