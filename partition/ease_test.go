package partition

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"polder/internal/invariants"
)

// model is a map whose partitions have loads, and of which two members go by turns at what must be done. Moves take a few beats. There is nothing in
// it that is slow or fails: see sim_test for that.
type model struct {
	t       *testing.T
	rng     *rand.Rand
	m       *Map
	spent   []time.Duration // by the partition's owner
	meters  []meter
	members [2]*Member
	due     int // beats until the move that is planned is made
	beats   int
	moves   []moved
}

type moved struct{ beat, p int }

func newModel(t *testing.T, rng *rand.Rand, servers, partitions int) *model {
	w := &model{t: t, rng: rng, m: newMap(partitions), spent: make([]time.Duration, partitions), meters: make([]meter, partitions)}
	for i := range servers {
		w.m.Servers = append(w.m.Servers, Server{ID: id(i)})
	}
	for i := range w.members {
		w.members[i] = &Member{cfg: Config{Beat: time.Second}, moved: map[int]time.Time{}}
	}
	step(w.m, nobodyDied)
	return w
}

// run has a number of beats pass. Load is how much of a second a partition takes in one.
func (w *model) run(beats int, load func(beat, p int) float64) {
	w.t.Helper()
	for range beats {
		time.Sleep(time.Second)
		w.beats++
		was := w.m.clone()
		for p := range w.spent {
			w.spent[p] += time.Duration(load(w.beats, p) * float64(time.Second))
			w.meters[p].read(time.Now(), w.spent[p], smoothBeats*time.Second)
			if time.Since(w.meters[p].since) >= smoothBeats*time.Second {
				w.m.Load[p] = w.m.Load[p].at(time.Duration(w.meters[p].rate * float64(time.Second)))
			}
		}
		if p := slices.IndexFunc(w.m.Next, func(next string) bool { return next != "" }); p < 0 {
			w.members[w.rng.IntN(2)].ease(w.m)
			w.due = 1 + w.rng.IntN(5)
		} else if w.due--; w.due < 0 {
			w.m.Owner[p], w.m.Next[p] = w.m.Next[p], ""
			w.spent[p], w.meters[p] = 0, meter{}
			for _, earlier := range w.moves {
				if earlier.p == p && w.beats-earlier.beat < stayBeats {
					w.t.Errorf("partition %d moves in beats %d and %d", p, earlier.beat, w.beats)
				}
			}
			w.moves = append(w.moves, moved{w.beats, p})
		}
		planned := w.m.clone()
		if step(w.m, nobodyDied) {
			w.t.Fatalf("in beat %d a step makes of %+v %+v", w.beats, planned, w.m)
		}
		if n := moves(w.m); n > 1 {
			w.t.Errorf("in beat %d there are %d moves at a time", w.beats, n)
		}
		for _, member := range w.members {
			member.watch(was, w.m, time.Now())
		}
	}
}

// greatest is what the server has to do that has most to do.
func (w *model) greatest(load func(p int) float64) float64 {
	sums := map[string]float64{}
	for p, owner := range w.m.Owner {
		sums[owner] += load(p)
	}
	most := 0.0
	for _, sum := range sums {
		most = max(most, sum)
	}
	return most
}

// greedy is greatest if the partitions are dealt out anew, the greatest one first, each to the server that has least to do.
func (w *model) greedy(load func(p int) float64) float64 {
	list := make([]float64, w.m.Partitions)
	for p := range list {
		list[p] = load(p)
	}
	slices.Sort(list)
	sums := make([]float64, len(w.m.Servers))
	for _, l := range slices.Backward(list) {
		slices.Sort(sums)
		sums[0] += l
	}
	return slices.Max(sums)
}

// loads are some to begin with, in parts of a second, which sum to total.
func loads(total float64, n int, load func(p int) float64) []float64 {
	list, sum := make([]float64, n), 0.0
	for p := range list {
		list[p] = load(p)
		sum += list[p]
	}
	for p := range list {
		list[p] *= total / sum
	}
	return list
}

