package soft

import (
	"bytes"
	"math"
	"sync/atomic"
	"time"
)

// classes remember what the values of a ByteMap cost to make, by classes of keys, from
// those of which whoever stored them said it. Most programs name the kind of a value
// first ("user:17"), and values of one kind are made in the same way. There is a fixed
// number of places: classes that share one share what is known.
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

// learn takes note that a value of the class at place i took so long to make, and
// returns what of that is to be believed: a client that was stopped meanwhile, or a
// machine that was busy, must not make one value worth thousands of others.
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
