// Package mrc estimates miss-ratio curves while a cache runs: how much
// rebuilding a cache of any other size would have saved.
//
// It measures reuse distances (how many bytes of other things were asked for
// between two requests for the same key) on a spatial sample of the keys, as
// SHARDS does (Waldspurger et al., FAST '15), and weighs each by what the
// rebuilding would have cost. With the sample bounded, the sampling rate
// adapts to the number of keys.
//
// A Sampler is not safe for concurrent use; Curve is a plain value.
package mrc

import (
	"math"
	"slices"
)

// stepsPerOctave is the resolution of a curve: 8 points each time the size
// doubles.
const stepsPerOctave = 8

// AssumedCost is what rebuilding a value is taken to cost, in seconds, if nobody on the host says: about as long as a
// database takes to answer. If no cache says, memory goes to the one that hits more often.
const AssumedCost = 1e-3

// Curve says what a cache of each size saves. Point i is for Size(i) bytes.
type Curve struct {
	Unit  int64     // the size of point 0, in bytes
	Saved []float64 // cumulative, in units of cost per unit of time

	// Total is what all accesses would cost without a cache, and Accesses how
	// many there are, per unit of the same time.
	Total, Accesses float64
}

// Size returns the memory in bytes that point i stands for.
func (c Curve) Size(i int) int64 {
	return int64(float64(c.Unit) * math.Exp2(float64(i)/stepsPerOctave))
}

// MeanCost is what an access would cost without a cache, in the mean, or 0 if there are
// none.
func (c Curve) MeanCost() float64 {
	if v := c.Total / c.Accesses; v > 0 && !math.IsInf(v, 0) {
		return v
	}
	return 0
}

// Times returns the curve of a cache whose accesses cost k times as much.
func (c Curve) Times(k float64) Curve {
	saved := make([]float64, len(c.Saved))
	for i, v := range c.Saved {
		saved[i] = v * k
	}
	return Curve{Unit: c.Unit, Saved: saved, Total: c.Total * k, Accesses: c.Accesses}
}

// Asked returns the curve of a cache that is asked for the same keys, but accesses times per unit of time.
func (c Curve) Asked(accesses float64) Curve {
	if c.Accesses <= 0 {
		return c
	}
	k := accesses / c.Accesses
	c = c.Times(k)
	c.Accesses *= k
	return c
}

// At interpolates what a cache of size bytes saves.
func (c Curve) At(size int64) float64 {
	if len(c.Saved) == 0 || size <= 0 {
		return 0
	}
	x := math.Log2(float64(size)/float64(c.Unit)) * stepsPerOctave
	switch {
	case x <= 0: // linear from nothing to the first point
		return c.Saved[0] * float64(size) / float64(c.Unit)
	case x >= float64(len(c.Saved)-1):
		return c.Saved[len(c.Saved)-1]
	}
	i := int(x)
	lo, hi := c.Size(i), c.Size(i+1)
	f := float64(size-lo) / float64(max(hi-lo, 1))
	return c.Saved[i] + min(max(f, 0), 1)*(c.Saved[i+1]-c.Saved[i])
}

// Points returns how many points a curve from unit to limit bytes has.
func Points(unit, limit int64) int {
	return int(math.Ceil(math.Log2(float64(max(limit, unit))/float64(unit))*stepsPerOctave)) + 1
}

// Sampler builds a Curve.
type Sampler struct {
	unit      int64
	capacity  int
	threshold uint64 // keys whose hash does not exceed it are sampled
	bins      []float64
	elapsed   float64 // weight of the time that the bins stand for

	// How many accesses there were and how many the sample says there were:
	// a sample that holds the hottest key by chance says too many, and one
	// that does not too few. The difference belongs to the shortest distances
	// (SHARDS-adj).
	seen, estimated, cost float64

	keys  map[uint64]entry
	order fenwick // bytes by time of last access
	now   int     // next position in order
}

type entry struct {
	at   int
	size int64
}

// New makes a sampler for curves from unit to limit bytes that remembers at
// most capacity keys.
func New(unit, limit int64, capacity int) *Sampler {
	return &Sampler{
		unit:      unit,
		capacity:  capacity,
		threshold: math.MaxUint64,
		bins:      make([]float64, Points(unit, limit)),
		keys:      make(map[uint64]entry),
		order:     newFenwick(4 * capacity),
	}
}

// Thin divides the sampling rate by two to the power of n, for callers that
// cannot afford what they report.
func (s *Sampler) Thin(n uint) {
	s.threshold >>= n
	for h, e := range s.keys {
		if h > s.threshold {
			s.order.add(e.at, -e.size)
			delete(s.keys, h)
		}
	}
}

// Threshold returns the value that a key's hash must not exceed for Access
// to take notice of it.
func (s *Sampler) Threshold() uint64 { return s.threshold }

// rate is the fraction of the keys that is sampled.
func (s *Sampler) rate() float64 { return float64(s.threshold) / math.MaxUint64 }

// Access records that a key was asked for. The hash must be uniform; size is
// what the key takes in the cache, cost what rebuilding it takes.
//
// A first access counts as one that a cache of everything seen so far would have saved. While keys are still being
// seen for the first time, a curve that waits for their second access says that memory for them is worth nothing;
// what is asked for once is mostly asked for again. For a stream that never repeats, these savings are spread over a
// footprint that grows without end.
func (s *Sampler) Access(hash uint64, size int64, cost float64) {
	if hash > s.threshold {
		return
	}
	s.estimated += 1 / s.rate()
	s.cost += cost / s.rate()
	if !s.place(hash) {
		return
	}
	since := s.order.total() // bytes that were asked for since then, or at all
	if e, ok := s.keys[hash]; ok {
		since -= s.order.sum(e.at)
		s.order.add(e.at, -e.size)
	}
	s.record(float64(since)/s.rate()+float64(size), cost)
	s.enter(hash, size)
}

