package race

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"polder/pool"
	"polder/pool/malloc"
)

// ErrFull is the error of a Put for which splitting makes no room: too many keys have
// equal hashes.
var ErrFull = errors.New("too many keys of one hash")

const (
	bucketSlots = 8
	bucketSize  = 8 * bucketSlots
	groupSize   = 3 * bucketSize
	pairSlots   = 2 * bucketSlots
	pairSize    = 2 * bucketSize

	groups   = 128 // of a subtable, which is 24 KiB
	maxDepth = 24  // of the directory
)

// Fabric is a *pool.Pool, as far as the protocol uses it.
type Fabric interface {
	Do(ctx context.Context, ops []pool.Op) error
}

// Memory is a *malloc.Heap, as far as the protocol uses it.
type Memory interface {
	Alloc(ctx context.Context, size int) (malloc.Block, error)
	Free(ctx context.Context, b malloc.Block) error
	Ref(b malloc.Block) (malloc.Ref, error)
	At(r malloc.Ref, size int) malloc.Block
}

// A Table is a hash table in borrowed memory. See the package comment.
type Table struct {
	fabric Fabric
	memory Memory
	heap   *malloc.Heap // memory, if it is the table's own
	groups uint32       // of a subtable
	alone  bool         // one goroutine splits a subtable at a time
	seed   uint64       // of hashes

	epochs  epochs
	idle    sync.Pool // of *op
	ids     atomic.Uint32
	number  atomic.Uint64 // of the last vacant word
	inDoubt atomic.Int64

	directory atomic.Pointer[directory]
	mu        sync.Mutex // serialises changes of the directory
	subtables int        // guarded by mu
}

// A directory has a subtable for every value of the low depth bits of a hash. Entries
// change with Table.mu held, and no more once there is another directory, twice as long.
type directory struct {
	depth   uint
	entries []atomic.Pointer[subtable]
}

// A subtable has the keys whose hashes end with the low depth bits of suffix.
type subtable struct {
	block  malloc.Block
	depth  uint
	suffix uint64
	turn   chan struct{} // capacity 1: has an element while somebody splits it
}

// New makes an empty table in memory of p's, which stays the caller's.
func New(ctx context.Context, p *pool.Pool) (*Table, error) { return open(ctx, p, groups) }

func open(ctx context.Context, p *pool.Pool, groups uint32) (*Table, error) {
	heap, err := malloc.New(p, malloc.Config{})
	if err != nil {
		return nil, fmt.Errorf("cannot make a table: %w", err)
	}
	t := &Table{fabric: p, memory: heap, heap: heap, groups: groups, alone: true, seed: rand.Uint64()}
	t.epochs.batch = 64
	if err := t.init(ctx); err != nil {
		return nil, fmt.Errorf("cannot make a table: %w", errors.Join(err, heap.Close(context.WithoutCancel(ctx))))
	}
	return t, nil
}

// Over makes an empty table over something other than a pool: a simulator's fabric and memory, under which nobody may
// wait for a channel. A subtable has so many groups of buckets, at least 2; keys are hashed with the seed. All
// goroutines that meet a full subtable split it: they do not take turns.
func Over(ctx context.Context, f Fabric, m Memory, groups uint32, seed uint64) (*Table, error) {
	t := &Table{fabric: f, memory: m, groups: groups, seed: seed}
	t.epochs.batch = 64
	if err := t.init(ctx); err != nil {
		return nil, fmt.Errorf("cannot make a table: %w", err)
	}
	return t, nil
}

// init makes the first subtable.
func (t *Table) init(ctx context.Context) error {
	s, err := t.newSubtable(ctx, 0, 0)
	if err != nil {
		return err
	}
	zero := []pool.Op{{Kind: pool.OpWrite, Chunk: s.block.Chunk, Off: s.block.Off, Buf: make([]byte, s.block.Size)}}
	if err := t.fabric.Do(ctx, zero); err != nil {
		return err
	}
	d := &directory{entries: make([]atomic.Pointer[subtable], 1)}
	d.entries[0].Store(s)
	t.directory.Store(d)
	t.subtables = 1
	return nil
}

// Close gives the table's memory back. Nothing is to be done with the table
// meanwhile, or afterwards. It is idempotent. What Over was given stays the caller's.
func (t *Table) Close(ctx context.Context) error {
	if t.heap == nil {
		return nil
	}
	if err := t.heap.Close(ctx); err != nil {
		return fmt.Errorf("cannot give a table's memory back: %w", err)
	}
	return nil
}

// Stats is a table's state.
type Stats struct {
	Subtables int          // that the directory has, of 24 KiB each
	Memory    malloc.Stats // of subtables and blocks, with those that are about to be freed; not of Over's
	InDoubt   int64        // blocks that maybe no slot names: the outcome of a CMP_SWAP is unknown
}

// Stats returns t's statistics. They are not taken at one instant.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	n := t.subtables
	t.mu.Unlock()
	s := Stats{Subtables: n, InDoubt: t.inDoubt.Load()}
	if t.heap != nil {
		s.Memory = t.heap.Stats()
	}
	return s
}

func (t *Table) hash(key []byte) hash { return hash(xxh3.Hash128Seed(key, t.seed)) }

// lookup returns the subtable of keys with a hash.
func (t *Table) lookup(lo uint64) *subtable {
	d := t.directory.Load()
	return d.entries[lo&(1<<d.depth-1)].Load()
}

// newSubtable allocates a subtable. What it holds at first is not defined.
func (t *Table) newSubtable(ctx context.Context, depth uint, suffix uint64) (*subtable, error) {
	b, err := t.memory.Alloc(ctx, int(t.groups)*groupSize)
	if err != nil {
		return nil, err
	}
	return &subtable{block: b, depth: depth, suffix: suffix, turn: make(chan struct{}, 1)}, nil
}

// replace enters the halves of s in its place, unless somebody has done that.
func (t *Table) replace(s *subtable, halves [2]*subtable) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.directory.Load()
	if d.entries[s.suffix].Load() != s {
		return false
	}
	if s.depth == d.depth {
		twice := &directory{depth: d.depth + 1, entries: make([]atomic.Pointer[subtable], 2*len(d.entries))}
		for i := range twice.entries {
			twice.entries[i].Store(d.entries[i%len(d.entries)].Load())
		}
		defer t.directory.Store(twice)
		d = twice
	}
	for i := s.suffix; i < uint64(len(d.entries)); i += 1 << s.depth {
		d.entries[i].Store(halves[i>>s.depth&1])
	}
	t.subtables++
	return true
}

// vacant returns a word that no slot has had.
func (t *Table) vacant() word { return word(t.number.Add(1)) & refMask }

// blockOf returns the block of a word.
func (t *Table) blockOf(w word) malloc.Block {
	return t.memory.At(w.ref(), sizeOf(w.length()))
}
