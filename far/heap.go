package far

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/objects"
	"polder/far/store"
	"polder/internal/ended"
	"polder/internal/invariants"
)

// Heap is memory for maps and for objects of pointers: a local budget and a
// store behind it.
type Heap struct {
	core     heap.Heap
	maxValue int    // Config.MaxValue
	shards   int    // of every map
	seed     uint64 // of the hash of keys; secret, and what it takes to find a key again
	pieces   int    // the longest value that is one entry

	state   []byte       // of the program, in the checkpoint that the heap was opened with
	stateOf func() State // see KeepState; under checkpoint

	checkpoint    chan struct{} // capacity 1: has something in it while one is taken
	every         time.Duration // between two checkpoints, 0 for none
	checkpointed  atomic.Int64  // when the last one was taken, in Unix nanoseconds
	checkpointAt  atomic.Uint64 // changes by then, or before
	checkpointErr atomic.Pointer[error]
	ending        sync.RWMutex // held by what changes many entries that count together, and by a checkpoint

	maps atomic.Pointer[[]*ByteMap] // by id, the freed ones, too, until others have theirs; replaced under mu

	objects  objects.Space // of pointers
	defaults defaults      // classes of New
	clones   clones        // of Shared
	strings  atomic.Pointer[bytesClasses]
	held     [heldParts]heldBytes
	ahead    prefetching

	once       sync.Once
	mu         sync.Mutex
	pastMaps   ended.Sums[MapStats] // of maps that were freed, under mu
	structures []*tracker           // that exist, under mu
	version    uint64               // the last one of a large value, under mu
	writing    map[uint64]bool      // versions whose head is not stored yet, under mu
	orphans    []orphan             // large values whose pieces are to be removed, under mu
	freedMaps  []uint16             // ids of maps that were freed, under mu
	none       []shard              // of maps that were freed: closed, and empty; made under mu

	strays    atomic.Bool   // there may be pieces without a head
	strayWait time.Duration // what strays wait, longer each time it is in vain; the janitor's
	strayNext time.Time     // the janitor's
	sweeper   sweeper       // the janitor's

	leaves       *index.Key // of what tables have no room for
	settler      settler
	settleAlways bool          // see tight; for tests
	settled      atomic.Uint64 // tables that the settler has worked on
	leafReads    atomic.Uint64
	finder       store.Finder    // that the store is, or nil
	sought       []atomic.Uint64 // hashes of keys that the store was asked for of late
	found        atomic.Uint64   // entries that the store has found
	miscounts    atomic.Uint64   // leaves of which a count was found to be wrong
	leavesLost   atomic.Bool     // so that nobody knows all of what lives in far memory
	cleaning     atomic.Uint64   // number of the far segment that is being cleaned, of which no word is forgotten; 0 for none
	cleanedPages atomic.Uint64   // far segments of leaves that were cleaned

	multigets sync.Pool // of *multiget
	lookups   sync.Pool // of *finds
	snapshots sync.Pool // of *snapshot
}

const maxPiece = 64 << 10

// NewHeap makes a heap with a local budget of cfg.Local bytes over store, of which nothing is left when it is closed. It
// fails if the configuration is wrong.
func NewHeap(store Store, cfg Config) (*Heap, error) {
	lay, err := layoutFor(store, &cfg)
	if err != nil {
		return nil, err
	}
	return newHeap(store, cfg, lay)
}

// layoutFor divides the budget that cfg has, of which it sets what is left to it.
func layoutFor(store Store, cfg *Config) (layout, error) {
	if cfg.MaxValue < 0 || int64(cfg.MaxValue) > 1<<32-1 {
		return layout{}, fmt.Errorf("cannot make a heap: MaxValue is %d, want 0 to 4 GiB", cfg.MaxValue)
	}
	if cfg.MaxLocal == 0 {
		cfg.MaxLocal = 4 * cfg.Local
	}
	sz, err := heap.SizesFor(store, cfg.core())
	if err != nil {
		return layout{}, fmt.Errorf("cannot make a heap: %w", err)
	}
	if cfg.MaxValue == 0 {
		cfg.MaxValue = int(min(cfg.Local/4, 512<<20))
	}
	return layout{Sizes: sz, shards: min(max(heap.Floor2(cfg.Local/(256<<10)), 64), 4096)}, nil
}

// layout is how a heap divides its budget.
type layout struct {
	heap.Sizes
	shards int         // of a map
	policy heap.Policy // nil is CLOCK; for tests
	early  bool        // words of far entries are settled as soon as a table of a page is full; for tests
}

func newHeap(store Store, cfg Config, lay layout) (*Heap, error) {
	h, err := prepare(store, cfg, lay)
	if err == nil {
		h.start()
	}
	return h, err
}

