package soft

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/processor"
	"polder/soft/internal/order"
	"polder/soft/mrc"
)

// counters are what a heap counts as it goes.
type counters struct {
	hits, misses   spread
	rebuilds       atomic.Uint64
	rebuildNanos   atomic.Uint64
	revoked        atomic.Uint64 // segments taken without our help
	lostObjects    atomic.Uint64 // objects that were in them
	lostBytes      atomic.Uint64
	evictedObjects atomic.Uint64
	evictedBytes   atomic.Uint64
	saved          atomic.Uint64 // bytes copied by the evacuator
}

// spread is a counter that many processors may raise at once.
type spread struct{ n [16]spreadLine }

type spreadLine struct {
	atomic.Uint64
	_ [56]byte
}

func (s *spread) add() { s.n[processor.Number()&15].Add(1) }

func (s *spread) load() (n uint64) {
	for i := range s.n {
		n += s.n[i].Load()
	}
	return n
}

// Stats is what a heap has done and what it holds.
type Stats struct {
	Budget  int64 // bytes that the heap may use now
	Free    int64 // how much of it is in segments that hold nothing
	Live    int64 // bytes of objects, headers included
	Objects int64

	Hits, Misses uint64

	// Rebuilds counts the values that reconstructors made, and the values that the program made itself and reported
	// (such as with Heap.Rebuilt or Item.Took). RebuildTime is how long making them took: the paper's RCOST.
	Rebuilds    uint64
	RebuildTime time.Duration

	RevokedSegments uint64 // taken by the coordinator, empty ones included
	LostObjects     uint64 // that were in them
	LostBytes       uint64

	EvictedObjects uint64 // by our own evacuator
	EvictedBytes   uint64
	SavedBytes     uint64 // copied by it: hot objects, and those of sparse segments
}

