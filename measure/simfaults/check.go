package simfaults

import (
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// recovery is the time after the last fault within which everything must be as it should be.
const recovery = 40 * time.Second

// drained is the time within which a node that is to leave must get empty.
const drained = 30 * time.Second

// ill lists what is not as it should be. It is called when there have been no faults for some time.
func (c *cluster) ill() (what []string) {
	say := func(format string, args ...any) { what = append(what, fmt.Sprintf(format, args...)) }
	o := c.owner()
	if o == nil {
		say("nobody serves")
		return what
	}
	st := o.store.Stats()
	if st.Endangered > 0 {
		say("%d segments of %d have too few copies", st.Endangered, st.Segments)
	}
	for _, p := range st.Places {
		if p.State != "up" || p.Owed > 0 {
			say("%s is %s for %s, and owed %d chunks", p.Name, p.State, o.host, p.Owed)
		}
	}
	if len(st.Places) != len(c.nodes) {
		say("%s knows %d nodes, and there are %d", o.host, len(st.Places), len(c.nodes))
	}
	if age := o.o.Stats().Evidence; age > c.cfg.lease.Seconds()+5 {
		say("%s has no evidence that is younger than %.1f s", o.host, age)
	}
	if m := c.manifest(); m == nil || m.Epoch != o.o.Epoch() {
		say("%s serves, and the manifest has another owner", o.host)
	}
	return what
}

// astray lists what nodes keep beyond the copies that the owner has, and the segments that have too few or too many
// good copies, or copies that share a zone though there are zones enough.
func (c *cluster) astray() (what []string) {
	say := func(format string, args ...any) { what = append(what, fmt.Sprintf(format, args...)) }
	o := c.owner()
	if o == nil {
		say("nobody serves")
		return what
	}
	// Segments come and go: a difference of up to two segments' copies is normal.
	st, chunks := o.store.Stats(), 0
	for _, n := range c.nodes {
		chunks += len(n.chunks)
	}
	if d := chunks - st.Segments*c.cfg.copies - st.Spares; d > 2*c.cfg.copies || d < -2*c.cfg.copies {
		say("nodes keep %d chunks for %d segments of %d copies", chunks, st.Segments, c.cfg.copies)
	}
	could := map[string]bool{}
	for _, n := range c.nodes {
		if !n.leaving {
			could[n.zone] = true
		}
	}
	for _, name := range c.names() {
		zones := map[string]bool{}
		there := 0
		c.goodCopies(name, func(n *node, _ int, _ *chunk) { zones[n.zone] = true; there++ })
		if there != c.cfg.copies {
			say("%s has %d good copies", name, there)
		}
		if there > len(zones) && len(zones) < min(c.cfg.copies, len(could)) {
			say("%s: %d copies in %d zones", name, there, len(zones))
		}
	}
	return what
}

// answered checks that clients have been answered in the last d, at whose beginning the counts were before.
func (c *cluster) answered(before counts, d time.Duration) {
	if c.counts.sets < before.sets+10 || c.counts.gets < before.gets+10 {
		c.dump()
		c.wrong("in %v without faults clients have had %d answers to SETs, and %d to GETs", d, c.counts.sets-before.sets, c.counts.gets-before.gets)
	}
}

// Result is the outcome of a run.
type Result struct {
	Seed  uint64
	Wrong []string      // what was wrong; empty if nothing was
	Sum   uint64        // checksum over all events: equal for two runs that did the same
	Steps uint64        // events
	Time  time.Duration // virtual time that has passed

	Sets, Gets, Unanswered int
	Takeovers, Faults      int
	Checkpoints, Corrupt   int
}

// simulate runs a cluster: 10 s without faults, then faults for the duration trouble, then none. If bug is not empty,
// it names a bug to plant in the harness.
func simulate(seed uint64, trouble time.Duration, bug string, trace func(string)) (res Result) {
	c := newCluster(seed, bug, trace)
	defer c.w.Close()
	defer func() {
		if r := recover(); r != nil {
			c.wrong("panic: %v", r)
			if trace != nil {
				trace(string(debug.Stack()))
			}
			res.Seed, res.Wrong = seed, c.wrongs
		}
	}()
	// until runs the cluster up to virtual time t, a second at a time, so that a run that has gone wrong ends soon.
	until := func(t time.Duration) {
		for c.w.Now() < t && len(c.wrongs) == 0 {
			c.w.Run(min(t, c.w.Now()+time.Second))
		}
	}
	c.w.After(10*time.Second, c.trouble)
	until(10*time.Second + trouble)
	c.heal()
	at := c.w.Now()
	until(at + recovery/2)
	c.damageForGood()
	until(at + recovery - 10*time.Second)
	before := c.counts
	until(at + recovery)
	if len(c.wrongs) == 0 {
		c.answered(before, 10*time.Second)
		// A place may be late at any moment, so a single moment with nothing ill is enough.
		settled := func(within time.Duration, ill func() []string) {
			for end := c.w.Now() + within; len(c.wrongs) == 0 && c.w.Now() < end && len(ill()) > 0; {
				until(min(end, c.w.Now()+100*time.Millisecond))
			}
			for _, what := range ill() {
				c.dump()
				c.wrong("%v after the last fault: %s", (c.w.Now() - at).Round(time.Second), what)
			}
		}
		settled(20*time.Second, c.ill)
		if o := c.owner(); o != nil && o.store.Stats().Lost > 0 {
			c.wrong("%d segments were lost", o.store.Stats().Lost)
		}
		if len(c.wrongs) == 0 { // a node is drained
			n := c.nodes[c.w.Rand.IntN(len(c.nodes))]
			n.leaving = true
			left := func() (what []string) {
				if held := len(n.chunks); held > 0 {
					what = append(what, fmt.Sprintf("%s is to leave, and has %d chunks", n.name, held))
				}
				return what
			}
			settled(drained, func() []string { return append(left(), c.astray()...) })
			// A node that leaves gets copies only where there would be too few otherwise, as when other nodes are
			// late.
			again := 0
			for range 50 {
				until(c.w.Now() + 100*time.Millisecond)
				again += len(left())
			}
			if again > 40 && len(c.nodes) > c.cfg.copies+1 {
				c.dump()
				c.wrong("%s is to leave, and gets copies again and again", n.name)
			}
		}
	}
	k := c.counts
	return Result{
		Seed: seed, Wrong: c.wrongs, Sum: c.w.Sum(), Steps: c.w.Steps(), Time: c.w.Now(),
		Sets: k.sets, Gets: k.gets, Unanswered: k.unanswered, Takeovers: k.takeovers, Faults: k.faults,
		Checkpoints: k.checkpoints, Corrupt: k.corrupt,
	}
}

func (r *Result) String() string {
	how := "all is well"
	if len(r.Wrong) > 0 {
		how = "WRONG: " + strings.Join(r.Wrong, "; ")
	}
	return fmt.Sprintf("seed %d, %v, %d faults, %d takeovers, %d SETs and %d GETs answered, %d not: %s", r.Seed, r.Time, r.Faults, r.Takeovers, r.Sets, r.Gets, r.Unanswered, how)
}

// dump writes the state of the cluster into the trace.
func (c *cluster) dump() {
	for _, name := range c.names() {
		c.w.Note("%s", name)
	}
	for _, n := range c.nodes {
		c.w.Note("%s: up %v, %d chunks of %d, %d links", n.name, n.up, len(n.chunks), n.capacity, len(n.links))
	}
	if o := c.owner(); o != nil {
		c.w.Note("%s: %d segments with values, a checkpoint is being made: %v, the log waits: %v", o.host, len(o.segs), o.pausing, o.log.Starved())
		for _, line := range o.store.Explain() {
			c.w.Note("%s: %s", o.host, line)
		}
	}
}
