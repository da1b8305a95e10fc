package far

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"polder/internal/arena"
	"polder/internal/invariants"
)

// Heap is memory for maps and for objects of pointers: a local budget and a
// store behind it.
type Heap struct {
	cfg    Config
	shards int          // of every map
	seed   maphash.Seed // never leaves the process
	logs   logs
	far    farLog
	bufs   buffers

	staging *arena.Mapping // the evacuator's and the cleaner's buffers
	scratch []byte         // what the cleaner reads segments into
	pieces  int            // the longest value that is one entry

	maps atomic.Pointer[[]*ByteMap] // by id; replaced under mu

	words     words                    // of pointers
	caches    []wordCache              // of logs.objects, and then of logs.streams
	classes   atomic.Pointer[[]*class] // by id; replaced under mu
	defaults  defaults                 // classes of New
	strings   atomic.Pointer[bytesClasses]
	held      [fetchParts]heldBytes
	maxObject int // bytes of an object's data; immutable
	maxLocal  int // the same of a slot that is being read into; immutable
	scopes    scopes
	ahead     prefetching
	fetching  [fetchParts]fetching
	runs      runs
	pass      pass         // the evacuator's
	turn      turn         // the same
	barren    int          // passes in a row that made no room; the evacuator's
	shrinking bool         // room is made for what shrinks; the evacuator's
	forced    atomic.Bool  // work on one more segment, whether it is needed or not
	shut      atomic.Bool  // Close has begun
	local     atomic.Int64 // the budget

	mu         sync.Mutex
	serials    uint64                 // of classes, under mu
	retired    []retiredClass         // whose numbers are free, or about to be; under mu
	past       map[string]*ClassStats // of classes that have ended, by name, under mu
	structures []*tracker             // that exist, under mu
	version    uint64                 // the last one of a large value, under mu
	writing    map[uint64]bool        // versions whose head is not stored yet, under mu
	orphans    []orphan               // large values whose pieces are to be removed, under mu

	strays   atomic.Bool            // there may be pieces without a head
	lastLost atomic.Pointer[string] // name of the last segment that was lost

	calls      calls         // in their slow path
	flights    sync.Pool     // of *flight
	batches    sync.Pool     // of *batch
	snapshots  sync.Pool     // of *snapshot
	epochShift atomic.Uint32 // see admits: log2 of a shard's bytes of an epoch
	poke       chan struct{} // wakes the janitor
	ctx        context.Context
	cancel     context.CancelFunc
	wg         sync.WaitGroup
	once       sync.Once
	count      counters
}

// MinSegmentSize is the least size of a store's segments, in bytes: one holds an
// entry with the longest key.
const MinSegmentSize = 128 << 10

const (
	maxLogSegment = 2 << 20 // a huge page, as in the paper
	maxPiece      = 64 << 10
)

// NewHeap makes a heap with a local budget of cfg.Local bytes over store. It
// fails if the configuration is wrong.
func NewHeap(store Store, cfg Config) (*Heap, error) {
	if cfg.Local < MinLocal {
		return nil, fmt.Errorf("cannot make a heap: the local budget is %d bytes, at least %d are needed", cfg.Local, MinLocal)
	}
	if cfg.MaxValue < 0 || int64(cfg.MaxValue) > 1<<32-1 {
		return nil, fmt.Errorf("cannot make a heap: MaxValue is %d, want 0 to 4 GiB", cfg.MaxValue)
	}
	if cfg.MaxLocal == 0 {
		cfg.MaxLocal = 4 * cfg.Local
	}
	if cfg.MaxLocal < cfg.Local {
		return nil, fmt.Errorf("cannot make a heap: MaxLocal is %d, less than Local, which is %d", cfg.MaxLocal, cfg.Local)
	}
	if cfg.ScopeBytes < 0 {
		return nil, fmt.Errorf("cannot make a heap: ScopeBytes is %d, want a number of bytes, or 0 for the default", cfg.ScopeBytes)
	}
	if n := store.SegmentSize(); n < MinSegmentSize || n&(n-1) != 0 {
		return nil, fmt.Errorf("cannot make a heap: the store's segments are %d bytes, want a power of two of at least %d", n, MinSegmentSize)
	}
	if cfg.MaxValue == 0 {
		cfg.MaxValue = int(min(cfg.Local/4, 512<<20))
	}
	segSize := min(max(floor2(cfg.Local/128), MinSegmentSize), maxLogSegment)
	lay := layout{
		segSize: segSize,
		staging: min(segSize, store.SegmentSize()),
		fetch:   min(max(floor2(cfg.Local/32), 2*maxBuf), 8<<20),
		shards:  min(max(floor2(cfg.Local/(256<<10)), 64), 4096),
	}
	lay.logs = cfg.Local - int64(2*lay.staging+lay.fetch)
	lay.most = lay.logs + cfg.MaxLocal - cfg.Local
	lay.open = min(floor2(int64(runtime.GOMAXPROCS(0))), max(floor2(lay.logs/int64(segSize)/16), 1), 16)
	return newHeap(store, cfg, lay)
}

// layout is how a heap divides its budget. All sizes are powers of two.
type layout struct {
	segSize int   // of the local logs
	staging int   // size of the evacuator's buffer, and of the cleaner's
	fetch   int   // memory for fetches
	logs    int64 // memory for logs and indexes
	most    int64 // the most that SetLocal can make of it; 0 is logs
	open    int   // segments that mutators append to at a time
	shards  int   // of a map
}

