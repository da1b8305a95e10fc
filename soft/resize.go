package soft

import (
	"errors"
	"os"
	"path/filepath"

	"polder/internal/hostmem"
)

// resize makes the heap have n segments.
func (h *Heap) resize(n int) error {
	for seg := range uint32(h.n) {
		h.mu.Lock()
		if h.list.granted() >= n {
			h.mu.Unlock()
			break
		}
		if h.list.state[seg] == segAway && h.ctl.Grant(seg) {
			h.list.pushFree(seg)
		}
		h.mu.Unlock()
	}
	var failed error
	err := h.giveBack(n, func(seg uint32) bool {
		failed = h.discard(seg)
		return failed == nil
	})
	return errors.Join(err, failed)
}

// giveBack revokes segments until the heap has at most n, emptying those that
// are in use, and passes each to released, until that returns false.
func (h *Heap) giveBack(n int, released func(seg uint32) bool) error {
	n = max(n, minSegments)
	for {
		h.mu.Lock()
		if h.list.granted() <= n {
			h.mu.Unlock()
			return nil
		}
		seg, ok := h.list.popFree(1)
		if ok {
			h.list.set(seg, segAway)
		}
		h.mu.Unlock()
		if !ok {
			if err := h.evac.collectOne(); err != nil {
				return err
			}
			continue
		}
		if h.ctl.Revoke(seg) && !released(seg) {
			return nil
		}
	}
}

// takeGranted takes in what a coordinator has granted.
func (h *Heap) takeGranted() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for seg := range uint32(h.n) {
		if h.list.state[seg] == segAway && h.ctl.Granted(seg) {
			h.huge[seg].Store(false)
			h.list.pushFree(seg)
		}
	}
}

// totalMemory returns how much memory there is for this process, in bytes: that
// of the host, or of a control group.
func totalMemory() int64 {
	m, err := hostmem.Host{}.Read()
	if err != nil {
		return 0
	}
	return m.Total
}

func programName() string {
	name := filepath.Base(os.Args[0])
	return name[:min(len(name), 64)]
}
