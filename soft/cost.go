package soft

import (
	"bytes"
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"

	"polder/soft/mrc"
)

// This is what values cost to make: how it is measured, remembered, and kept in a byte.

// unknownCost is the class of a value whose cost nobody has said.
const unknownCost = 0

// costClass squeezes a duration into a byte, eight steps to an octave. It is
// never unknownCost.
func costClass(d time.Duration) uint8 {
	return uint8(min(max(math.Log2(float64(d))*8, unknownCost+1), 255))
}

// seconds is what a class of costs stands for. unknownCost stands for the mean of what the heap's rebuilt values
// took, or for mrc.AssumedCost if nothing has been rebuilt.
func (c *sampler) seconds(class uint8) float64 {
	if class != unknownCost {
		return math.Exp2(float64(class)/8) / 1e9
	}
	if n := c.count.rebuilds.Load(); n > 0 {
		return float64(c.count.rebuildNanos.Load()) / float64(n) / 1e9
	}
	return mrc.AssumedCost
}

// Misses measures what a client's misses cost it: the time from the moment at which
// the client asks for a key in vain to the moment at which it stores that key. It is
// for those who serve clients over a network, one for each connection. The zero value
// is ready; it is for one goroutine at a time.
//
// Times are those at which commands arrived, on any clock that does not go back.
// Commands that arrived together have the same time. Misses that arrived together share
// the time until they are stored, because a client that asks for many keys at once
// makes their values in one go.
//
// It remembers at most 16 misses, each for at most MaxRebuild, so that a client may ask for keys that it never
// stores. While there is no room, further misses are not measured: to let them replace older ones would lose the
// misses that take long.
type Misses struct {
	list  *[16]miss     // in no order; nil until something is missed
	last  time.Duration // when the latest misses arrived
	count int           // how many arrived then
}

// MaxRebuild is the longest time between a miss and a store of the same key that counts
// as rebuilding.
const MaxRebuild = 10 * time.Second

type miss struct {
	hash  uint64 // 0: no miss
	at    time.Duration
	count int // how many arrived together; if at is Misses.last, Misses.count says it
}

var missSeed = maphash.MakeSeed()

func missHash(key []byte) uint64 { return maphash.Bytes(missSeed, key) | 1<<63 }

// Missed records that the client asked for key, in a command that arrived at now, and
// was told that there is no value.
func (m *Misses) Missed(key []byte, now time.Duration) {
	if m.list == nil {
		m.list = new([16]miss)
	}
	if now != m.last {
		if m.count > 1 {
			for i := range m.list {
				if m.list[i].at == m.last {
					m.list[i].count = m.count
				}
			}
		}
		m.last, m.count = now, 0
	}
	m.count++
	hash := missHash(key)
	e := m.find(hash)
	for i := 0; e == nil && i < len(m.list); i++ {
		if x := &m.list[i]; x.hash == 0 || now-x.at > MaxRebuild {
			e = x
		}
	}
	if e != nil {
		*e = miss{hash, now, 1}
	}
}

func (m *Misses) find(hash uint64) *miss {
	for i := range m.list {
		if m.list[i].hash == hash {
			return &m.list[i]
		}
	}
	return nil
}

// Stored returns how long the client took to make the value of key, which it stores in
// a command that arrived at now. It returns 0 if that is not known.
func (m *Misses) Stored(key []byte, now time.Duration) time.Duration {
	if m.list == nil {
		return 0
	}
	e := m.find(missHash(key))
	if e == nil {
		return 0
	}
	took, count := now-e.at, e.count
	if e.at == m.last {
		count = m.count
	}
	e.hash = 0
	if took > MaxRebuild {
		return 0
	}
	return took / time.Duration(count)
}

// classes remember what the values of a ByteMap cost to make, by classes of keys. They learn it from the values that
// were stored together with what they took to make. Most programs name the kind of a value first ("user:17"), and
// values of one kind are made in the same way. There is a fixed number of places: classes that share one share what
// is known.
type classes [64]atomic.Uint64 // seconds, as float32 (32) | how many values have been counted, up to steady (32)

// steady is how many values the mean of a class stands for; an outlier among them
// counts for at most maxOutlier times the mean.
const (
	steady     = 16
	maxOutlier = 16
)

// classOf is the part of a key that says what kind of value it has: what comes before
// the first digit or separator among its first bytes. Keys without one are one class.
func classOf(key []byte) []byte {
	return key[:max(bytes.IndexAny(key[:min(len(key), 32)], ":/._-#|0123456789"), 0)]
}

// learn takes note that a value of the class at place i took so long to make, and returns how much of that time is to
// be believed: at most maxOutlier times the mean, because a client that was stopped meanwhile, or a machine that was
// busy, must not make one value worth thousands of others.
func (c *classes) learn(i uint64, took time.Duration) time.Duration {
	for {
		old := c[i].Load()
		mean, n := float64(math.Float32frombits(uint32(old>>32))), old&math.MaxUint32
		seconds := took.Seconds()
		if n > 0 {
			seconds = min(seconds, maxOutlier*mean)
		}
		n = min(n+1, steady)
		mean += (seconds - mean) / float64(n)
		if c[i].CompareAndSwap(old, uint64(math.Float32bits(float32(mean)))<<32|n) {
			return max(time.Duration(seconds*1e9), 1)
		}
	}
}

// cost is what a value of the class at place i costs: unknownCost if nobody has said.
func (c *classes) cost(i uint64) uint8 {
	v := c[i].Load()
	if v == 0 {
		return unknownCost
	}
	return costClass(time.Duration(math.Float32frombits(uint32(v>>32)) * 1e9))
}