// prepare makes a heap that is yet to be started.
func prepare(st store.Store, cfg Config, lay layout) (*Heap, error) {
	h := &Heap{
		maxValue: cfg.MaxValue,
		shards:   lay.shards,
		seed:     rand.Uint64(),
		pieces:   min(lay.Staging/8, maxPiece),
		writing:  map[uint64]bool{},
		leaves:   index.NewKey(index.NewSecret()),
		every:    cfg.CheckpointEvery,

		checkpoint:   make(chan struct{}, 1),
		settleAlways: lay.early || settleEarly,
		sweeper:      sweeper{klen: 64},
	}
	h.stateOf = func() State { return State{Bytes: h.state} } // until the program says what is to be kept
	if h.finder, _ = st.(store.Finder); h.finder != nil {
		h.sought = make([]atomic.Uint64, soughtAgain)
	}
	h.maps.Store(&[]*ByteMap{})
	core := cfg.core()
	core.Policy = lay.policy
	if err := h.core.Init(st, core, lay.Sizes, (*host)(h)); err != nil {
		return nil, fmt.Errorf("cannot make a heap: %w", err)
	}
	if err := h.objects.Init(&h.core, lay.Sizes); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a heap: %w", err), h.unmap())
	}
	register(h)
	h.settler.init(h)
	return h, nil
}

func (h *Heap) start() {
	h.core.Start()
	h.core.Wg.Go(h.settler.run)
}

// NewByteMap makes an empty map on the heap; or, on one that was opened again, returns the map
// that had the name, which nobody has asked for yet. The name appears in statistics, too. A heap
// takes 49,152 maps at a time.
func (h *Heap) NewByteMap(name string) *ByteMap {
	m, err := h.newByteMap(name, "")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return m
}

// newByteMap is NewByteMap of a map whose keys and values are of those types, if the name has no others. Without types
// they are bytes, as all are in the end.
func (h *Heap) newByteMap(name, types string) (*ByteMap, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m, err := h.keptBy(name, types); m != nil || err != nil {
		return m, err
	}
	old := *h.maps.Load()
	m := &ByteMap{h: h, name: name, types: types}
	var maps []*ByteMap
	if n := len(h.freedMaps); n > 0 {
		// What is left in the logs of the map that had the number nobody refers to: an owner is
		// asked by address.
		m.id, h.freedMaps = h.freedMaps[n-1], h.freedMaps[:n-1]
		maps = slices.Clone(old)
		maps[m.id] = m
	} else {
		if len(old) == objects.FirstOwner {
			panic("BUG: more than 49,152 maps on a heap")
		}
		m.id = uint16(len(old))
		maps = append(old[:len(old):len(old)], m)
	}
	h.maps.Store(&maps)
	return m, nil
}

// Close stops the heap's goroutines and gives its far memory back, or, after Open, takes a checkpoint first and leaves that
// for the next Open. Calls that
// wait for room end with ErrClosed; Close waits for those that read from the
// store. Closing twice is a no-op.
func (h *Heap) Close() error {
	var err error
	h.once.Do(func() { err = h.close() })
	return err
}

func (h *Heap) close() error {
	var errs []error
	if h.core.Far.Keeps() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		if err := h.Checkpoint(ctx); err != nil {
			errs = append(errs, err)
		}
		cancel()
	}
	h.core.Stop()
	h.mu.Lock() // whoever makes a map meanwhile either is seen here, or sees that the heap is closed
	maps := *h.maps.Load()
	h.mu.Unlock()

	shards := func(fn func(sh *shard)) {
		for _, m := range maps {
			for i := range m.shards() {
				fn(m.at(i))
			}
		}
	}
	shards(func(sh *shard) {
		sh.mu.Lock()
		sh.closed = true
		sh.mu.Unlock()
	})
	quiet := h.core.AwaitScopes()
	if invariants.Enabled && quiet == nil {
		if err := h.audit(); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	if quiet == nil {
		// Who enters a scope from now on finds no object; who was faster is
		// waited for.
		h.objects.End()
		quiet = h.core.AwaitScopes()
	}
	shards(func(sh *shard) {
		sh.mu.Lock()
		errs = append(errs, sh.t.Close(), sh.cold.close())
		sh.entries, sh.lost = 0, 0
		sh.mu.Unlock()
	})
	// Nothing reaches the logs any more: every access goes through an index.
	errs = append(errs, h.settler.close(), h.core.GiveBack())
	unregister(h)
	if quiet != nil {
		errs = append(errs, quiet) // and the memory stays mapped
	} else {
		errs = append(errs, h.unmap())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot close the heap cleanly: %w", err)
	}
	return nil
}

// closeTimeout is how long Close tries to take a checkpoint.
const closeTimeout = time.Minute

// unmap gives the local memory back.
func (h *Heap) unmap() error { return errors.Join(h.objects.Close(), h.core.Unmap()) }
