package simcrash

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/internal/invariants"
)

// history is what a client has sent.
type history struct {
	states []contents // after none of its operations, after the first one, and so on
	lo, hi int        // so many of them are there, at least and at most
}

// A life is a process from its start to its end, in order, and what could be crashed of it.
type life struct {
	rec *recorder
	// Before it has served, what was there is what is known of the life before; then it has decided.
	before, after []history
}

// histories are those of a crash at an event.
func (l *life) histories(e *event) []history {
	if !e.served {
		return l.before
	}
	hs := slices.Clone(l.after)
	for i := range hs {
		hs[i].lo, hs[i].hi = e.acked[i], e.sent[i]
	}
	return hs
}

// clientName begins the keys of a client.
func clientName(i int) string { return string(rune('a' + i)) }

// live has a process open what is in w, checks what is there, runs so many operations for each client, and closes it.
func live(w *world, cfg setting, before []history, operations int, seed uint64) (l *life, err error) {
	l = &life{rec: newRecorder(w, len(before), seed), before: before}
	l.rec.slow = operations > 20
	p, err := start(l.rec, cfg)
	if err != nil {
		return l, fmt.Errorf("cannot open it: %w", err)
	}
	defer func() {
		err = errors.Join(err, p.close())
		l.rec.mu.Lock()
		defer l.rec.mu.Unlock()
		err = errors.Join(err, l.rec.wrong)
	}()
	began := time.Now()
	got, err := p.dump()
	if err != nil {
		return l, fmt.Errorf("cannot read it: %w", err)
	}
	for i, h := range before {
		n, err := h.find(got[clientName(i)], began, time.Now())
		if err != nil {
			return l, fmt.Errorf("client %s: %w", clientName(i), err)
		}
		l.after = append(l.after, history{states: []contents{h.states[n]}})
	}
	var wg sync.WaitGroup
	errs := make([]error, len(before))
	for i := range before {
		wg.Go(func() { errs[i] = l.run(p, i, operations, seed, len(before) == 1) })
	}
	wg.Wait()
	return l, errors.Join(errs...)
}

// run is a client's life.
func (l *life) run(p *process, i, operations int, seed uint64, solo bool) error {
	h := &l.after[i]
	a := newAuthor(clientName(i), seed, maps.Clone(h.states[0]), solo)
	c := p.dial()
	defer c.close()
	for done := 0; done < operations; {
		var commands [][]string
		var ends []int // of operations, in commands
		for range min(1+a.r.IntN(6), operations-done) {
			commands = append(commands, a.next().commands...)
			ends = append(ends, len(commands))
			h.states = append(h.states, maps.Clone(a.m))
		}
		l.rec.note(i, len(ends), 0)
		sent := c.send(commands)
		at := 0
		for _, end := range ends {
			for ; at < end; at++ {
				reply, err := c.receive()
				if e, ok := reply.(error); ok {
					err = e
				}
				if err != nil {
					return fmt.Errorf("%.80q: %w", commands[at], err)
				}
			}
			l.rec.note(i, 0, 1)
		}
		if err := sent(); err != nil {
			return err
		}
		done += len(ends)
	}
	return nil
}

// dump is what the server has, for each client.
func (p *process) dump() (map[string]contents, error) {
	c := p.dial()
	defer c.close()
	all, err := c.do([]string{"KEYS", "*"}, []string{"DBSIZE"})
	if err != nil {
		return nil, err
	}
	var commands [][]string
	var keys []string
	for _, k := range all[0].([]any) {
		key := k.(string)
		get := "GET"
		if strings.HasPrefix(key[1:], "hash") || strings.HasPrefix(key[1:], "table") {
			get = "HGETALL"
		}
		keys, commands = append(keys, key), append(commands, []string{get, key}, []string{"PEXPIRETIME", key})
	}
	if n := all[1].(int64); n < int64(len(keys)) {
		return nil, fmt.Errorf("there are %d keys, and DBSIZE says %d", len(keys), n)
	}
	replies, err := c.do(commands...)
	if err != nil {
		return nil, err
	}
	got := map[string]contents{}
	for i, key := range keys {
		var v value
		switch r := replies[2*i].(type) {
		case nil:
			continue // it has just expired
		case string:
			v.s = r
		case []any:
			v.fields = map[string]string{}
			for k := 0; k+1 < len(r); k += 2 {
				v.fields[r[k].(string)] = r[k+1].(string)
			}
			if len(v.fields) != len(r)/2 {
				return nil, fmt.Errorf("the hash %s has a field twice", key)
			}
		}
		v.expire = max(replies[2*i+1].(int64), 0)
		if m := got[key[:1]]; m == nil {
			got[key[:1]] = contents{}
		}
		got[key[:1]][key] = v
	}
	return got, nil
}

