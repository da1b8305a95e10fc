package soft

import (
	"bytes"
	"context"
	"testing"

	"polder/internal/failpoint"
)

// TestWhoFindsThatAnObjectIsGoneLooksForItElsewhere: between a reader's load of a slot
// and its look at the segment, an evacuator may move the object and empty the segment.
// So each kind of reader is stopped when it has found a segment dead, and the object is
// put elsewhere then: it must be found there.
func TestWhoFindsThatAnObjectIsGoneLooksForItElsewhere(t *testing.T) {
	const key, value = "key", "value of it"
	inMap := func(t *testing.T, h *Heap, read func(m *ByteMap) bool) (*cell, func() bool) {
		m, err := NewByteMap(h, 0)
		if err == nil {
			err = m.Set([]byte(key), Item{Value: []byte(value)})
		}
		hash := m.hash([]byte(key))
		match, ok := m.t.find(m.t.shard(hash), hash, []byte(key))
		if err != nil || !ok {
			t.Fatalf("the key is not there: %v", err)
		}
		return match.slot, func() bool { return read(m) }
	}
	for name, begin := range map[string]func(t *testing.T, h *Heap) (slot *cell, read func() bool){
		"a map's Get": func(t *testing.T, h *Heap) (*cell, func() bool) {
			return inMap(t, h, func(m *ByteMap) bool {
				i, ok := m.Get([]byte(key), nil)
				return ok && string(i.Value) == value
			})
		},
		"a map's Scan": func(t *testing.T, h *Heap) (*cell, func() bool) {
			return inMap(t, h, func(m *ByteMap) (seen bool) {
				c := uint64(0)
				for more := true; more; more = c != 0 {
					c = m.Scan(c, func(k []byte, _ Item) { seen = seen || string(k) == key })
				}
				return seen
			})
		},
		"a pointer's Load": func(t *testing.T, h *Heap) (*cell, func() bool) {
			pool, p := newPointers[words4](t, h, nil), new(Ptr[words4])
			if err := pool.Init(p, words4{7}); err != nil {
				t.Fatal(err)
			}
			return p.cell, func() bool {
				var v words4
				return p.Load(&v) && v == words4{7}
			}
		},
		"a queue's Pop": func(t *testing.T, h *Heap) (*cell, func() bool) {
			q, err := NewQueue[string](h, 1, nil)
			if err == nil {
				_, _, err = q.Push(value)
			}
			if err != nil {
				t.Fatal(err)
			}
			return &q.ring.list[0], func() bool {
				v, ok, err := q.Pop(context.Background())
				return ok && err == nil && v == value
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := openShared(t, 8)
			slot, read := begin(t, h)
			w := word(slot.Load())
			hd, ok := h.headerOf(w)
			if !ok {
				t.Fatal("the object is not there")
			}
			object := bytes.Clone(h.base.bytes(w.segment(), w.offset()+headerSize, hd.size))
			h.ctl.Revoke(w.segment())
			stopped := 0
			failpoint.Set(func(string) {
				if stopped++; stopped > 1 {
					return
				}
				to, err := h.place(hd, object)
				if err != nil {
					t.Error(err)
				}
				slot.Store(uint64(to | word(w.tag())))
			})
			defer failpoint.Set(nil)
			if found := read(); stopped == 0 || !found {
				t.Errorf("stopped %d times, and found the value: %v; want once at least, and true", stopped, found)
			}
		})
	}
}