// TestServersShareLoadAndNothingFlaps: there are few moves, and in the end the busiest server has little more to do than if all had been dealt out anew.
func TestServersShareLoadAndNothingFlaps(t *testing.T) {
	const beats = 900
	seeds := 8
	if invariants.Enabled { // "make plain" has them all
		seeds = 4
	}
	for name, kind := range map[string]struct {
		load  func(rng *rand.Rand, partitions, p int) float64
		noise float64 // from beat to beat
		drift float64 // of what stays, in each beat
	}{
		"stationary": {load: func(rng *rand.Rand, _, _ int) float64 { return math.Exp(rng.NormFloat64()) }},
		"noisy":      {load: func(rng *rand.Rand, _, _ int) float64 { return math.Exp(rng.NormFloat64()) }, noise: 0.3},
		"drifting":   {load: func(rng *rand.Rand, _, _ int) float64 { return math.Exp(rng.NormFloat64()) }, drift: 0.005},
		"bimodal":    {load: func(rng *rand.Rand, _, _ int) float64 { return float64(1 + 19*rng.IntN(2)) }, noise: 0.1},
		"adjacent": {load: func(_ *rand.Rand, partitions, p int) float64 {
			if p < partitions/2 {
				return 4
			}
			return 1
		}},
		"one hot": {load: func(_ *rand.Rand, partitions, p int) float64 {
			if p == 0 {
				return float64(partitions)
			}
			return 1
		}, noise: 0.1},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := 0.0, 0.0
			for seed := range uint64(seeds) {
				synctest.Test(t, func(t *testing.T) {
					rng := rand.New(rand.NewPCG(seed, 1))
					servers := 2 + rng.IntN(4)
					partitions := servers * (2 + rng.IntN(8))
					now := loads(0.4*float64(servers), partitions, func(p int) float64 { return kind.load(rng, partitions, p) })
					w := newModel(t, rng, servers, partitions)
					load := func(p int) float64 { return now[p] }
					before += w.greatest(load) / w.greedy(load) / float64(seeds)
					w.run(beats, func(_, p int) float64 {
						now[p] *= math.Exp(kind.drift * rng.NormFloat64())
						return now[p] * max(0, 1+kind.noise*rng.NormFloat64())
					})
					end := w.greatest(load) / w.greedy(load)
					after += end / float64(seeds)
					if end > 1.5 {
						t.Errorf("seed %d: in the end the busiest of %d servers has %.2f times as much to do as it could have", seed, servers, end)
					}
					last := 0
					if n := len(w.moves); n > 0 {
						last = w.moves[n-1].beat
					}
					if n := len(w.moves); n > partitions/2+1 {
						t.Errorf("seed %d: %d partitions of %d move: %v", seed, n, partitions, w.moves)
					} else if last > beats/2 && kind.noise+kind.drift == 0 {
						t.Errorf("seed %d: the last move is in beat %d, want all of them in the first half of %d", seed, last, beats)
					}
				})
			}
			if after > 1.12 {
				t.Errorf("in the end the busiest server has %.2f times as much to do as it could have, on average; at first it was %.2f times", after, before)
			}
			t.Logf("the busiest server has %.2f times as much to do as it could have; at first it was %.2f times", after, before)
		})
	}
}

