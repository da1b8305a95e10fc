package finemem_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"testing"

	"polder/internal/arena"
	"polder/memnode/rebind"
	"polder/memnode/twolayer"
	"polder/pool/finemem"
	"polder/pool/manager"
	"polder/verbs"
)

// A world is a memory node with a little memory, and clients. The clients are the
// real allocators over a queue pair that changes the node's words at once; a step is
// one operation on the fabric. Of the node, the recovery is the real one, and of its
// worker what matters: which key opens which memory, and when it changes.
type world struct {
	t       *testing.T
	mem     []byte
	table   *twolayer.Table
	windows map[place]verbs.RKey // what opens, if anything does
	times   map[place]uint32     // how often a place was rebound
	clients []*client
	node    *actor
	actors  []*actor
	asked   int             // calls of Sync
	settled int             // that the node has answered
	crashes int             // that may still happen
	replays int             // likewise
	fine    bool            // the node's steps are steps; otherwise what it does, it does at once
	sleeps  bool            // the node's worker sleeps until a doorbell comes
	says    uint64          // what the worker's word says
	frees   []uint64        // by section: that the worker has seen
	bells   map[*client]int // since the worker has posted their receives
	over    map[verbs.RKey]string
	late    int    // flushes that came too late
	log     []done // for who has to understand a failure
}

// place is memory that one key opens.
type place struct {
	layer int
	chunk uint32
}

// client is a user, and the applications that it allocates for.
type client struct {
	*actor
	w      *world
	a      *finemem.Allocator
	held   []finemem.Block
	warm   bool // what happened before the world began is over
	fenced bool
	buf    []byte
	done   []verbs.WC
	flight []verbs.SendWR // of the batch, what may still be delivered again
}

// A scenario is what happens in a world.
type scenario struct {
	chunks  uint64
	crashes int // of clients, at most
	replays int // of batches, at most
	fine    bool
	sleeps  bool
	policy  finemem.Policy
	scripts []string
}

// newWorld makes a world of some chunks, with a client for each script: digits
// allocate a class, f frees the block that was allocated first, and l the last.
// What comes before a bar has happened already, one client after the other.
func newWorld(t *testing.T, sc scenario) *world {
	l, err := twolayer.NewLayout(sc.chunks*twolayer.DefaultUnit, twolayer.DefaultUnit)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, mem: make([]byte, l.Bytes()), windows: make(map[place]verbs.RKey), times: make(map[place]uint32),
		crashes: sc.crashes, replays: sc.replays, fine: sc.fine, sleeps: sc.sleeps, bells: make(map[*client]int), over: make(map[verbs.RKey]string)}
	if w.table, err = twolayer.NewTable(w.mem, l); err != nil {
		t.Fatal(err)
	}
	w.frees = make([]uint64, l.Sections())
	w.places(func(p place) { w.publish(p) })
	for i, script := range sc.scripts {
		w.client(uint16(i+1), sc.policy, func(c *client) { c.play(script) })
	}
	w.node = newActor("node", 0, w.work)
	w.actors = append(w.actors, w.node)
	for _, c := range w.clients {
		for !c.warm && !t.Failed() {
			if c.ready() {
				c.turn()
			} else {
				w.node.turn()
			}
		}
	}
	for w.swapped() {
		w.node.turn()
	}
	return w
}

// places calls f for all memory that a key opens.
func (w *world) places(f func(place)) {
	for layer := range twolayer.Layers {
		g := w.table.Grain(layer)
		for c := uint32(0); c+g <= w.table.Chunks; c += g {
			f(place{layer, c})
		}
	}
}

// key is the key that a place has after it was rebound so many times.
func key(p place, times uint32) verbs.RKey {
	return verbs.RKey(p.layer+1)<<28 | verbs.RKey(p.chunk)<<12 | verbs.RKey(times)
}

// publish binds a place's next key.
func (w *world) publish(p place) {
	w.times[p]++
	n := w.times[p]
	w.windows[p] = key(p, n)
	w.table.SetCap(p.layer, p.chunk, twolayer.MakeCap(key(p, n), key(p, n+1)))
}