func newHeap(store Store, cfg Config, lay layout) (*Heap, error) {
	h := &Heap{
		cfg:     cfg,
		shards:  lay.shards,
		seed:    maphash.MakeSeed(),
		pieces:  min(lay.staging/8, maxPiece),
		poke:    make(chan struct{}, 1),
		writing: map[uint64]bool{},
	}
	h.calls.init()
	h.maps.Store(&[]*ByteMap{})
	h.classes.Store(&[]*class{})
	h.local.Store(cfg.Local)
	h.setEpochs(cfg.Local)
	lay.most = max(lay.most, lay.logs)
	var err error
	if h.staging, err = arena.Anonymous(2*lay.staging, false); err != nil {
		return nil, fmt.Errorf("cannot make a heap: %w", err)
	}
	mem := h.staging.Bytes()
	h.scratch = mem[lay.staging:]
	h.far.init(store, mem[:lay.staging:lay.staging])
	if err = h.bufs.init(lay.fetch); err == nil {
		err = h.logs.init(lay.logs, lay.most, int64(2*lay.staging+lay.fetch), lay.segSize, lay.open)
	}
	if err == nil {
		err = h.words.init(lay.most)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a heap: %w", err), h.unmap())
	}
	h.caches = make([]wordCache, 2*lay.open)
	h.maxObject = min(lay.segSize-objectHeader, lay.staging-headerSize-trailerSize) &^ (unit - 1)
	h.maxObject = min(h.maxObject, lay.segSize-objectHeader-headerSize-unit) // of which the class has to fit, too
	h.maxObject = classSize(sizeClass(h.maxObject)-1) - headerSize - unit
	h.maxLocal = lay.segSize - objectHeader
	least := cfg.ScopeBytes
	if least == 0 {
		least = min(64<<10, lay.segSize/2)
	}
	h.scopes.init(least)
	h.logs.crowd = h.scopes.crowd
	register(h)
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.wg.Go(h.evacuator)
	h.wg.Go(h.janitor)
	return h, nil
}

// cacheOf is the words that were handed out to an allocation buffer.
func (h *Heap) cacheOf(ol *openLog) *wordCache {
	ols, first := h.logs.objects, 0
	if ol.kind == streams {
		ols, first = h.logs.streams, len(ols)
	}
	return &h.caches[first+ol.id&(len(ols)-1)]
}

// floor2 is the largest power of two that is not above n, which is positive.
func floor2(n int64) int { return 1 << (bits.Len64(uint64(n)) - 1) }

// NewByteMap makes an empty map on the heap. Name appears in statistics. A heap
// takes 65,535 maps; they live as long as it does.
func (h *Heap) NewByteMap(name string) *ByteMap {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := *h.maps.Load()
	if len(old) == 1<<16-1 {
		panic("BUG: more than 65,535 maps on a heap")
	}
	m := &ByteMap{h: h, id: uint16(len(old)), name: name, shards: make([]shard, h.shards)}
	for i := range m.shards {
		m.shards[i].id = i
	}
	if h.calls.closed.Load() {
		for i := range m.shards {
			m.shards[i].closed = true
		}
	}
	maps := append(old[:len(old):len(old)], m)
	h.maps.Store(&maps)
	return m
}

// Close stops the heap's goroutines and gives its far memory back. Calls that
// wait for room end with ErrClosed; Close waits for those that read from the
// store. Closing twice is a no-op.
func (h *Heap) Close() error {
	var err error
	h.once.Do(func() { err = h.close() })
	return err
}

func (h *Heap) close() error {
	h.shut.Store(true)
	h.mu.Lock() // whoever makes a map either is seen below, or sees this
	h.calls.close()
	h.mu.Unlock()
	h.cancel()
	<-h.calls.idle
	h.wg.Wait()

	var errs []error
	shards := func(fn func(sh *shard)) {
		for _, m := range *h.maps.Load() {
			for i := range m.shards {
				fn(&m.shards[i])
			}
		}
	}
	shards(func(sh *shard) {
		sh.mu.Lock()
		sh.closed = true
		sh.mu.Unlock()
	})
	quiet := h.awaitScopes()
	if invariants.Enabled && quiet == nil {
		if err := h.audit(); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	if quiet == nil {
		// Who enters a scope from now on finds no object; who was faster is
		// waited for.
		h.words.all(func(n uint64, _ pword) { storeWord(h.words.at(n), freeWord) })
		quiet = h.awaitScopes()
	}
	shards(func(sh *shard) {
		sh.mu.Lock()
		errs = append(errs, sh.t.close())
		sh.entries, sh.lost = 0, 0
		sh.mu.Unlock()
	})
	// Nothing reaches the logs any more: every access goes through an index.
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	for s := h.far.takeSpare(false); s != nil; s = h.far.takeSpare(false) {
		errs = append(errs, s.Free(ctx))
	}
	for s := h.far.takeIdle(false); s != nil; s = h.far.takeIdle(false) {
		errs = append(errs, s.Free(ctx))
	}
	for _, d := range h.far.takeOwed() {
		errs = append(errs, d.seg.Free(ctx))
	}
	h.far.all(func(s *farSegment) {
		if !s.gone() {
			errs = append(errs, s.seg.Free(ctx))
		}
	})
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

// unmap gives the local memory back.
func (h *Heap) unmap() error {
	var errs []error
	// Pointers outlive the heap, and have to find something: their words stay.
	if h.words.mapping != nil && h.words.pages.Load() == 0 {
		errs = append(errs, h.words.close())
	}
	for _, m := range []*arena.Mapping{h.logs.mapping, h.bufs.mapping, h.staging} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}