// AccessAlone is Access for callers that do not Count their accesses: how many there are is estimated from the
// sample.
func (s *Sampler) AccessAlone(hash uint64, size int64, cost float64) {
	if hash <= s.threshold {
		s.seen += 1 / s.rate()
		s.Access(hash, size, cost)
	}
}

// Insert records that a key's value was stored without having been asked for:
// later accesses count from here.
func (s *Sampler) Insert(hash uint64, size int64) {
	if hash > s.threshold || !s.place(hash) {
		return
	}
	if e, ok := s.keys[hash]; ok {
		s.order.add(e.at, -e.size)
	}
	s.enter(hash, size)
}

// place makes room for a key, if it is not known. It reports whether the key is
// still one of the sample.
func (s *Sampler) place(hash uint64) bool {
	if s.now == s.order.len() {
		s.compact()
	}
	if _, ok := s.keys[hash]; !ok && len(s.keys) >= s.capacity {
		s.thin()
	}
	return hash <= s.threshold
}

// enter makes a key the one that was used last.
func (s *Sampler) enter(hash uint64, size int64) {
	s.keys[hash] = entry{s.now, size}
	s.order.add(s.now, size)
	s.now++
}

// record puts an access into the bin of the memory that would have saved it.
func (s *Sampler) record(distance, cost float64) {
	x := 0
	if d := distance / float64(s.unit); d > 1 {
		x = int(math.Ceil(math.Log2(d) * stepsPerOctave))
	}
	if x < len(s.bins) {
		s.bins[x] += cost / s.rate()
	}
}

// Count records that there were n accesses in all, sampled or not. Whoever calls Access must call Count, too. An
// Insert does not count: it is no access, and saves nothing.
func (s *Sampler) Count(n int) { s.seen += float64(n) }

// Seen is how many accesses were counted, less what Advance has forgotten.
func (s *Sampler) Seen() float64 { return s.seen }

// thin halves the sampling rate until there is room.
func (s *Sampler) thin() {
	for len(s.keys) >= s.capacity*3/4 {
		s.Thin(1)
	}
}

// compact renumbers the keys in the order of their last access.
func (s *Sampler) compact() {
	hashes := make([]uint64, 0, len(s.keys))
	for h := range s.keys {
		hashes = append(hashes, h)
	}
	slices.SortFunc(hashes, func(a, b uint64) int { return s.keys[a].at - s.keys[b].at })
	s.order.reset()
	s.now = 0
	for _, h := range hashes {
		e := s.keys[h]
		e.at = s.now
		s.keys[h] = e
		s.order.add(s.now, e.size)
		s.now++
	}
}

// depth is how many accesses per key a sampler that forgets remembers. Older accesses say nothing new of keys that
// are asked for as before, and something wrong of the others. So a busy cache forgets faster than keep says; a quiet
// one does so only when it has seen enough.
const depth = 2

// Advance lets time pass: what was recorded so far counts only keep (0 to 1) times as much as what comes, or less if
// there were many accesses (see depth); with 1 nothing is forgotten. A caller advances once before each interval, and
// reads the curve at its end.
func (s *Sampler) Advance(interval, keep float64) {
	if most := depth * float64(len(s.keys)) / s.rate(); keep < 1 && s.estimated*keep > most {
		keep = most / s.estimated
	}
	for i := range s.bins {
		s.bins[i] *= keep
	}
	s.elapsed = s.elapsed*keep + interval
	s.seen *= keep
	s.estimated *= keep
	s.cost *= keep
}

// Curve returns the estimate so far, in cost per unit of the time given to
// Advance.
func (s *Sampler) Curve() Curve {
	c := Curve{Unit: s.unit, Saved: make([]float64, len(s.bins))}
	if s.elapsed > 0 && s.estimated > 0 {
		c.Accesses = s.seen / s.elapsed
		c.Total = s.cost / s.estimated * c.Accesses
	}
	var sum float64
	if s.estimated > 0 {
		sum = (s.seen - s.estimated) * s.cost / s.estimated
	}
	for i, b := range s.bins {
		sum += b
		if s.elapsed > 0 {
			c.Saved[i] = max(sum, 0) / s.elapsed
		}
	}
	return c
}

// fenwick is a binary indexed tree: prefix sums that can be changed.
type fenwick struct {
	tree []int64
	sumv int64
}

func newFenwick(n int) fenwick { return fenwick{tree: make([]int64, n+1)} }

func (f *fenwick) len() int     { return len(f.tree) - 1 }
func (f *fenwick) total() int64 { return f.sumv }
func (f *fenwick) reset()       { clear(f.tree); f.sumv = 0 }

func (f *fenwick) add(i int, v int64) {
	f.sumv += v
	for i++; i < len(f.tree); i += i & -i {
		f.tree[i] += v
	}
}

// sum returns the sum of the elements up to and including i.
func (f *fenwick) sum(i int) (v int64) {
	for i++; i > 0; i -= i & -i {
		v += f.tree[i]
	}
	return v
}