// swapped reports whether there is something for the node's worker.
func (w *world) swapped() (found bool) {
	w.places(func(p place) { found = found || w.table.Cap(p.layer, p.chunk).IsSwapped() })
	return found
}

// rest has the worker sleep until there is something for it, as package rebind's does.
func (w *world) rest(a *actor) {
	look := func() (found bool) {
		for i := range w.frees {
			n := w.table.Frees(uint32(i))
			found = found || n != w.frees[i]
			w.frees[i] = n
		}
		return found
	}
	say := func(sleeps uint64) {
		if w.says&1 != sleeps {
			w.says++
			w.table.SetWorker(w.says)
		}
	}
	for {
		a.step("rebind.answer")
		clear(w.bells)
		say(0)
		a.step("rebind.look")
		if look() {
			return
		}
		a.step("rebind.sleep")
		say(1)
		a.step("rebind.look-again")
		if look() {
			say(0)
			return
		}
		a.wait("rebind.slept", func() bool { return len(w.bells) > 0 || w.asked > w.settled })
		if w.asked > w.settled {
			return
		}
	}
}

// work is the node's actor: its worker.
func (w *world) work(a *actor) {
	for {
		if w.sleeps {
			w.rest(a)
		} else {
			a.wait("work", func() bool { return w.asked > w.settled || w.swapped() })
		}
		asked := w.asked
		w.places(func(p place) {
			if !w.table.Cap(p.layer, p.chunk).IsSwapped() {
				return
			}
			w.nodeStep(a, "rebind.unbind", p.chunk)
			delete(w.windows, p)
			w.nodeStep(a, "rebind.bind", p.chunk)
			w.publish(p)
		})
		if asked > w.settled {
			for i := range w.table.Sections() {
				w.table.CloseIdle(i, func(at string) { w.nodeStep(a, at, i) })
			}
			w.settled = asked
		}
	}
}

// nodeStep is a step of an actor of the node's, which concerns a chunk.
func (w *world) nodeStep(a *actor, at string, chunk uint32) {
	if w.fine {
		a.step(fmt.Sprintf("%s %d", at, chunk))
	}
}

// recover is an actor that takes back what user, who is fenced, has.
func (w *world) recover(user uint16) *actor {
	return newActor("recovery", 0, func(a *actor) {
		a.step("recover")
		w.table.Owned(user, func(x twolayer.Extent) {
			w.table.Release(user, x, func(at string) {
				w.nodeStep(a, at, x.First)
				a.learn(uint64(x.First))
			})
		})
	})
}

