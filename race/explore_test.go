package race

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"

	"polder/internal/invariants"
	"polder/internal/linear"
	"polder/pool"
	"polder/pool/malloc"
)

// A world is a table in memory that changes at once, and actors that use it. A step is
// one READ, WRITE or CMP_SWAP, of one word or of a bucket, and before every step others
// may take theirs. Blocks that are freed are handed out again at once, so that
// who reads what is being reused reads something else.
type world struct {
	t       *testing.T
	table   *Table
	mem     map[*pool.Chunk][]byte
	refs    []malloc.Block // by reference - 1
	free    map[int][]int  // of refs, by size, the last that was freed last
	used    map[int]bool   // of refs
	actors  []*actor
	now     *actor // whose step it is
	clock   int64
	slots   map[int64]int // that keys of scenarios are in: by bucket, a bit for each
	failing int           // how many actors may still be cut off
	history []porcupine.Operation
	log     []string
}

// An actor does one operation after the other.
type actor struct {
	name string
	next func() (struct{}, bool)
	stop func()
	wait func(struct{}) bool
	over bool
	cut  cut
}

// A cut is how an actor's connection to its node breaks.
type cut uint8

const (
	whole     cut = iota
	late          // what is on its way is done, but fails, and so does all that follows
	early         // likewise, but it is not done
	lateOnce      // what is on its way is done, but fails
	earlyOnce     // it is not done, and fails
	gone          // all fails
	cuts      = gone - 1
)

// A request is an operation on a key, and its value if it is a put.
type request struct {
	kind byte // 'g', 'p', 'd', 's'
	key  string
}

// A reply is what came of it.
type reply struct {
	value  string // "" for nothing
	failed bool   // a put or delete may have been done
}

// register is the model of one key.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(put), output.(reply)
		switch in.kind {
		case 'p':
			return true, in.value
		case 'd':
			return out.failed || (state != "") == (out.value != ""), ""
		}
		return out.failed || out.value == state, state
	},
	Partition: linear.By(func(in put) string { return in.key }),
}

// put is a request with its value.
type put struct {
	request
	value string
}

// A scenario is what happens in a world.
type scenario struct {
	name    string
	before  string   // what has happened
	scripts []string // of the actors: operations, such as "pa gb dc": put a, get b, delete c
	failing int      // actors that may be cut off, at most
	bound   int      // of preemptions
}

func newWorld(t *testing.T, sc scenario) *world {
	w := &world{t: t, mem: map[*pool.Chunk][]byte{}, free: map[int][]int{}, used: map[int]bool{}, failing: sc.failing}
	w.table = &Table{fabric: w, memory: w, groups: 2, seed: seedOfScenarios}
	w.table.epochs.batch = 1
	w.slots = map[int64]int{}
	for _, pair := range w.table.hash([]byte("a")).pairs(2) {
		w.slots[pair/bucketSize] = 7
	}
	if err := w.table.init(context.Background()); err != nil {
		t.Fatal(err)
	}
	w.play("before", sc.before)
	for i, script := range sc.scripts {
		a := &actor{name: fmt.Sprint("actor ", i)}
		a.next, a.stop = iter.Pull(func(yield func(struct{}) bool) {
			a.wait = yield
			w.play(a.name, script)
		})
		w.actors = append(w.actors, a)
	}
	return w
}

// play does the operations of a script.
func (w *world) play(who, script string) {
	for i, n := 0, 0; i+1 < len(script); i += 3 {
		n++
		in := put{request{script[i], script[i+1 : i+2]}, fmt.Sprint(who, " ", n)}
		begun := w.tick()
		var out reply
		var err error
		ctx := context.Background()
		switch in.kind {
		case 'g':
			var v []byte
			v, _, err = w.table.Get(ctx, []byte(in.key), nil)
			out.value = string(v)
		case 'p':
			err = w.table.Put(ctx, []byte(in.key), []byte(in.value))
		case 's':
			o := w.table.begin([]byte(in.key))
			err = w.table.split(ctx, w.table.lookup(o.hash.Lo))
			o.end()
			in.kind, out.failed = 'g', true // it changes nothing
		case 'd':
			var found bool
			if found, err = w.table.Delete(ctx, []byte(in.key)); found {
				out.value = "found"
			}
		}
		out.failed = out.failed || err != nil
		ended := w.tick()
		if err != nil {
			ended = 1 << 40
			if !errors.Is(err, errCut) {
				w.t.Errorf("%s: %c%s: %v", who, in.kind, in.key, err)
			}
		}
		w.history = append(w.history, porcupine.Operation{Input: in, Output: out, Call: begun, Return: ended})
		if err != nil {
			return
		}
	}
}

func (w *world) tick() int64 { w.clock++; return w.clock }

var errCut = errors.New("cut off")

