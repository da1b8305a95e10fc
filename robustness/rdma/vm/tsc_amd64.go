package vm

import (
	"fmt"
	"time"
)

// rdtsc reads the processor's time-stamp counter.
func rdtsc() uint64

// clockArguments tell the guest's kernel how fast its time-stamp counter runs,
// which without KVM is the host's. The kernel would measure it against an
// emulated timer, and on a busy host be wrong by a factor: its seconds would be
// too short, and every time-out in the guest with them.
func clockArguments() string {
	return fmt.Sprintf("tsc=reliable tsc_early_khz=%d no_timer_check", tscKHz())
}

// tscKHz measures the frequency of the time-stamp counter.
func tscKHz() uint64 {
	const interval = 50 * time.Millisecond
	t0, c0 := tscSample()
	for time.Since(t0) < interval {
	}
	t1, c1 := tscSample()
	return uint64(float64(c1-c0) / float64(t1.Sub(t0).Nanoseconds()) * 1e6)
}

// tscSample reads both clocks at the same moment: it keeps the closest of many
// tries, since the thread may lose its processor in between.
func tscSample() (t time.Time, c uint64) {
	best := ^uint64(0)
	for range 100 {
		before := rdtsc()
		now := time.Now()
		after := rdtsc()
		if d := after - before; d < best {
			best, t, c = d, now, before+d/2
		}
	}
	return t, c
}
