package simfaults

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A mistake is a bug that is planted: in the product, by another text for one of its lines, in which BUG stands for the
// condition that this is the bug of the day; or in what surrounds it, which looks for its name.
type mistake struct {
	name    string
	file    string // of the product
	was, is string
	seed    uint64 // it has to be found by mostSeeds from this one on
	soon    bool   // it is looked for in each run of the tests, and not only with TEST_SOAK
}

// mistakes are those of the model of the protocol, as far as what they break has been built, and others.
var mistakes = []mistake{
	// Of the model.
	{soon: true, name: "acknowledge-first-copy", file: "far/copies/segment.go", was: "	if err == nil {\n		g.acked", is: "	if err == nil || BUG && wrote > 0 {\n		g.acked"},
	{soon: true, name: "a record counts before it is written", file: "far/named/log.go", was: "	err := l.writeTo(seg, b, at)\n", is: "	if BUG {\n		l.kept = last\n		l.changed.Broadcast()\n	}\n	err := l.writeTo(seg, b, at)\n"},
	{soon: true, name: "drop-without-manifest", file: "far/copies/segment.go", was: "		g.seal()\n		g.mu.Unlock()\n		return store.ErrSealed\n	}\n", is: "		if !BUG {\n			g.seal()\n			g.mu.Unlock()\n			return store.ErrSealed\n		}\n		cs = slices.DeleteFunc(slices.Clone(cs), func(c copyOf) bool { return !c.place.usable() || c.lost() })\n	}\n"},
	{soon: true, name: "only the first segment of the log is read", file: "far/named/keeper.go", was: "	for _, t := range s.o.first.Tail {", is: "	for i, t := range s.o.first.Tail {\n		if BUG && i > 0 {\n			break\n		}"},
	{soon: true, name: "free-before-manifest", file: "far/copies/keep.go", was: "	if k := s.cfg.Keep; k != nil {", is: "	if BUG {\n		for _, c := range old {\n			c.place.giveBack(c.seg)\n		}\n		old = nil\n	}\n	if k := s.cfg.Keep; k != nil {"},
	{soon: true, name: "no-lease-wait", file: "far/named/owner.go", was: "			o.until = o.cfg.now() + m.Lease + m.Lease/20", is: "			if !BUG {\n				o.until = o.cfg.now() + m.Lease + m.Lease/20\n			}"},
	{seed: 15, name: "lease-from-reply", file: "far/named/owner.go", was: "	o.m, o.version, o.unsure = m, version, false\n", is: "	o.m, o.version, o.unsure = m, version, false\n	if BUG {\n		asked = o.cfg.now()\n	}\n"},
	{name: "answer-before-fence"},
	{name: "trust-returning-node"},
	{seed: 120, name: "warm-node-forgets-fence"},
	{soon: true, name: "node-frees-young-copies"},
	{soon: true, name: "serve-before-decision"},
	{soon: true, name: "look-before-reading"},
	{soon: true, name: "remove-before-durable"},
	{seed: 7, name: "show-what-does-not-count"},

	// Others.
	{soon: true, name: "one of the writes that were begun together is enough", file: "far/copies/segment.go", was: "	if allLanded(flights[:len(cs)]) {\n		for i, c := range cs {\n			err = cmp.Or(err, flights[i].End(ctx))\n", is: "	if allLanded(flights[:len(cs)]) || BUG && flights[0] != nil && flights[0].Landed() {\n		for i, c := range cs {\n			if !BUG {\n				err = cmp.Or(err, flights[i].End(ctx))\n			}\n"},
	{soon: true, name: "nobody is told where copies have moved", file: "far/copies/keep.go", was: "if k := s.cfg.Keep; k != nil {\n		if err", is: "if k := s.cfg.Keep; k != nil && !BUG {\n		if err"},
	{soon: true, name: "half of a segment is copied", file: "far/copies/repair.go", was: "	waiting := g.waiting()\n", is: "	if BUG {\n		end /= 2\n	}\n	waiting := g.waiting()\n"},
	{name: "what has one copy too few is not repaired", file: "far/copies/repair.go", was: "		case len(had) < want ||", is: "		case BUG && len(had) == want-1:\n		case len(had) < want ||"},
	{seed: 1, name: "chunks that cannot be given back are forgotten", file: "far/copies/place.go", was: "	p.owed = append(p.owed, segs...)", is: "	if BUG {\n		return\n	}\n	p.owed = append(p.owed, segs...)"},
	{soon: true, name: "what is owed is given back and stays owed", file: "far/copies/place.go", was: "	p.owed = nil\n	p.mu.Unlock()\n", is: "	if !BUG {\n		p.owed = nil\n	}\n	p.mu.Unlock()\n"},
	{name: "a place that was silent stays so", file: "far/copies/place.go", was: "				p.speaks()\n				return\n", is: "				if !BUG {\n					p.speaks()\n				}\n				return\n"},
	{seed: 1, name: "the good copy is replaced instead of the bad one", file: "far/copies/judge.go", was: "		case len(patches[c]) == 0 ||", is: "		case BUG && len(patches[c]) > 0 && len(whole) > 0:\n			g.condemn(whole[0], []copyOf{c}, rewound)\n		case len(patches[c]) == 0 ||"},
	{soon: true, name: "copies of one segment share a zone", file: "far/copies/copies.go", was: "		elsewhere := round.elsewhere // first only in zones that have no copy yet\n", is: "		elsewhere := round.elsewhere && !BUG\n"},
	{seed: 12, name: "zones are not set right again", file: "far/copies/repair.go", was: "len(zones) < len(had) && !zones[p.zone()]):", is: "!BUG && len(zones) < len(had) && !zones[p.zone()]):"},
	{name: "who leaves is given new copies", file: "far/copies/copies.go", was: "			if p.state().Leaving != round.leaving ||", is: "			if p.state().Leaving != round.leaving && !BUG ||"},
	{name: "who leaves keeps what it has", file: "far/copies/repair.go", was: "		if c.place.stays() {\n			stay++", is: "		if c.place.stays() || BUG {\n			stay++"},
	{name: "evidence is good for ever", file: "far/named/owner.go", was: "< o.cfg.Lease { // fast path", is: "< o.cfg.Lease || BUG { // fast path"},
	{soon: true, name: "an owner does not see that there is another one", file: "far/named/owner.go", was: "	if m.Epoch != o.epoch || m.Nonce != o.nonce {\n		return o.supersede(m)", is: "	if (m.Epoch != o.epoch || m.Nonce != o.nonce) && !BUG {\n		return o.supersede(m)"},
	{soon: true, name: "the epoch is not raised", file: "far/named/owner.go", was: "= m.Epoch+1, o.nonce,", is: "= m.Epoch+map[bool]uint64{false: 1}[BUG && m.Epoch > 0], o.nonce,"},
	{name: "moves are forgotten", file: "far/named/keeper.go", was: "Names: o.first.clone().Moved,", is: "Names: map[bool]map[uint64]string{false: o.first.clone().Moved}[BUG],"},
	{seed: 2, name: "moves are forgotten one root too early", file: "far/named/keeper.go", was: "			if n-v.since[number] >= rootsToForget {", is: "			if n-v.since[number] >= rootsToForget || BUG {"},
	{soon: true, name: "records of a write that failed are dropped", file: "far/named/log.go", was: "		u.off = l.s.SegmentSize()\n", is: "		u.off = l.s.SegmentSize()\n		if BUG {\n			l.frames, l.kept = slices.Delete(l.frames, 0, n), last\n		}\n"},
	{soon: true, name: "the log is written before the manifest lists it", file: "far/named/log.go", was: "	if err := l.publish(ctx); err != nil {\n		return err\n	}\n	if none", is: "	if BUG {\n		l.mu.Lock()\n		l.spares, l.fresh = append(l.spares, l.fresh...), nil\n		l.changed.Broadcast()\n		l.mu.Unlock()\n	}\n	if err := l.publish(ctx); err != nil {\n		return err\n	}\n	if none"},
	{soon: true, name: "the log is given back before the manifest forgets it", file: "far/named/log.go", was: "	l.gone = append(l.gone, l.used[:n]...)", is: "	if BUG {\n		for _, u := range l.used[:n] {\n			l.proc.Go(func() { l.free(u.seg) })\n		}\n	} else {\n		l.gone = append(l.gone, l.used[:n]...)\n	}"},
	{soon: true, name: "the log drops one record too many", file: "far/named/log.go", was: "l.used[n].last <= upTo && (", is: "(l.used[n].last <= upTo || BUG && n < len(l.used)-1) && ("},
	{name: "a log that is begun forgets what was replayed too early", file: "far/named/log.go", was: "	err := l.refill(ctx)\n	full :=", is: "	if BUG {\n		for _, seg := range l.s.tail {\n			l.free(seg)\n		}\n		l.s.tail = nil\n	}\n	err := l.refill(ctx)\n	full :="},

	{soon: true, name: "a write that one copy has refused counts", file: "far/named/log.go", was: "	if err == nil {\n		l.shown = write", is: "	if err == nil || BUG && errors.Is(err, store.ErrSealed) {\n		l.shown = write"},
	// Of who gives a heap up.
	{seed: 24, name: "who has given the heap up answers", file: "far/named/owner.go", was: "		return o.ctx.Err() == nil\n", is: "		return o.ctx.Err() == nil || BUG\n"},

	// Of lending what is idle.
	{soon: true, seed: 25, name: "a copy that counts may vanish", file: "far/copies/spare.go", was: "	ok, err := x.may.MustStay", is: "	if BUG {\n		x.asked()\n		return x, true\n	}\n	ok, err := x.may.MustStay"},
	{name: "spare copies of what is given back stay", file: "far/copies/segment.go", was: "	if x != nil {\n		x.free()", is: "	if x != nil && !BUG {\n		x.free()"},
	{seed: 1, name: "spare copies that vanish are not given back", file: "far/copies/spare.go", was: "			g.store.counts.vanished.Add(1)\n			x.place.giveBackLater(x.seg)\n		}\n		x = nil\n	case !x", is: "			g.store.counts.vanished.Add(1)\n			if !BUG {\n				x.place.giveBackLater(x.seg)\n			}\n		}\n		x = nil\n	case !x"},

	// Of comparing copies.
	{soon: true, name: "nobody is asked which copy is damaged", file: "far/copies/judge.go", was: "done = g.judged(", is: "done = BUG || g.judged("},

	// Of nodes that join and end.
	{seed: 18, name: "nobody looks at a place that has joined", file: "far/copies/copies.go", was: "	all = append(slices.Clone(all), n)\n	s.places.Store(&all)\n", is: "	all = append(slices.Clone(all), n)\n	if !BUG {\n		s.places.Store(&all)\n	}\n"},
}

