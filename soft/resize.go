package soft

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
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
	_, err := h.giveBack(n, nil)
	return err
}

// giveBack releases segments until the heap has at most n, emptying those
// that are in use. It returns those that it has released; done, if set, is
// called for each.
func (h *Heap) giveBack(n int, stop func() bool) (released []uint32, err error) {
	n = max(n, minSegments)
	for {
		h.mu.Lock()
		if h.list.granted() <= n || stop != nil && stop() {
			h.mu.Unlock()
			return released, nil
		}
		seg, ok := h.list.popFree(1)
		if ok {
			h.list.set(seg, segAway)
		}
		h.mu.Unlock()
		if !ok {
			if err := h.evac.collectOne(); err != nil {
				return released, err
			}
			continue
		}
		if h.ctl.Revoke(seg) {
			if err := h.discard(seg); err != nil {
				return released, err
			}
			released = append(released, seg)
		}
	}
}

// totalMemory returns the machine's memory in bytes.
func totalMemory() int64 {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return 0
	}
	return int64(i.Totalram) * int64(i.Unit)
}

func programName() string {
	name := filepath.Base(os.Args[0])
	return name[:min(len(name), 64)]
}