// find returns how many operations have come to what was read between two moments.
func (h *history) find(got contents, began, ended time.Time) (int, error) {
	for n := h.hi; n >= h.lo; n-- {
		if len(differences(h.states[n], got, began, ended)) == 0 {
			return n, nil
		}
	}
	text := fmt.Sprintf("at least %d operations should be there, at most %d, and it is none of that.", h.lo, h.hi)
	for _, n := range []int{h.lo, h.hi} {
		d := differences(h.states[n], got, began, ended)
		text += fmt.Sprintf("\n    As after %d, but for %d keys: %s", n, len(d), strings.Join(d[:min(len(d), 6)], "; "))
	}
	return 0, errors.New(text)
}

// differences says how got differs from want.
func differences(want, got contents, began, ended time.Time) (d []string) {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		v, g := want[k], got[k]
		_, there := got[k]
		if v.expire != 0 && v.expire <= ended.UnixMilli() {
			if v.expire > began.UnixMilli() && !there {
				continue // it has expired meanwhile
			}
			if v.expire <= began.UnixMilli() {
				if there {
					d = append(d, k+" has expired, and is there")
				}
				continue
			}
		}
		switch {
		case !there:
			d = append(d, fmt.Sprintf("%s is not there, want %s", k, v))
		case v.s != g.s || v.expire != g.expire || !maps.Equal(v.fields, g.fields):
			d = append(d, fmt.Sprintf("%s is %s, want %s", k, g, v))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			d = append(d, fmt.Sprintf("%s is there, %s", k, got[k]))
		}
	}
	return d
}

func (v value) String() string {
	s := fmt.Sprintf("%.14q of %d", v.s, len(v.s))
	if v.fields != nil {
		s = fmt.Sprintf("%d fields", len(v.fields))
	}
	if v.expire != 0 {
		s += fmt.Sprint(" until ", v.expire)
	}
	return s
}

// cursor goes through the events of a life.
type cursor struct {
	l       *life
	at      int       // events that have been
	w       *world    // with all that was done by then
	pending []*change // that were asked for, and not done
}

func (l *life) cursor() *cursor { return &cursor{l: l, w: l.rec.began.fork()} }

// to goes to where k events have been, no less than there were.
func (c *cursor) to(k int) {
	for ; c.at < k; c.at++ {
		e := &c.l.rec.events[c.at]
		switch {
		case e.change == nil:
		case !e.done:
			c.pending = append(c.pending, e.change)
		default:
			c.w.apply(e.change)
			c.pending = slices.DeleteFunc(c.pending, func(p *change) bool { return p == e.change })
		}
	}
}

// event is the last one that has been.
func (c *cursor) event() *event { return &c.l.rec.events[c.at-1] }

// A subset of the changes that were asked for and not done: for each, how much of it there is, in 256ths.
type subset []int

const whole = 256

// subsets are those to be tried.
func (c *cursor) subsets(r *rand.Rand, few bool) (all []subset) {
	n := len(c.pending)
	of := func(f func(i int) int) {
		s := make(subset, n)
		for i := range s {
			s[i] = f(i)
		}
		all = append(all, s)
	}
	none := func(int) int { return 0 }
	every := func(int) int { return whole }
	torn := func(int) int {
		switch r.IntN(3) {
		case 0:
			return 0
		case 1:
			return whole
		}
		return 1 + r.IntN(whole-1)
	}
	switch {
	case n == 0:
		of(none)
	case few:
		of([]func(int) int{none, every, torn}[r.IntN(3)])
	default:
		of(none)
		of(every)
		of(torn)
		for k := range n {
			if n > 1 && n <= 4 {
				of(func(i int) int {
					if i == k {
						return whole
					}
					return 0
				})
			}
		}
	}
	return all
}

