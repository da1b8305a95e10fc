package simcrash

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
)

// world is what outlives processes: the value of the register, and chunks of nodes.
type world struct {
	value   []byte
	version uint64
	nodes   []*node
	serial  uint64 // of the last chunk that was lent
	mine    *byte  // chunks that have it belong to no other world
}

// node lends chunks.
type node struct {
	life   int // how often it has lost its memory
	chunks map[int]chunk
}

// chunk is memory that a node has lent.
type chunk struct {
	serial uint64 // no two have the same
	b      []byte
	owner  *byte // mine of the world that may change b
}

const (
	chunkSize  = 128 << 10
	mostChunks = 200 // of a node
)

// nothing is a chunk that was just lent.
var nothing = make([]byte, chunkSize)

func newWorld(nodes int) *world {
	w := &world{mine: new(byte)}
	for range nodes {
		w.nodes = append(w.nodes, &node{chunks: map[int]chunk{}})
	}
	return w
}

// fork is a world that begins as w is now. They share chunks until one is written to.
func (w *world) fork() *world {
	c := *w
	w.mine, c.mine = new(byte), new(byte)
	c.nodes = nil
	for _, n := range w.nodes {
		m := &node{life: n.life, chunks: make(map[int]chunk, len(n.chunks))}
		for id, ch := range n.chunks {
			m.chunks[id] = ch
		}
		c.nodes = append(c.nodes, m)
	}
	return &c
}

// lose has a node lose its memory.
func (w *world) lose(i int) { w.nodes[i] = &node{life: w.nodes[i].life + 1, chunks: map[int]chunk{}} }

// A change is one of what outlives a process.
type change struct {
	kind   kind
	node   int
	id     int    // of the chunk; of lend it is known when that is done
	serial uint64 // of the chunk
	off    int
	b      []byte // what is written, or the register's new value
	was    uint64 // version of the register that is replaced
}

type kind uint8

const (
	lend kind = iota
	write
	giveBack
	swap
)

func (c *change) String() string {
	switch c.kind {
	case lend:
		return fmt.Sprintf("lend chunk %d of node %d", c.id, c.node)
	case write:
		return fmt.Sprintf("write [%d, +%d) of chunk %d of node %d", c.off, len(c.b), c.id, c.node)
	case giveBack:
		return fmt.Sprintf("give back chunk %d of node %d", c.id, c.node)
	}
	return fmt.Sprintf("replace version %d of the register", c.was)
}

// apply makes a change, of which the chunk it is about may have gone. It reports whether there was anything to change.
func (w *world) apply(c *change) bool {
	switch c.kind {
	case swap:
		if w.version != c.was {
			return false
		}
		w.value, w.version = c.b, w.version+1
		return true
	case lend:
		w.nodes[c.node].chunks[c.id] = chunk{serial: c.serial, b: nothing}
		return true
	}
	n := w.nodes[c.node]
	ch, ok := n.chunks[c.id]
	if !ok || ch.serial != c.serial {
		return false
	}
	if c.kind == giveBack {
		delete(n.chunks, c.id)
		return true
	}
	if ch.owner != w.mine {
		ch.b, ch.owner = slices.Clone(ch.b), w.mine
		n.chunks[c.id] = ch
	}
	copy(ch.b[c.off:], c.b)
	return true
}

// free is the number of a chunk that the node has not lent: those that were given back last are lent again first, so that whoever still
// refers to one finds something else there.
func (n *node) free() (id int, ok bool) {
	for id < mostChunks {
		if _, lent := n.chunks[id]; !lent {
			return id, true
		}
		id++
	}
	return 0, false
}

// recorder is what becomes of a world while a process runs.
type recorder struct {
	mu     sync.Mutex
	began  *world
	now    *world // with all that is done
	events []event
	r      *rand.Rand
	slow   bool  // some changes take a while, so that more are under way at a time; immutable
	wrong  error // what nobody may ask for was asked for

	sent, acked []int // for each client, how many of its operations were
	served      bool  // the process has shown what it has
}

// event is something that happens to a process: a change that it asks for, or is done, or something about a client.
type event struct {
	change *change
	done   bool
	// As they are from the event on. Immutable.
	sent, acked []int
	served      bool
}

func newRecorder(w *world, clients int, seed uint64) *recorder {
	return &recorder{began: w.fork(), now: w, r: rand.New(rand.NewPCG(9, seed)), sent: make([]int, clients), acked: make([]int, clients)}
}

// add adds an event. rec.mu must be held.
func (rec *recorder) add(c *change, done bool) {
	rec.events = append(rec.events, event{c, done, rec.sent, rec.acked, rec.served})
}

// note adds an event that is about clients.
func (rec *recorder) note(client, sent, acked int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.sent, rec.acked = slices.Clone(rec.sent), slices.Clone(rec.acked)
	rec.sent[client] += sent
	rec.acked[client] += acked
	rec.add(nil, false)
}

// serves adds the event that the process shows what it has.
func (rec *recorder) serves() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.served = true
	rec.add(nil, false)
}