// client adds a client that does something.
func (w *world) client(user uint16, policy finemem.Policy, f func(*client)) *client {
	c := &client{w: w, buf: *buffers.Get().(*[]byte)}
	c.actor = newActor(fmt.Sprintf("client %d", user), user, func(*actor) { f(c) })
	var err error
	c.a, err = finemem.NewAllocator(finemem.Config{
		Layout: w.table.Layout, QP: wordsQP{c: c}, CQ: wordsCQ{c: c}, Buffer: buffer{c: c},
		User: user, Policy: policy, Sync: c.sync, Doorbell: w.sleeps,
		Step: func(at string) error {
			if at != finemem.StepComplete {
				c.step(at)
			} else if c.warm && w.replays > 0 && len(c.flight) > 1 {
				c.step(at)
				c.flight = c.flight[:0]
			} else {
				c.flight = c.flight[:0]
			}
			return nil
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.clients = append(w.clients, c)
	w.actors = append(w.actors, c.actor)
	for which := 0; w.replays > 0 && which < replays; which++ {
		network := newActor(fmt.Sprintf("network of client %d, %d", user, which), 0, func(a *actor) { c.replay(a, which) })
		network.turn()
		w.actors = append(w.actors, network)
	}
	return c
}

// replays are which READs of a batch may be delivered again: all of them, or one
// alone, since there are RNICs that repeat only what was lost.
const replays = 3

// replay is the actor of a network that loses the answer to an operation of c's.
// A READ that is delivered again brings what the memory is then; an atomic operation
// is not carried out twice, and brings what it brought before.
func (c *client) replay(a *actor, which int) {
	again := func(yield func(wr verbs.SendWR) bool) {
		n := 0
		for _, wr := range c.flight {
			if wr.Op == verbs.OpRead {
				if n++; (which == 0 || which == n) && !bytes.Equal(c.remote(wr), c.buf[wr.SGL[0].Addr:][:wr.SGL[0].Length]) && !yield(wr) {
					return
				}
			}
		}
	}
	for {
		a.wait("replay", func() (differs bool) {
			if c.w.replays > 0 && !c.over && c.at == finemem.StepComplete {
				for range again {
					return true
				}
			}
			return false
		})
		c.w.replays--
		for wr := range again {
			c.read(wr)
		}
	}
}

// remote is what a READ reads.
func (c *client) remote(wr verbs.SendWR) []byte { return c.w.mem[wr.RemoteAddr:][:wr.SGL[0].Length] }

// read carries a READ out.
func (c *client) read(wr verbs.SendWR) {
	from := c.remote(wr)
	copy(c.buf[wr.SGL[0].Addr:], from)
	for i := 0; i < len(from); i += 8 {
		c.learn(binary.LittleEndian.Uint64(from[i:]))
	}
}

func (c *client) sync(context.Context) error {
	c.w.asked++
	mine := c.w.asked
	c.wait("sync", func() bool { return c.w.settled >= mine })
	return nil
}

// play plays a script.
func (c *client) play(script string) {
	for _, op := range script {
		switch {
		case op == '|':
			c.warm = true
			c.step("begin")
		case op == 'f' && len(c.held) > 0:
			c.free(0)
		case op == 'l' && len(c.held) > 0:
			c.free(len(c.held) - 1)
		case op >= '0' && op <= '9':
			if err := c.alloc(int(op - '0')); err != nil && !errors.Is(err, manager.ErrNoMemory) {
				c.w.t.Errorf("%s cannot allocate: %v", c.name, err)
				return
			}
		}
	}
}

// alloc allocates, and looks whether anybody else has that memory or can reach it.
func (c *client) alloc(k int) error {
	b, err := c.a.Alloc(context.Background(), k)
	if err != nil {
		return err
	}
	w := c.w
	w.note(c.actor, fmt.Sprintf("has class %d at %d", k, b.First))
	for _, other := range w.clients {
		for _, o := range other.held {
			if overlap(b.First, k, o.First, o.Class) {
				w.t.Errorf("%s gets class %d at chunk %d, and %s has class %d at %d", c.name, k, b.First, other.name, o.Class, o.First)
			}
		}
	}
	for i := range b.Keys() {
		layer := twolayer.LayerOf(k)
		p := place{layer, b.First + uint32(i)*w.table.Grain(layer)}
		if layer == twolayer.ChunkLayer {
			p.chunk = b.First + uint32(i)
		}
		if w.windows[p] != b.Key(i) {
			w.t.Errorf("%s gets the key %v for %+v, which %v opens", c.name, b.Key(i), p, w.windows[p])
		}
	}
	w.reachable(b.First, k, c.name)
	c.held = append(c.held, b)
	return nil
}

// reachable fails the test if a key that somebody once had opens memory that is
// somebody else's.
func (w *world) reachable(first uint32, k int, whose string) {
	for p, key := range w.windows {
		if who, once := w.over[key]; once && overlap(first, k, p.chunk, classOf(p.layer)) {
			w.t.Errorf("%s has class %d at chunk %d, which a key opens that %s has had", whose, k, first, who)
		}
	}
}

func classOf(layer int) int { return [...]int{0, twolayer.SpanClass, twolayer.SectionClass}[layer] }

func overlap(a uint32, ka int, b uint32, kb int) bool {
	return a < b+1<<kb && b < a+1<<ka
}

// free frees a block.
func (c *client) free(i int) {
	b := c.held[i]
	c.held = append(c.held[:i:i], c.held[i+1:]...)
	c.gone(b)
	c.w.note(c.actor, fmt.Sprintf("frees class %d at %d", b.Class, b.First))
	if err := c.a.Free(context.Background(), b); err != nil {
		c.w.t.Errorf("%s cannot free class %d at chunk %d: %v", c.name, b.Class, b.First, err)
	}
}

// gone notes that the applications have no right to b any more, but know its keys.
func (c *client) gone(b finemem.Block) {
	for i := range b.Keys() {
		c.w.over[b.Key(i)] = c.name
	}
}

// note keeps what was done.
func (w *world) note(a *actor, what string) { w.log = append(w.log, done{a.name, what}) }

// done is something that an actor has done.
type done struct{ who, what string }

// buffers are to be used again: there are many worlds.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, finemem.BufferSize)
	return &b
}}

var hashSeed = maphash.MakeSeed()

// state is a hash of everything that the future depends on.
func (w *world) state() uint64 {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	h.Write(w.mem)
	var b [8]byte
	put := func(v uint64) {
		binary.LittleEndian.PutUint64(b[:], v)
		h.Write(b[:])
	}
	w.places(func(p place) { put(uint64(w.windows[p])) })
	for _, a := range w.actors {
		put(a.past)
		h.WriteString(a.at)
		if a.over {
			h.WriteByte(1)
		}
	}
	for _, c := range w.clients {
		put(uint64(w.bells[c]))
	}
	for _, n := range w.frees {
		put(n)
	}
	put(uint64(w.asked)<<32 | uint64(w.settled))
	put(uint64(w.crashes)<<32 | uint64(w.replays))
	return h.Sum64()
}

// run runs the world as the explorer says, and looks at what has become of it.
func (w *world) run(t *testing.T, e *explorer) {
	defer func() {
		for _, a := range w.actors {
			a.stop()
		}
		for _, c := range w.clients {
			buffers.Put(&c.buf)
		}
		if t.Failed() {
			t.Logf("steps: %v", w.log)
		}
	}()
	for !t.Failed() {
		var ready []*actor
		mortal := 0
		for _, a := range w.actors {
			if a.ready() {
				ready = append(ready, a)
			}
		}
		// Whoever can crash comes first, so that choices from len(ready) on are
		// crashes.
		if w.crashes > 0 {
			for i, a := range ready {
				if a.user != 0 {
					ready[mortal], ready[i] = a, ready[mortal]
					mortal++
				}
			}
		}
		if len(ready) == 0 && w.sleeps && w.swapped() {
			t.Error("something was freed, and nobody wakes the node's worker")
		}
		if len(ready) == 0 || len(ready) == 1 && ready[0] == w.node && w.quiet() && !w.swapped() {
			w.finish(t, e)
			return
		}
		fresh := e.at == len(e.prefix)
		i := e.choose(w.state, len(ready)+mortal)
		switch {
		case i < 0:
			return
		case i < len(ready):
			w.note(ready[i], ready[i].at)
			ready[i].turn()
		default:
			a := ready[i-len(ready)]
			if fresh || e.at == len(e.prefix) {
				e.crashes++
			}
			w.crash(a)
		}
	}
}

// quiet reports whether all clients are through.
func (w *world) quiet() bool {
	for _, a := range w.actors {
		if a != w.node && !a.over && a.at != "replay" {
			return false
		}
	}
	return true
}

// crash ends a client, which the node then recovers from.
func (w *world) crash(a *actor) {
	w.note(a, "crashes before "+a.at)
	w.crashes--
	a.crash()
	for _, c := range w.clients {
		if c.actor == a {
			c.fenced = true
			for _, b := range c.held {
				c.gone(b)
			}
			c.held = nil
		}
	}
	w.actors = append(w.actors, w.recover(a.user))
}

// alone has an actor and the node take their steps until the actor is through.
func (w *world) alone(t *testing.T, a *actor) {
	for steps := 0; !a.over && !t.Failed(); steps++ {
		if steps > 1e5 {
			t.Errorf("%s does not come to an end", a.name)
		}
		if a.ready() {
			a.turn()
		} else {
			w.node.turn()
		}
	}
}

// finish takes the census of a world in which everything has been done, and then
// has somebody allocate all that is left.
func (w *world) finish(t *testing.T, e *explorer) {
	e.ends++
	e.late += w.late
	n, err := w.table.Count()
	if err != nil {
		t.Error(err)
		return
	}
	owner := make([]uint16, w.table.Chunks)
	for _, c := range w.clients {
		for _, b := range c.held {
			for i := b.First; i < b.First+1<<b.Class; i++ {
				owner[i] = c.user
			}
			w.reachable(b.First, b.Class, c.name)
		}
	}
	left := 0
	for i, want := range owner {
		if n.Owner[i] != want {
			t.Errorf("chunk %d is user %d's, want user %d", i, n.Owner[i], want)
			return
		}
		if want == 0 {
			left++
		}
	}
	for _, k := range []int{0, twolayer.SpanClass} {
		w.drain(t, k, left)
	}
	if n, err = w.table.Count(); err != nil {
		t.Error(err)
	} else if n.Unrepaired > 0 {
		t.Errorf("the layers disagree about %d spans", n.Unrepaired)
	} else if n.Hints > 0 {
		e.hints++
	}
}

// drain has a new client allocate everything of a class, and free it. There are
// left chunks.
func (w *world) drain(t *testing.T, k, left int) {
	got := 0
	c := w.client(uint16(len(w.clients)+1), finemem.Spread, func(c *client) {
		for !t.Failed() {
			err := c.alloc(k)
			if errors.Is(err, manager.ErrNoMemory) {
				break
			}
			if err != nil {
				t.Error(err)
				return
			}
			got++
		}
		for len(c.held) > 0 && !t.Failed() {
			c.free(0)
		}
	})
	w.alone(t, c.actor)
	if k == 0 && got != left {
		t.Errorf("of %d chunks that are left, %d can be allocated", left, got)
	}
	for w.swapped() && !t.Failed() {
		w.node.turn()
	}
}

// wordsQP is a client's queue pair to the metadata.
type wordsQP struct {
	verbs.QP
	c *client
}

var errFenced = errors.New("the node has cut this client off")

// PostSend implements verbs.QP.
func (q wordsQP) PostSend(wrs ...verbs.SendWR) error {
	c := q.c
	if c.fenced {
		return errFenced
	}
	for _, wr := range wrs {
		if wr.Op == verbs.OpSend {
			if c.w.bells[c]++; c.w.bells[c] > rebind.Doorbells {
				c.w.t.Errorf("%s rings %d times, and the node has %d receives", c.name, c.w.bells[c], rebind.Doorbells)
			}
			continue
		}
		if wr.Flags&verbs.SendFence != 0 { // it begins when all before it has completed
			c.flight = c.flight[:0]
		}
		c.flight = append(c.flight, wr)
		to := c.buf[wr.SGL[0].Addr:]
		switch wr.Op {
		case verbs.OpRead:
			c.read(wr)
		case verbs.OpCmpSwap, verbs.OpFetchAdd:
			at := arena.Word64(c.w.mem[wr.RemoteAddr:][:8])
			old := at.Load()
			switch {
			case wr.Op == verbs.OpFetchAdd:
				at.Store(old + wr.Swap)
			case old == wr.Compare:
				at.Store(wr.Swap)
			case c.at == finemem.StepFlush:
				c.w.late++
			}
			binary.LittleEndian.PutUint64(to, old)
			c.learn(old)
		}
		if wr.Flags&verbs.SendSignaled != 0 {
			c.done = append(c.done, verbs.WC{ID: wr.ID})
		}
	}
	return nil
}

// wordsCQ is where wordsQP completes.
type wordsCQ struct {
	verbs.CQ
	c *client
}

// Poll implements verbs.CQ.
func (q wordsCQ) Poll(wcs []verbs.WC) int {
	n := copy(wcs, q.c.done)
	q.c.done = q.c.done[n:]
	return n
}

// buffer is a client's buffer.
type buffer struct {
	verbs.MR
	c *client
}

func (b buffer) Addr() uint64     { return 0 }
func (b buffer) Bytes() []byte    { return b.c.buf }
func (b buffer) LKey() verbs.LKey { return 0 }
