package far

import (
	"fmt"
	"math/bits"
)

// audit recounts everything that is counted from the indexes, and returns what
// does not agree. Nothing may be under way: it runs while the heap is being
// closed, in builds with invariants.
func (h *Heap) audit() error {
	logs := make([]struct{ live, clean int64 }, len(h.logs.segs))
	far := map[uint64]int64{}
	index := h.words.pages.Load() * wordPage
	for _, tr := range h.structures {
		index += tr.nodeParts.Load() * nodePartBytes
	}
	for _, m := range *h.maps.Load() {
		for i := range m.shards {
			sh := &m.shards[i]
			index += sh.t.bytes()
			entries, lost, used := 0, 0, 0
			for b := range sh.t.buckets {
				for j, w := range sh.t.buckets[b].words {
					if w == 0 {
						continue
					}
					used++
					if w.visible() && w.isLost() {
						lost++
					} else if w.visible() {
						entries++
					}
					if w.far() {
						far[w.addr()/h.far.units] += int64(w.size())
						continue
					}
					e := h.logs.at(w.addr())
					if tag := sh.t.buckets[b].tags[j]; e.hash().tag() != tag || m.shard(e.hash()) != sh || e.mapID() != m.id {
						return fmt.Errorf("map %q: the entry at %#x is not that of tag %#x in shard %d", m.name, w.addr(), tag, i)
					}
					if sizeClass(e.size()) != uint8(w>>addrBits) || e.wordFlags() != w.ofEntry() {
						return fmt.Errorf("map %q: the word %#x is not that of its entry", m.name, w)
					}
					s := &logs[int(w.addr()*unit)/h.logs.segSize]
					s.live += int64(e.size())
					if e.clean() {
						s.clean += int64(e.size())
						far[e.far()/h.far.units] += int64(w.size())
					}
				}
			}
			if entries != sh.entries || lost != sh.lost || used != sh.t.used {
				return fmt.Errorf("map %q, shard %d: %d entries, %d lost, %d in all, but counted are %d, %d, %d",
					m.name, i, entries, lost, used, sh.entries, sh.lost, sh.t.used)
			}
			if f := sh.flights; f != nil {
				return fmt.Errorf("map %q, shard %d: a fetch of %d bytes is still listed", m.name, i, len(f.buf))
			}
		}
	}
	inUse := 0
	var bad error
	h.words.all(func(n uint64, w pword) {
		if !w.free() {
			inUse++
		}
		switch {
		case w.far():
			far[w.farAddr()/h.far.units] += int64(w.farSize())
		case w.local():
			o := h.logs.object(w.addr())
			if headNumber(o.head()) != n {
				bad = fmt.Errorf("word %d refers to the object of word %d", n, headNumber(o.head()))
				return
			}
			logs[int(w.addr()-h.logs.base-objectHeader)/h.logs.segSize].live += int64(objectSize(headLen(o.head())))
			if a := tailFar(*o.tail()); a != 0 {
				far[a/h.far.units] += int64(roundSize(farObjectSize(headLen(o.head()))))
			}
		}
	})
	if bad != nil {
		return bad
	}
	cached := 0
	for i := range h.caches {
		cached += bits.OnesCount64(h.caches[i].left)
	}
	if n, _ := h.words.count(); n != inUse+cached {
		return fmt.Errorf("%d words are in use and %d handed out, but counted are %d", inUse, cached, n)
	}
	for i := range logs {
		s := &h.logs.segs[i]
		if live, clean := s.live.Load(), s.clean.Load(); live != logs[i].live || clean != logs[i].clean {
			return fmt.Errorf("log segment %d: %d bytes live, %d of them clean, but counted are %d, %d",
				i, logs[i].live, logs[i].clean, live, clean)
		}
	}
	var err error
	h.far.all(func(s *farSegment) {
		if live := s.live.Load(); live != far[s.id] || s.pinned() != 0 {
			err = fmt.Errorf("%s: %d bytes live, counted are %d, with %d reads under way",
				s.seg.Name(), far[s.id], live, s.pinned())
		}
		delete(far, s.id)
	})
	if len(far) > 0 {
		err = fmt.Errorf("the index refers to far segments that are none: %v", far)
	}
	l := &h.logs
	if resident := len(l.segs) - len(l.absent); index != l.index || resident != l.resident ||
		l.index+int64(l.resident)*int64(l.segSize) > l.budget {
		err = fmt.Errorf("%d bytes of index and %d segments of logs in a budget of %d, but counted are %d, %d",
			index, resident, l.budget, l.index, l.resident)
	}
	if h.bufs.inUse != 0 {
		err = fmt.Errorf("%d bytes of buffers have not come back", h.bufs.inUse)
	}
	return err
}