// TestNothingMovesWithoutNeed: load that is shared already, that is little, that comes and goes in turns, or that one partition has, which cannot be divided.
func TestNothingMovesWithoutNeed(t *testing.T) {
	for name, load := range map[string]func(beat, p int) float64{
		"as much everywhere":  func(_, p int) float64 { return 0.1 },
		"nearly as much":      func(_, p int) float64 { return 0.1 + 0.02*float64(p%2) }, // of which each server has some
		"one server has more": func(_, p int) float64 { return 0.1 - 0.02*float64(p/8) },
		"little":              func(_, p int) float64 { return 0.002 * float64(1-p/8) },
		"one hot":             func(_, p int) float64 { return 0.005 + 0.8*float64(1-min(p, 1)) },
		"by turns":            func(beat, p int) float64 { return 0.1 * float64((beat/10+p/8)%2) },
		"for a moment": func(beat, p int) float64 {
			if beat%300 > 200 && beat%300 < 220 && p < 8 {
				return 0.2
			}
			return 0.1
		},
		"nothing": func(int, int) float64 { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newModel(t, rand.New(rand.NewPCG(1, 1)), 2, 16)
				for p := range w.m.Owner {
					w.m.Owner[p] = id(p / 8)
				}
				w.run(900, load)
				if len(w.moves) > 0 {
					t.Errorf("partitions move in these beats: %v", w.moves)
				}
			})
		})
	}
}

// TestAMoveWaitsUntilLoadHasShownItself: for as long as it takes to smooth it and to watch it, and no longer.
func TestAMoveWaitsUntilLoadHasShownItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newModel(t, rand.New(rand.NewPCG(1, 1)), 2, 4)
		for p := range w.m.Owner {
			w.m.Owner[p] = id(p / 2)
		}
		w.run(200, func(_, p int) float64 { return 0.3 * float64(1-p/2) })
		if len(w.moves) != 1 || w.moves[0].beat < smoothBeats+watchBeats || w.moves[0].beat > 2*(smoothBeats+watchBeats) {
			t.Errorf("the moves are %v, want one after %d beats", w.moves, smoothBeats+watchBeats)
		}
		if got := owned(w.m, true); got[id(0)] != 1 || got[id(1)] != 3 {
			t.Errorf("the servers have %v partitions, want 1 and 3", got)
		}
		was := w.m.clone()
		w.run(300, func(_, p int) float64 { return 0 })
		if !w.m.sameOwners(was) {
			t.Errorf("when there is nothing to do any more the owners %v become %v", was.Owner, w.m.Owner)
		}
	})
}

// TestNothingMovesBecauseOfLoadThatNobodyHasSaid, as it is beside a server of another version, which drops what it does not know.
func TestNothingMovesBecauseOfLoadThatNobodyHasSaid(t *testing.T) {
	always, never := func(string) bool { return true }, func(int) bool { return false }
	m := newMap(4)
	m.Servers = []Server{{ID: id(0)}, {ID: id(1)}}
	m.Owner = []string{id(0), id(0), id(1), id(1)}
	busy := idle.at(time.Second)
	m.Load = []Level{busy, busy, idle, idle}
	for name, spoil := range map[string]func(m *Map){
		"a load is unknown":     func(m *Map) { m.Load[3] = unknown },
		"a partition has none":  func(m *Map) { m.Owner[3] = "" },
		"a partition moves":     func(m *Map) { m.Next[3] = id(0) },
		"a server leaves":       func(m *Map) { m.Servers[1].Leaving = true },
		"what is busy stays":    nil,
		"the server has but it": func(m *Map) { m.Owner[1] = id(1) },
	} {
		spoiled, stays := m.clone(), never
		if spoil == nil {
			stays = func(p int) bool { return p < 2 }
		} else {
			spoil(spoiled)
		}
		was := spoiled.clone()
		if ease(spoiled, always, stays) || !slices.Equal(spoiled.Next, was.Next) {
			t.Errorf("%s: the next owners are %v", name, spoiled.Next)
		}
	}
	if ease(m.clone(), func(string) bool { return false }, never) {
		t.Error("a partition moves although the load was not watched")
	}
	if !ease(m, always, never) || !slices.Equal(m.Next, []string{id(1), "", "", ""}) || m.Servers[0].Extra != -1 || m.Servers[1].Extra != 1 {
		t.Errorf("the next owners are %v, of %+v", m.Next, m.Servers)
	}
	if was := m.clone(); step(m, nobodyDied) {
		t.Errorf("a step makes of %+v %+v", was, m)
	}
}