// unit is what a transport does not tear, if it is in a row and aligned.
const unit = 8

// crash is what outlives a crash.
func (c *cursor) crash(s subset) *world {
	w := c.w.fork()
	for i, p := range c.pending {
		part := *p
		switch {
		case s[i] == 0:
			continue
		case p.kind == lend: // to somebody who does not know
			id, ok := w.nodes[p.node].free()
			if !ok {
				continue
			}
			w.serial++
			part.id, part.serial = id, w.serial
		case p.kind == write && s[i] < whole:
			part.b = p.b[:len(p.b)*s[i]/whole/unit*unit]
		}
		w.apply(&part)
	}
	return w
}

// say describes a crash.
func (c *cursor) say(s subset) string {
	var b strings.Builder
	fmt.Fprintf(&b, "crashed after %d of %d events", c.at, len(c.l.rec.events))
	if !c.event().served {
		b.WriteString(", while it was opened")
	}
	for i := max(0, c.at-4); i < c.at; i++ {
		if e := &c.l.rec.events[i]; e.change != nil {
			fmt.Fprintf(&b, "\n    %d: %v, done: %v", i, e.change, e.done)
		}
	}
	for i, p := range c.pending {
		fmt.Fprintf(&b, "\n    under way, and %d/256 of it has been done: %v", s[i], p)
	}
	return b.String()
}

// explorer crashes lives.
type explorer struct {
	t    *testing.T
	seed uint64
	cfg  setting
	r    *rand.Rand

	points, recoveries, failed int
}

// mostFailed is how many failures are enough.
const mostFailed = 2

// A branch is a life, and how it has come to it.
type branch struct {
	*life
	path []string // crashes, the last one last
	lost bool     // a node has lost its memory in one of them
}

// crash opens what is left of a crash where c is in b. It returns nil if that has failed.
func (x *explorer) crash(b *branch, c *cursor, s subset, operations int) *branch {
	w := c.crash(s)
	next := &branch{path: append(slices.Clip(b.path), c.say(s)), lost: b.lost}
	if x.cfg.copies > 1 && x.cfg.nodes > 1 && !b.lost && x.r.IntN(3) == 0 {
		n := x.r.IntN(x.cfg.nodes)
		w.lose(n)
		next.lost = true
		next.path = append(next.path, fmt.Sprintf("  and node %d has lost its memory", n))
	}
	x.recoveries++
	var err error
	if next.life, err = live(w, x.cfg, b.histories(c.event()), operations, x.r.Uint64()); err != nil {
		x.failed++
		x.t.Errorf("seed %d, %+v:\n%s\n  then: %v", x.seed, x.cfg, strings.Join(next.path, "\n"), err)
		return nil
	}
	return next
}

// again crashes what was recovered, and what is recovered of that, at some points.
func (x *explorer) again(b *branch, depth int) {
	for ; b != nil && depth > 0; depth-- {
		c := b.cursor()
		c.to(1 + x.r.IntN(len(b.rec.events)))
		x.points++
		b = x.crash(b, c, c.subsets(x.r, true)[0], 4)
	}
}

// throughout crashes a recovery at each of its events, or one of so many.
func (x *explorer) throughout(b *branch, every int) {
	c := b.cursor()
	for k := 1 + x.r.IntN(every); k <= len(b.rec.events) && !b.rec.events[k-1].served && x.failed < mostFailed; k += every {
		c.to(k)
		x.points++
		for _, s := range c.subsets(x.r, every > 1) {
			x.crash(b, c, s, 2)
		}
	}
}

// How much is tried of a script.
type effort struct {
	operations int     // of all clients
	share      float64 // of the crash points,
	near       float64 // and of those that are near what matters, with several subsets each
	recoveries int     // in which there is a crash throughout,
	every      int     // at one of so many events
}

