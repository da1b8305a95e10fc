package pool

import (
	"testing"
	"time"
)

// BenchmarkCount measures what it costs to count a READ, and to put its time into a
// histogram as well: two looks at the clock and an observation.
func BenchmarkCount(b *testing.B) {
	var c counters
	c.init("a node")
	b.Run("counter", func(b *testing.B) {
		for b.Loop() {
			c.count(OpRead, 64, 0)
		}
	})
	b.Run("histogram", func(b *testing.B) {
		for b.Loop() {
			began := time.Now()
			c.count(OpRead, 64, time.Since(began)+20*time.Microsecond)
		}
	})
}
