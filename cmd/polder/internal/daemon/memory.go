package daemon

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"
)

// The Go runtime's part of a serving process's memory. The far heap's budget
// lies outside of it; what is left is connections, the pool's bookkeeping and
// garbage. The garbage is kept small: the collector runs before the total
// exceeds goLimit, which is well below the 64 MiB that a process may have
// beside its budget.
const (
	goLimit      = 32 << 20
	goPercent    = 400 // the live heap is a few MiB: collect once in 16 MiB, not in 4
	limitPeriod  = time.Second
	liveHeap     = "/gc/heap/live:bytes"
	liveHeadroom = 4 << 20
)

// limitGoMemory keeps the Go runtime's memory small until the returned
// function is called. Where connections need more than goLimit, thousands of
// them, the limit gives way: a limit below what is live would have the
// collector run without end. GOMEMLIMIT and GOGC, if set, are left to rule.
func limitGoMemory() (stop func()) {
	if os.Getenv("GOMEMLIMIT") != "" || os.Getenv("GOGC") != "" {
		return func() {}
	}
	before, percent := debug.SetMemoryLimit(goLimit), debug.SetGCPercent(goPercent)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(limitPeriod)
		defer tick.Stop()
		sample := []metrics.Sample{{Name: liveHeap}}
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			metrics.Read(sample)
			debug.SetMemoryLimit(memoryLimit(sample[0].Value.Uint64()))
		}
	}()
	return func() {
		close(end)
		<-ended
		debug.SetMemoryLimit(before)
		debug.SetGCPercent(percent)
	}
}

// memoryLimit is the limit for so many live bytes.
func memoryLimit(live uint64) int64 {
	return max(goLimit, int64(live)+int64(live)/4+liveHeadroom)
}

// DefaultLend is how much memory a node lends if it is not told: half of
// what the machine has to spare, in whole GiB, at least one and at most 64.
func DefaultLend() int64 {
	const gib = 1 << 30
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return gib
	}
	spare := int64(info.Freeram+info.Bufferram) * int64(info.Unit)
	return min(max(spare/2/gib, 1), 64) * gib
}