// mostSeeds is how many seeds a mistake may take.
const mostSeeds = 10

// plant has a bug of the product be there, in a program that plantAll has made.
var plant func(bug string)

// TestPlantedBugsAreFound, each within a bounded number of seeds.
func TestPlantedBugsAreFound(t *testing.T) {
	if plant == nil {
		program := buildPlanted(t)
		out, err := exec.Command(program, "-test.run=^TestPlantedBugsAreFound$", "-test.v").CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Error(err)
		}
		return
	}
	only, soak := os.Getenv("TEST_PLANT"), os.Getenv("TEST_SOAK") != ""
	clean := map[uint64]bool{} // seeds that find nothing where there is nothing
	for _, m := range mistakes {
		if only != "" && only != m.name || only == "" && !soak && !m.soon {
			continue
		}
		began := time.Now()
		var found *Result
		bug := m.name
		if m.file != "" {
			bug = ""
			plant(m.name)
		}
		for seed := m.seed; seed < m.seed+mostSeeds && found == nil; seed++ {
			if r := simulate(seed, time.Minute, bug, nil); len(r.Wrong) > 0 {
				found = &r
			}
		}
		plant("")
		if found == nil {
			t.Errorf("%q is not found by seeds %d to %d, %v", m.name, m.seed, m.seed+mostSeeds-1, time.Since(began))
			continue
		}
		if !clean[found.Seed] {
			if r := simulate(found.Seed, time.Minute, "", nil); len(r.Wrong) > 0 {
				t.Errorf("without a mistake: %s", &r)
			}
			clean[found.Seed] = true
		}
		t.Logf("%q is found by seed %d, %v, %v: %s", m.name, found.Seed, time.Since(began).Round(time.Millisecond), found.Time, found.Wrong[0])
	}
}