// explore runs a script and crashes it.
func explore(t *testing.T, seed uint64, cfg setting, clients int, e effort) {
	x := &explorer{t: t, cfg: cfg, seed: seed, r: rand.New(rand.NewPCG(12, seed))}
	began := time.Now()
	before := make([]history, clients)
	for i := range before {
		before[i].states = []contents{{}}
	}
	l, err := live(newWorld(cfg.nodes), cfg, before, e.operations/clients, seed)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	root, ran := &branch{life: l}, time.Since(began)
	events := l.rec.events
	near := make([]bool, len(events)+1)
	var kinds [4]int
	for i, e := range events {
		if e.change != nil && e.done {
			kinds[e.change.kind]++
		}
		if e.change != nil && e.change.kind == swap {
			for k := max(1, i-1); k < min(i+3, len(near)); k++ {
				near[k] = true
			}
		}
	}
	throughout := map[int]bool{}
	for range e.recoveries {
		throughout[1+x.r.IntN(len(events))] = true
	}
	c := root.cursor()
	for k := 1; k <= len(events) && x.failed < mostFailed; k++ {
		c.to(k)
		// Somebody was told of something while something else was under way.
		close := near[k] || len(c.pending) > 0 && k > 1 && events[k-1].change == nil && !slices.Equal(events[k-1].acked, events[k-2].acked)
		few := !close || x.r.Float64() >= e.near
		if few && x.r.Float64() >= e.share && !throughout[k] {
			continue
		}
		x.points++
		for _, s := range c.subsets(x.r, few) {
			next := x.crash(root, c, s, 6)
			switch {
			case next == nil:
			case throughout[k]:
				throughout[k] = false
				x.throughout(next, e.every)
			case x.r.IntN(3) == 0:
				x.again(next, 2)
			}
		}
	}
	took := time.Since(began)
	t.Logf("seed %d, %+v, %d clients: %d events (%d chunks lent, %d writes, %d given back, %d changes of the register) in %v; %d crash points, %d recoveries in %v, %.0f and %.0f a second",
		seed, cfg, clients, len(events), kinds[lend], kinds[write], kinds[giveBack], kinds[swap], ran.Round(time.Millisecond),
		x.points, x.recoveries, took.Round(time.Millisecond), float64(x.points)/took.Seconds(), float64(x.recoveries)/took.Seconds())
}

// scripts are what is crashed.
var scripts = []struct {
	name    string
	cfg     setting
	clients int
}{
	{"one copy", setting{nodes: 1, copies: 1}, 1},
	{"two copies", setting{nodes: 2, copies: 2}, 1},
	{"more nodes than copies, and two clients", setting{nodes: 3, copies: 2, fenced: true}, 2},
	{"fewer nodes than copies, and two clients", setting{nodes: 1, copies: 2}, 2},
}

// TestEveryCrashIsRecoveredFrom: what is left of a durable server after a crash, at any point and in any way, is all that was acknowledged, each other operation
// wholly or not at all, and nothing else; of a crash of the recovery, too. With TEST_SOAK it goes on for so long with other scripts, of which it tries
// each crash point.
func TestEveryCrashIsRecoveredFrom(t *testing.T) {
	e := effort{operations: 200, share: 0.015, near: 0.05, recoveries: 1, every: 6}
	if invariants.Enabled {
		e.share, e.near, e.every = e.share/4, e.near/4, 4*e.every
	}
	exploreAll(t, 1, e)
	soak, _ := time.ParseDuration(os.Getenv("TEST_SOAK")) // 0 if it is none
	began := time.Now()
	for seed := uint64(100); time.Since(began) < soak && !t.Failed(); seed += uint64(len(scripts)) {
		exploreAll(t, seed, effort{operations: 60, share: 1, near: 1, recoveries: 4, every: 1})
	}
}

// exploreAll runs and crashes all scripts, with seeds from one on.
func exploreAll(t *testing.T, seed uint64, e effort) {
	t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
		for i, s := range scripts {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				explore(t, seed+uint64(i), s.cfg, s.clients, e)
			})
		}
	})
}
