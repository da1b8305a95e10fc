package daemon

import (
	"runtime/debug"
	"testing"
)

func TestTheMemoryLimitGivesWayToLiveMemory(t *testing.T) {
	for live, want := range map[uint64]int64{
		0:         goLimit,
		1 << 20:   goLimit,
		100 << 20: 129 << 20,
	} {
		if got := memoryLimit(live); got != want {
			t.Errorf("memoryLimit(%d) = %d, want %d", live, got, want)
		}
	}
}

func TestTheMemoryLimitIsGivenBack(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	stop := limitGoMemory()
	if got := debug.SetMemoryLimit(-1); got != goLimit {
		t.Errorf("the limit is %d, want %d", got, goLimit)
	}
	stop()
	if got := debug.SetMemoryLimit(-1); got != before {
		t.Errorf("the limit is %d, want %d as before", got, before)
	}
}

func TestDefaultLend(t *testing.T) {
	if got := DefaultLend(); got < 1<<30 || got > 64<<30 || got%(1<<30) != 0 {
		t.Errorf("DefaultLend() = %d", got)
	}
}