// buildPlanted builds this test with all mistakes in it, each of which has to be switched on.
func buildPlanted(t *testing.T) string {
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	put := func(file, text string) {
		path := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, file)] = path
	}
	texts := map[string]string{}
	for _, m := range mistakes {
		if m.file == "" {
			continue
		}
		text, ok := texts[m.file]
		if !ok {
			b, err := os.ReadFile(filepath.Join(root, m.file))
			if err != nil {
				t.Fatal(err)
			}
			head, tail, _ := strings.Cut(string(b), "\n")
			text = head + "\n\nimport \"polder/internal/planted\"\n" + tail
		}
		if n := strings.Count(text, m.was); n != 1 {
			t.Errorf("%s has %q %d times, want once, for the mistake %q", m.file, m.was, n, m.name)
		}
		texts[m.file] = strings.Replace(text, m.was, strings.ReplaceAll(m.is, "BUG", `planted.Is("`+m.name+`")`), 1)
	}
	for file, text := range texts {
		put(file, text)
	}
	put("internal/planted/planted.go", "package planted\n\nvar Bug string\n\nfunc Is(bug string) bool { return Bug == bug }\n")
	put("measure/simfaults/plant_test.go", "package simfaults\n\nimport \"polder/internal/planted\"\n\nfunc init() { plant = func(bug string) { planted.Bug = bug } }\n")
	overlay := filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err == nil {
		err = os.WriteFile(overlay, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "planted.test")
	if out, err := exec.Command("go", "test", "-vet=off", "-c", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil || t.Failed() {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}