func TestLevelsAreCloseToTheTime(t *testing.T) {
	last := Level(idle)
	for d := time.Microsecond; d < 4*time.Minute; d = d*21/20 + 1 {
		l := unknown.at(d)
		if l < last {
			t.Errorf("%v is level %d, want %d or more", d, l, last)
		}
		if last = l; d < leastTime {
			continue
		}
		if off := math.Abs(float64(l.Time())/float64(d) - 1); off > 0.03 && l < math.MaxUint8 {
			t.Errorf("%v is level %d, which is %v", d, l, l.Time())
		}
		if l.at(d*9/10) != l || l.at(d*11/10) != l {
			t.Errorf("level %d becomes %d and %d with a tenth less and more", l, l.at(d*9/10), l.at(d*11/10))
		}
		if l.at(d*6/5) <= l && l < math.MaxUint8-3 || l.at(d*4/5) >= l && d > 2*leastTime {
			t.Errorf("level %d becomes %d and %d with a fifth less and more", l, l.at(d*4/5), l.at(d*6/5))
		}
	}
	if last != math.MaxUint8 || idle.at(0) != idle || unknown.at(0) != idle || unknown.Time() != 0 || idle.Time() != 0 {
		t.Errorf("the greatest level is %d, and no time is %d", last, unknown.at(0))
	}
}

// TestServersMoveWhatIsBusy, and a server that dies or comes afterwards is no reason to move all of it back.
func TestServersMoveWhatIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.load = func(p int) float64 { return 0.2 * float64(1-p/4) }
		a := w.start(1, 8)
		w.until("the first server has all", a.serves(0, 1, 2, 3, 4, 5, 6, 7))
		b := w.start(2, 8)
		w.until("each server has half", func() bool { least, most := extremes(w.now()); return least == 4 && most == 4 && moves(w.now()) == 0 })
		busy := func() (n int) {
			for p := range 4 {
				if w.now().Owner[p] == a.id {
					n++
				}
			}
			return n
		}
		w.put(func(m *Map) { // the worst case
			for p := range m.Owner {
				m.Owner[p], m.Next[p] = m.Servers[p/4].ID, ""
			}
		})
		w.until("the busy partitions are shared", func() bool { return busy() == 2 && moves(w.now()) == 0 })
		settled := w.now()
		time.Sleep(10 * time.Minute)
		if now := w.now(); now.Epoch != settled.Epoch || owned(now, true)[a.id] != 2 {
			t.Errorf("the owners %v become %v", settled.Owner, now.Owner)
		}
		b.kill()
		w.until("the first server has all again", a.serves(0, 1, 2, 3, 4, 5, 6, 7))
		c := w.start(3, 8)
		w.until("the busy partitions are shared again", func() bool { return busy() == 2 && moves(w.now()) == 0 })
		for _, h := range []*host{c, a} {
			h.leave()
		}
	})
}

// TestBesideAnOldServerNumbersAreBalanced: it drops loads whenever it beats, and what load has shifted.
func TestBesideAnOldServerNumbersAreBalanced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.load = func(p int) float64 { return 0.2 * float64(1-p/4) }
		a, b := w.start(1, 8), w.start(2, 8)
		w.until("load is known", func() bool { return w.now().burdens() != nil })
		old := w.host(3)
		old.old = true
		if err := old.join(8); err != nil {
			t.Fatal(err)
		}
		even := func() bool { least, most := extremes(w.now()); return least == 2 && most == 3 && moves(w.now()) == 0 }
		w.until("the numbers are balanced", even)
		settled := w.now()
		time.Sleep(10 * time.Minute)
		if now := w.now(); now.Epoch != settled.Epoch || !even() {
			t.Errorf("beside an old server the owners %v become %v", settled.Owner, now.Owner)
		}
		old.leave()
		w.until("all moves because of load again", func() bool { return slices.ContainsFunc(w.now().Servers, func(s Server) bool { return s.Extra != 0 }) })
		for _, h := range []*host{a, b} {
			h.leave()
		}
	})
}

