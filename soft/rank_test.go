package soft

import (
	"testing"
	"time"
)

// TestEverySegmentIsRankedWithinFiveSeconds, however large the heap is.
func TestEverySegmentIsRankedWithinFiveSeconds(t *testing.T) {
	for _, gib := range []int{0, 1, 4, 20, 256} {
		granted := max(gib<<30/SegmentSize, 8)
		share := rankShare(granted)
		if took := time.Duration((granted+share-1)/share) * tick; took > 5*time.Second {
			t.Errorf("%d GiB: %d segments a tick rank it within %v, want 5s", gib, share, took)
		}
	}
}

// TestARankIsSizeTimesHotness, as the sum over the objects of a segment has it.
func TestARankIsSizeTimesHotness(t *testing.T) {
	h := open(t, 128)
	m, err := NewMap(h, MapConfig[uint64, [100]byte]{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	keys := uint64(0)
	for full := 0; full < 3; { // however many logs are written at once
		for range 1000 {
			if err := m.Set(keys, [100]byte{}); err != nil {
				t.Fatal(err)
			}
			keys++
		}
		h.mu.Lock()
		full = h.list.counts[segYoung] + h.list.counts[segOld]
		h.mu.Unlock()
	}
	for i := uint64(0); i < keys; i += 10 { // they are dead, and of no account
		m.Delete(i)
	}
	ranked := 0
	ranks := map[uint64]bool{}
	for seg := range uint32(h.n) {
		if !h.rank(seg) {
			continue
		}
		var want uint64
		v := victim{e: &h.evac, seg: seg, gen: h.ctl.Generation(seg), end: h.end(seg)}
		n := 0
		v.walk(func(w word, hd header) bool {
			hot := (n % 2) * ranked % (hottest + 1) // the first segment that is ranked is cold
			n++
			h.setHot(w, hot)
			want += uint64(granulesFor(int(hd.size))*granule) * uint64(1+hot)
			return true
		})
		h.rank(seg)
		got := h.ctl.Rank(seg)
		if got < want*99/100 || got > want*101/100 {
			t.Errorf("segment %d: got the rank %d, want about %d", seg, got, want)
		}
		ranks[got] = true
		ranked++
	}
	if ranked < 2 || len(ranks) < 2 {
		t.Errorf("%d segments were ranked, in %d ways; want several", ranked, len(ranks))
	}
}

func BenchmarkRank(b *testing.B) {
	h, err := Open(Config{Budget: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	h.live[1].Store(uint64(liveDelta(4)))
	h.mu.Lock()
	h.list.state[1] = segOld
	h.mu.Unlock()
	for b.Loop() {
		h.rank(1)
	}
}
