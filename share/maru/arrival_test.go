package maru

import (
	"testing"
	"time"
)

// TestWhatCameWhileTheProcessWasStoppedCountsFromThen plays the reader and the beat
// of a process that is stopped for ten seconds: whichever of them runs first
// afterwards, what came meanwhile is not taken for fresh.
func TestWhatCameWhileTheProcessWasStoppedCountsFromThen(t *testing.T) {
	const s = time.Second
	type spans [][2]time.Duration // in which the process ran
	once := func(t time.Duration) [2]time.Duration { return [2]time.Duration{t, t} }
	for name, c := range map[string]struct {
		ran        spans
		since, now time.Duration // the reader has waited since then
		want       time.Duration
	}{
		"nothing has happened":              {spans{{0, 1 * s}}, 0, 1*s + 1, 1*s + 1},
		"a beat is a little late":           {spans{{0, 1 * s}}, 0, 1*s + stalled, 1*s + stalled},
		"the reader runs first":             {spans{{0, 1 * s}}, 0, 11 * s, 1 * s},
		"the beat runs first":               {spans{{0, 1 * s}, once(11 * s)}, 0, 11*s + 1, 1 * s},
		"and the reader a little later":     {spans{{0, 1 * s}, {11 * s, 11*s + 2*beatEvery}}, 0, 11*s + 2*beatEvery + 1, 1 * s},
		"the reader has waited from within": {spans{{0, 1 * s}, once(11 * s)}, 5 * s, 11*s + 1, 5 * s},
		"the reader has waited from after":  {spans{{0, 1 * s}, once(11 * s)}, 11*s + 1, 11*s + 2, 11*s + 2},
		"long after, from before":           {spans{{0, 1 * s}, {11 * s, 13 * s}}, 0, 13*s + 1, 13*s + 1},
	} {
		w := newStalls()
		for _, span := range c.ran {
			for at := span[0]; at <= span[1]; at += beatEvery {
				w.pulse(at)
			}
		}
		if got := w.earliest(c.since, c.now); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
