package maru

import (
	"fmt"
	"testing"
	"time"

	"polder/share/server"
)

// The door's own part of a lookup: what it does between a request and its answer.
func BenchmarkLookup(b *testing.B) {
	h := build(b, nil)
	guest, err := h.Admit("bench", nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(guest.Leave)
	r, err := guest.Alloc(time.Now(), "bench", 1<<20)
	if err != nil {
		b.Fatal(err)
	}
	var keys []string
	for i := range 64 {
		keys = append(keys, fmt.Sprintf("model@8@0@%032x@bfloat16", i))
		guest.Register(time.Now(), []server.MaruKey{{Key: keys[i], Region: r.ID, Offset: int64(i) * 4096, Length: 4096}})
	}
	c := &client{d: h.Door, guest: guest, enc: newEncoder()}
	e := newEncoder()
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e.begin(header{kind: typeBatchLookup, sequence: 1})
			e.object(1)
			e.text("keys")
			e.array(n)
			for _, key := range keys[:n] {
				e.text(key)
			}
			msg := append([]byte(nil), e.end()...)
			b.ReportAllocs()
			for b.Loop() {
				c.answer(msg, time.Now())
			}
		})
	}
}
