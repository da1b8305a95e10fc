package bytemap

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/store"
	"polder/internal/ended"
)

// Maps is the maps of a heap. Init makes it usable.
type Maps struct {
	core     *heap.Heap
	maxValue int    // Config.MaxValue
	shards   int    // of every map
	most     int    // how many maps there may be at a time
	seed     uint64 // of the hash of keys; secret, and needed to find a key again
	pieces   int    // the longest value that is one entry; longer ones are in pieces of this length

	ending sync.RWMutex // read-locked to change many entries that count together, locked for a checkpoint

	maps atomic.Pointer[[]*Map] // by id; freed maps stay until others get their ids; replaced under mu

	mu      sync.Mutex
	past    ended.Sums[Stats] // of maps that were freed, under mu
	version uint64            // the last one given to a large value, under mu
	writing map[uint64]bool   // versions whose head is not stored yet, under mu
	orphans []orphan          // large values whose pieces are to be removed, under mu
	freed   []uint16          // ids of maps that were freed, under mu
	none    []shard           // the shards of all freed maps: closed, and empty; made under mu

	freedMuts atomic.Uint64 // changes of maps that were freed: see Changes

	strays    atomic.Bool   // there may be pieces without a head
	strayWait time.Duration // how long the next search for strays waits, longer after each failure; the janitor's
	strayNext time.Time     // when that wait ends; the janitor's
	sweeper   sweeper       // the janitor's

	leaves       *index.Key // the key that leaves are sealed with
	settler      settler
	settleAlways bool          // see tight; for tests
	fixed        int64         // bytes of the budget that buffers take, and that logs take at the least
	settled      atomic.Uint64 // tables that the settler has worked on
	leafReads    atomic.Uint64
	finder       store.Finder    // the store, if it is a Finder, or nil
	sought       []atomic.Uint64 // hashes of keys that the store was asked for of late
	found        atomic.Uint64   // entries that the store has found
	miscounts    atomic.Uint64   // times that the count of a leaf was found to be wrong
	leavesLost   atomic.Bool     // a leaf was lost, so nobody knows all that lives in far memory
	cleaning     atomic.Uint64   // number of the far segment being cleaned, whose words no table forgets; 0 for none
	cleanedPages atomic.Uint64   // far segments of leaves that were cleaned

	multigets sync.Pool // of *multiget
	lookups   sync.Pool // of *finds
	snapshots sync.Pool // of *snapshot
}

const (
	maxPiece  = 64 << 10 // the longest piece of a large value
	maxShards = 4096     // the most that a map has
)

// Config configures maps.
type Config struct {
	MaxValue int  // the largest value in bytes
	Most     int  // how many maps there may be at a time: their numbers are below it
	Shards   int  // of every map, a power of two; if 0, the budget decides
	Early    bool // words of far entries are settled as soon as a table of a page is full; for tests
}

// Init makes h the maps of the heap core, whose memory is divided as sz says.
func (h *Maps) Init(core *heap.Heap, sz heap.Sizes, cfg Config) {
	h.core, h.maxValue, h.most = core, cfg.MaxValue, cfg.Most
	if h.shards = cfg.Shards; h.shards == 0 {
		h.shards = min(max(heap.Floor2(core.Cfg.Local/(256<<10)), 64), maxShards)
	}
	h.pieces = min(sz.Staging/8, maxPiece)
	h.seed, h.leaves = rand.Uint64(), index.NewKey(index.NewSecret())
	h.writing = map[uint64]bool{}
	h.settleAlways = cfg.Early || SettleEarly
	h.fixed = sz.Local() - sz.Logs + int64((heap.MinSegments+sz.Open)*sz.SegSize)
	h.sweeper.klen = 64
	if h.finder, _ = core.Far.Store.(store.Finder); h.finder != nil {
		h.sought = make([]atomic.Uint64, soughtAgain)
	}
	h.maps.Store(&[]*Map{})
	h.settler.init(h)
}

// Start begins what maps do in the background. It ends with the heap.
func (h *Maps) Start() { h.core.Wg.Go(h.settler.run) }

// MaxValue is the largest value in bytes that a map takes.
func (h *Maps) MaxValue() int { return h.maxValue }

// New makes an empty map, or returns the map that had this name at the last checkpoint, if nobody has asked for that
// yet. Types names the types of its keys and values, or is empty if they are plain byte strings.
func (h *Maps) New(name, types string, exclusive bool) (*Map, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m, err := h.keptBy(name, types, exclusive); m != nil || err != nil {
		return m, err
	}
	old := *h.maps.Load()
	m := &Map{h: h, name: name, types: types, exclusive: exclusive}
	var maps []*Map
	if n := len(h.freed); n > 0 {
		// Nobody refers to what the last map with this number has left in the logs: an owner is asked by address.
		m.id, h.freed = h.freed[n-1], h.freed[:n-1]
		maps = slices.Clone(old)
		maps[m.id] = m
	} else {
		if len(old) == h.most {
			panic(fmt.Sprintf("BUG: more than %d maps on a heap", h.most))
		}
		m.id = uint16(len(old))
		maps = append(old[:len(old):len(old)], m)
	}
	h.maps.Store(&maps)
	return m, nil
}

// keptBy returns the map of this name that is from a checkpoint and that nobody has asked for yet, or nil if there is
// none. It fails if types is not empty and the map has others. h.mu must be held.
func (h *Maps) keptBy(name, types string, exclusive bool) (*Map, error) {
	for _, m := range *h.maps.Load() {
		if !m.kept || m.name != name {
			continue
		}
		if types != "" && m.types != types {
			return nil, fmt.Errorf("map %q was made from %s, and cannot be opened as one from %s", name, cmp.Or(m.types, "bytes to bytes"), types)
		}
		m.kept, m.exclusive = false, exclusive
		return m, nil
	}
	return nil, nil
}

// Shut closes the shards of all maps, so that calls fail from now on. The heap's goroutines must have ended.
func (h *Maps) Shut() {
	h.mu.Lock() // whoever makes shards meanwhile either is seen here, or sees that the heap is closed
	maps := *h.maps.Load()
	h.mu.Unlock()
	for _, m := range maps {
		m.eachShard(func(sh *shard) { sh.closed = true })
	}
}

// Close gives back the memory of the indexes. Each map must have been shut, or never used.
func (h *Maps) Close() error {
	var errs []error
	h.eachShard(func(sh *shard) {
		errs = append(errs, sh.t.Close(), sh.cold.close())
		sh.entries, sh.lost = 0, 0
	})
	return errors.Join(append(errs, h.settler.close())...)
}