// TestAfterAMoveLoadIsWatchedAnew, also by a server that has not seen the plan but only that the partition has another owner.
func TestAfterAMoveLoadIsWatchedAnew(t *testing.T) {
	busy := idle.at(100 * time.Millisecond)
	was := newMap(8)
	was.Servers = []Server{{ID: id(0)}, {ID: id(1)}}
	for p := range was.Owner {
		was.Owner[p], was.Load[p] = id(0), busy
	}
	was.Owner[7] = id(1)
	now := was.clone()
	now.Owner[6] = id(1)
	m := &Member{moved: map[int]time.Time{}}
	at := time.Now()
	m.watch(nil, was, at)
	m.watch(was, was, at.Add(time.Second))
	if since := m.pressed[id(0)]; since != at || len(m.pressed) != 1 {
		t.Errorf("servers have too much since %v, want the first since %v", m.pressed, at)
	}
	m.watch(was, now, at.Add(2*time.Second))
	if since, want := m.pressed[id(0)], at.Add(2*time.Second); since != want {
		t.Errorf("after a move the first server has too much since %v, want %v", since, want)
	}
	if m.moved[5] != at || m.moved[6] != at.Add(2*time.Second) {
		t.Errorf("partitions have their owners since %v", m.moved)
	}
}

// TestLoadIsSaidWhenItIsKnown, which takes 30 beats, also after a move: until then what the owner before has said holds.
func TestLoadIsSaidWhenItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		often := 1.0
		w.load = func(int) float64 { return 0.1 * often }
		a := w.start(1, 2)
		w.until("all is open", a.serves(0, 1))
		time.Sleep(25 * time.Second)
		if got := w.now().Load; got[0] != unknown {
			t.Errorf("after 25 beats the loads are %v, want none", got)
		}
		time.Sleep(10 * time.Second)
		want := idle.at(100 * time.Millisecond)
		if got := w.now().Load; got[0] != want || got[1] != want {
			t.Errorf("after 35 beats the loads are %v, want %d", got, want)
		}
		b := w.start(2, 2)
		w.until("each server has one", b.serves(0))
		w.mu.Lock()
		often = 4
		w.mu.Unlock()
		time.Sleep(25 * time.Second)
		if got := w.now().Load; got[0] != want || got[1] <= want {
			t.Errorf("25 beats after a move the loads are %v, want %d and more", got, want)
		}
		time.Sleep(10 * time.Second)
		if got, more := w.now().Load, idle.at(400*time.Millisecond); got[0] != more {
			t.Errorf("35 beats after a move the loads are %v, want %d at first", got, more)
		}
		b.leave()
		a.leave()
	})
}

func TestAMeterSmoothsAndBeginsAnew(t *testing.T) {
	var r meter
	now, spent := time.Now(), time.Duration(0)
	read := func(beats int, each time.Duration) {
		for range beats {
			now, spent = now.Add(time.Second), spent+each
			r.read(now, spent, 30*time.Second)
			r.read(now, spent, 30*time.Second) // a beat that had to be repeated
		}
	}
	near := func(want float64) {
		t.Helper()
		if math.Abs(r.rate-want) > 0.02 {
			t.Errorf("the rate is %.3f, want %.3f", r.rate, want)
		}
	}
	read(5, 500*time.Millisecond)
	near(0.5)
	read(25, 500*time.Millisecond)
	near(0.5)
	read(1, 2*time.Second)
	near(0.55)
	read(60, 0)
	near(0.08)
	spent = 0
	read(1, 10*time.Second)
	read(1, 300*time.Millisecond)
	near(0.3)
}