// step gives others their turn, if the next step is about what others use as well: a
// slot or a block that keys of scenarios are in.
func (w *world) step(op *pool.Op, off int, many bool) {
	a := w.now
	if a == nil {
		return
	}
	index := len(w.mem[op.Chunk]) == int(w.table.groups)*groupSize
	at := op.Off + int64(off)
	switch {
	case op.Kind == pool.OpWrite: // of what nobody knows yet
		return
	case index && op.Kind == pool.OpRead && w.slots[at/bucketSize] == 0, !index && many:
		return
	case index && op.Kind == pool.OpCompareAndSwap && w.slots[at/bucketSize]>>(at%bucketSize/8)&1 == 0:
		if !word(op.New).frozen() {
			w.t.Errorf("%s changes slot %d, which no key of a scenario should be in", a.name, at/8)
		}
		return
	}
	if !a.wait(struct{}{}) {
		panic("BUG: an actor was stopped")
	}
	w.log = append(w.log, fmt.Sprintf("%s: %v at %d", a.name, op.Kind, at))
}

// fate is what becomes of the present step.
func (w *world) fate() cut {
	if w.now == nil {
		return whole
	}
	how := w.now.cut
	switch how {
	case late, early:
		w.now.cut = gone
	case lateOnce, earlyOnce:
		w.now.cut = whole
	}
	return how
}

// Do implements fabric: one operation after the other, as no order is promised.
func (w *world) Do(_ context.Context, ops []pool.Op) error {
	var first error
	for i := range ops {
		op := &ops[i]
		op.Err = nil
		for off := 0; off == 0 || off < len(op.Buf); off += bucketSize {
			w.step(op, off, len(ops) > 8)
			how := w.fate()
			if how != early && how != earlyOnce && how != gone {
				w.access(op, off)
			}
			if how != whole {
				op.Err = errCut
				break
			}
		}
		if op.Err != nil && first == nil {
			first = op.Err
		}
	}
	return first
}

// access carries out op, of at most a bucket from off on.
func (w *world) access(op *pool.Op, off int) {
	mem := w.mem[op.Chunk][op.Off:]
	switch op.Kind {
	case pool.OpRead:
		copy(op.Buf[off:min(len(op.Buf), off+bucketSize)], mem[off:])
	case pool.OpWrite:
		copy(mem[off:], op.Buf[off:min(len(op.Buf), off+bucketSize)])
	case pool.OpCompareAndSwap:
		if op.Prev = binary.LittleEndian.Uint64(mem); op.Prev == op.Old {
			binary.LittleEndian.PutUint64(mem, op.New)
		}
	}
}

// Alloc implements memory.
func (w *world) Alloc(_ context.Context, size int) (malloc.Block, error) {
	var id int
	if n := len(w.free[size]); n > 0 {
		id = w.free[size][n-1]
		w.free[size] = w.free[size][:n-1]
	} else {
		b := malloc.Block{Chunk: new(pool.Chunk), Size: size}
		w.mem[b.Chunk] = make([]byte, size)
		w.refs = append(w.refs, b)
		id = len(w.refs) - 1
	}
	w.used[id] = true
	return w.refs[id], nil
}

// Free implements memory.
func (w *world) Free(_ context.Context, b malloc.Block) error {
	id := slices.IndexFunc(w.refs, func(have malloc.Block) bool { return have.Chunk == b.Chunk })
	if !w.used[id] {
		w.t.Errorf("block %d was freed twice", id)
	}
	delete(w.used, id)
	w.free[b.Size] = append(w.free[b.Size], id)
	return nil
}

// Ref implements memory.
func (w *world) Ref(b malloc.Block) (malloc.Ref, error) {
	return malloc.Ref(1 + slices.IndexFunc(w.refs, func(have malloc.Block) bool { return have.Chunk == b.Chunk })), nil
}

// At implements memory.
func (w *world) At(r malloc.Ref, _ int) malloc.Block { return w.refs[r-1] }

// An explorer runs a world again and again until every order of steps with at most so
// many preemptions has been tried: a preemption is that another actor goes on although
// this one could. Being cut off counts as one.
type explorer struct {
	todo [][]uint8 // prefixes of choices
	runs int
}

func explore(t *testing.T, sc scenario) *explorer {
	e := &explorer{todo: [][]uint8{nil}}
	for len(e.todo) > 0 && !t.Failed() {
		prefix := e.todo[len(e.todo)-1]
		e.todo = e.todo[:len(e.todo)-1]
		w := newWorld(t, sc)
		e.run(w, prefix, sc.bound)
		w.check()
		if t.Failed() {
			for _, line := range w.log {
				t.Log(line)
			}
			for _, op := range w.history {
				t.Logf("%+v", op)
			}
		}
		e.runs++
	}
	return e
}

// run runs a world to its end.
func (e *explorer) run(w *world, prefix []uint8, left int) {
	at := 0
	choose := func(n int) int {
		if at == len(prefix) {
			for i := 1; i < n; i++ {
				e.todo = append(e.todo, append(slices.Clone(prefix), uint8(i)))
			}
			prefix = append(prefix, 0)
		}
		at++
		return int(prefix[at-1])
	}
	var last *actor
	for {
		// The choices: to go on, another actor, this one's connection breaks.
		var others []*actor
		for _, a := range w.actors {
			if !a.over && a != last {
				others = append(others, a)
			}
		}
		going := last != nil && !last.over
		if !going && len(others) == 0 {
			break
		}
		n := len(others)
		if going {
			n = 1
			if left > 0 {
				n += len(others)
				if w.failing > 0 {
					n += int(cuts)
				}
			}
		}
		c := 0
		if n > 1 {
			c = choose(n)
		}
		switch {
		case !going:
			last = others[c]
		case c == 0:
		case c <= len(others):
			left--
			last = others[c-1]
		default:
			left--
			w.failing--
			last.cut = cut(c - len(others))
		}
		w.now = last
		_, on := last.next()
		last.over = !on
	}
	w.now = nil
}