// Stats returns the counters. It does not stop anybody, so that figures that
// change together may be a few operations apart.
func (h *Heap) Stats() Stats {
	c := &h.count
	s := Stats{
		Hits: c.hits.load(), Misses: c.misses.load(),
		Rebuilds: c.rebuilds.Load(), RebuildTime: time.Duration(c.rebuildNanos.Load()),
		RevokedSegments: c.revoked.Load(), LostObjects: c.lostObjects.Load(), LostBytes: c.lostBytes.Load(),
		EvictedObjects: c.evictedObjects.Load(), EvictedBytes: c.evictedBytes.Load(), SavedBytes: c.saved.Load(),
	}
	for i := range h.live {
		l := live(h.live[i].Load())
		s.Live += int64(l.granules()) * granule
		s.Objects += int64(l.objects())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Budget = int64(h.list.granted()) * SegmentSize
	s.Free = int64(len(h.list.free)) * SegmentSize
	return s
}

// ghosts remember evicted objects: a part of an object's hash, and how many bytes had been evicted before it. The
// bytes that were evicted since then say how much larger the heap should have been to keep the object. ghosts are a
// table with one place for each hash, where newer ghosts replace older ones.
type ghosts struct {
	table []atomic.Uint64 // fingerprint (32) | was young (1) | bytes evicted before, in units of 64 KiB (31)
	mask  uint64
}

const ghostYoung = 1 << 31

func (g *ghosts) init(n int) {
	n = 1 << bits.Len(uint(min(max(n, 1024), 1<<22)-1))
	g.table = make([]atomic.Uint64, n)
	g.mask = uint64(n - 1)
}

func ghostHash(owner uint16, ref uint64) uint64 {
	return mix(ref<<16 | uint64(owner))
}

// mix spreads a hash's or a number's bits (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// ghostBatch are ghosts that are yet to be added: their places lie all over
// memory, and fetching many at once takes not much longer than fetching one.
type ghostBatch struct {
	n     int
	place [64]uint64
	ghost [64]uint64
}

func (g *ghosts) add(b *ghostBatch, hd header, evicted uint64, young bool) {
	x := ghostHash(hd.owner, hd.ref)
	v := x>>32<<32 | evicted>>16&(ghostYoung-1)
	if young {
		v |= ghostYoung
	}
	b.place[b.n], b.ghost[b.n] = x&g.mask, v
	if b.n++; b.n == len(b.place) {
		g.flush(b)
	}
}

func (g *ghosts) flush(b *ghostBatch) {
	for _, i := range b.place[:b.n] {
		g.table[i].Load() // fetches
	}
	for k, i := range b.place[:b.n] {
		order.Store(&g.table[i], b.ghost[k]) // nobody relies on it
	}
	b.n = 0
}

// take reports whether an object was evicted lately, how many bytes had been evicted before it and whether it was
// young, and forgets it.
func (g *ghosts) take(owner uint16, ref uint64) (evicted uint64, young, ok bool) {
	x := ghostHash(owner, ref)
	p := &g.table[x&g.mask]
	v := p.Load()
	if v == 0 || v>>32 != x>>32 {
		return 0, false, false
	}
	p.Store(0)
	return v & (ghostYoung - 1) << 16, v&ghostYoung != 0, true
}

// returned records that an object of n bytes is stored, and reports whether it was evicted lately. If it was evicted
// from a young segment, it would have been kept if the young queue had been longer; if from an old segment, the old
// queue. So the share of the young follows the load, as ARC's does.
func (h *Heap) returned(owner uint16, ref uint64, n uint32) bool {
	at, young, ok := h.ghosts.take(owner, ref)
	if !ok {
		return false
	}
	now := h.count.evictedBytes.Load()
	missing := now - min(at, now)
	if missing < uint64(h.cfg.Max) { // else not even the largest heap would have kept it
		h.evac.shift(int64(n), young)
	}
	return true
}

// sampler feeds a miss-ratio curve with the accesses to all containers.
type sampler struct {
	threshold atomic.Uint64
	mu        sync.Mutex
	s         *mrc.Sampler
	count     *counters // the heap's
	prior     uint64
	records   float64 // since the last interval
	seen      float64 // s.Seen() at the end of the last interval
	recent    float64 // accesses per second, lately; 0 before the first interval
	said      bool    // somebody has said what a value costs
}

// sampledKeys bounds the memory that the curve takes, and sampledRate, in
// accesses a second, the time: about 6 ms in a second.
const (
	sampledKeys = 16 << 10
	sampledRate = 20000
)

// init begins to sample. Without it, no access is sampled.
func (c *sampler) init(limit int64) {
	c.s = mrc.New(SegmentSize/8, limit, sampledKeys)
	c.threshold.Store(c.s.Threshold())
}

// access records an access, if the key is one of the sample.
//
//polder:hot
func (c *sampler) access(owner uint16, ref uint64, size uint32, cost uint8) {
	if t := c.threshold.Load(); t != 0 {
		if x := ghostHash(owner, ref); x < t {
			c.record(x, size, cost)
		}
	}
}

//go:noinline
func (c *sampler) record(x uint64, size uint32, cost uint8) {
	if !c.mu.TryLock() {
		return // somebody else is recording: one sample less
	}
	defer c.mu.Unlock()
	c.records++
	c.said = c.said || cost != unknownCost
	c.s.Access(x, int64(size), c.seconds(cost))
	c.lower()
}

// lower follows the sampler, which samples less when there are more keys.
func (c *sampler) lower() { c.threshold.Store(min(c.threshold.Load(), c.s.Threshold())) }

// accessCell is access for a value that a cell names. Such an access is not counted as a hit: counting would cost
// more than reading the value.
//
//polder:hot
func (h *Heap) accessCell(owner uint16, ref uint64, w word) {
	if t := h.curve.threshold.Load(); t != 0 {
		if x := ghostHash(owner, ref); x < t {
			h.recordCell(x, w)
		}
	}
}

//go:noinline
func (h *Heap) recordCell(x uint64, w word) {
	hd, ok := h.headerOf(w)
	if !ok {
		return
	}
	size := int(hd.size)
	if v := h.larges.get(h.largeNamed(w, hd)); v != nil {
		size = v.size
	}
	h.curve.recordAlone(x, size, hd.cost)
}

// rebuiltCell is accessCell for a value that has just been rebuilt.
func (h *Heap) rebuiltCell(owner uint16, ref uint64, size int, cost uint8) {
	if x := ghostHash(owner, ref); x < h.curve.threshold.Load() {
		h.curve.recordAlone(x, size, cost)
	}
}

func (c *sampler) recordAlone(x uint64, size int, cost uint8) {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	c.records++
	c.said = c.said || cost != unknownCost
	c.s.AccessAlone(x, int64(size), c.seconds(cost))
	c.lower()
}

// inserted records that a value was stored that nobody had asked for.
func (c *sampler) inserted(owner uint16, ref uint64, size int) {
	x := ghostHash(owner, ref)
	if x >= c.threshold.Load() || !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	c.records++
	c.s.Insert(x, int64(size))
	c.lower()
}

// lately is the time, in seconds, over which the heap's present rate of accesses is averaged. It is short because a
// heap that nobody asks any more must soon leave its memory to others. What the heap is asked for is remembered for
// longer, so that the curve of a heap that is asked again need not be learnt anew.
const lately = 8

// interval closes an interval of so many seconds and returns the curve: seconds of rebuilding saved per second.
// accesses counts all accesses since the heap was opened.
func (c *sampler) interval(seconds float64, accesses uint64) mrc.Curve {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.Count(int(accesses - c.prior))
	c.prior = accesses
	rate := (c.s.Seen() - c.seen) / seconds
	if c.recent == 0 {
		c.recent = rate
	}
	c.recent += (rate - c.recent) * -math.Expm1(-seconds/lately)
	c.s.Advance(seconds, 1)
	curve := c.s.Curve().Asked(c.recent)
	c.s.Advance(0, 0.98)
	c.seen = c.s.Seen()
	for c.records /= seconds; c.records > sampledRate; c.records /= 2 {
		c.s.Thin(1)
	}
	c.records = 0
	c.threshold.Store(c.s.Threshold())
	return curve
}

// needs closes an interval, at whose end the heap's statistics are s, and returns what the heap saves by how much
// memory it needs. The sampler knows only the bytes of objects. The heap needs more: some segments are being filled,
// some are kept free, and the others hold dead objects, too.
func (h *Heap) needs(seconds float64, s Stats) mrc.Curve {
	c := h.curve.interval(seconds, s.Hits+s.Misses)
	full := s.Budget - s.Free + int64(h.evac.low(int(s.Budget/SegmentSize)))*SegmentSize
	if s.Live > 0 {
		c.Unit = int64(float64(c.Unit) * min(max(float64(full)/float64(s.Live), 1), maxOverhead))
	}
	return c
}

// maxOverhead bounds the memory that a heap is taken to need for each byte of its objects: a heap most of whose
// objects have just died will fill again.
const maxOverhead = 1.25

// assumed reports whether nothing is known of what values cost: nobody has said it, and nothing was rebuilt.
func (c *sampler) assumed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.said && c.count.rebuilds.Load() == 0
}