// check looks at a world in which nothing happens any more.
func (w *world) check() {
	for _, key := range "abc" {
		begun := w.tick()
		v, _, err := w.table.Get(context.Background(), []byte(string(key)), nil)
		if err != nil {
			w.t.Errorf("at the end: %v", err)
		}
		w.history = append(w.history, porcupine.Operation{Input: put{request: request{'g', string(key)}}, Output: reply{value: string(v)}, Call: begun, Return: w.tick()})
	}
	if !porcupine.CheckOperations(register, w.history) {
		w.t.Error("the history is not linearizable")
	}
	for range 3 {
		w.table.begin(nil).end()
	}
	named := map[int]bool{}
	d := w.table.directory.Load()
	for i := range d.entries {
		b := d.entries[i].Load().block
		named[slices.IndexFunc(w.refs, func(have malloc.Block) bool { return have.Chunk == b.Chunk })] = true
		image := w.mem[b.Chunk]
		for j := range len(image) / 8 {
			if v := wordAt(image, j); !v.vacant() {
				named[int(v.ref())-1] = true
				if !w.used[int(v.ref())-1] {
					w.t.Errorf("slot %d names a block that has been freed", j)
				}
			}
		}
	}
	if kept := len(w.used) - len(named); kept > int(w.table.inDoubt.Load()) {
		w.t.Errorf("%d blocks are allocated that nothing names, and %d are in doubt", kept, w.table.inDoubt.Load())
	}
}

// seedOfScenarios is a seed of hashes with which the keys a, b and c have the same
// buckets, and a and c the same fingerprint; with another bit, a subtable divides a and b.
var seedOfScenarios = func() uint64 {
	for seed := uint64(0); ; seed++ {
		t := &Table{seed: seed}
		a, b, c := t.hash([]byte("a")), t.hash([]byte("b")), t.hash([]byte("c"))
		if a.pairs(2) == b.pairs(2) && a.pairs(2) == c.pairs(2) && a.fingerprint() == c.fingerprint() &&
			a.fingerprint() != b.fingerprint() && (a.Lo^b.Lo)&1 == 1 {
			return seed
		}
	}
}()

// TestEveryInterleaving tries all orders of steps, with so many preemptions at most; with
// TEST_SOAK one more, and with -race one less.
func TestEveryInterleaving(t *testing.T) {
	for _, sc := range []scenario{
		{name: "two puts", scripts: []string{"pa", "pa"}, bound: 3},
		{name: "puts of a key in two slots", before: "pb", scripts: []string{"db pa", "pa"}, bound: 3},
		{name: "and a reader", before: "pb", scripts: []string{"db pa", "pa", "ga ga"}, bound: 2},
		{name: "and a delete", before: "pb", scripts: []string{"db pa", "pa", "da ga"}, bound: 2},
		{name: "update against delete", before: "pa", scripts: []string{"pa", "da", "ga ga"}, bound: 2},
		{name: "reader against reuse", before: "pa", scripts: []string{"pa pb pc", "ga ga"}, bound: 3},
		{name: "one fingerprint", before: "pc", scripts: []string{"pa dc", "pc ga"}, bound: 3},
		{name: "split against puts", before: "pb", scripts: []string{"sa", "pa pb", "ga gb"}, bound: 1},
		{name: "split against delete", before: "pa", scripts: []string{"sa", "da pa", "ga ga"}, bound: 1},
		{name: "split against puts in two slots", before: "pb", scripts: []string{"sa", "db pa", "pa ga"}, bound: 1},
		{name: "two splits", before: "pa", scripts: []string{"sa", "sa sa", "pa ga"}, bound: 1},
		{name: "puts cut off", before: "pb", scripts: []string{"db pa", "pa ga"}, failing: 1, bound: 2},
		{name: "a put cut off against a delete", scripts: []string{"pa", "da"}, failing: 1, bound: 2},
		{name: "update and delete cut off", before: "pa", scripts: []string{"pa", "da", "ga"}, failing: 1, bound: 2},
		{name: "split cut off", before: "pa", scripts: []string{"sa", "pa ga da"}, failing: 1, bound: 2},
	} {
		switch {
		case os.Getenv("TEST_SOAK") != "":
			sc.bound++
		case invariants.Enabled: // one goroutine runs all this, of which -race has nothing to say
			sc.bound--
		}
		t.Run(sc.name, func(t *testing.T) {
			e := explore(t, sc)
			t.Logf("%d worlds", e.runs)
		})
	}
}
