//go:build amd64 && !race

package arena

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Two processors store and then load what the other has stored. If one of them
// has Membarrier between the two, at least one sees the other's store, though
// the other's is a plain one, which its processor may keep back.
func TestMembarrierIsAFenceForTheOthers(t *testing.T) {
	if err := CanMembarrier(); err != nil {
		t.Skip(err)
	}
	if runtime.NumCPU() < 2 {
		t.Skip("one processor")
	}
	type line struct {
		v int64
		_ [15]int64 // a cache line of its own, and the next
	}
	var plain, fenced, begun, seen line // of the rounds
	const rounds = 200_000
	end := time.Now().Add(2 * time.Second) // on a machine that is busy with other things
	await := func(l *line, v int64) {
		for spin := 0; atomic.LoadInt64(&l.v) < v; spin++ {
			if spin%1000 == 999 {
				runtime.Gosched()
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for r := int64(1); r <= rounds; r++ {
			await(&begun, r)
			plain.v = r
			saw := atomic.LoadInt64(&fenced.v) == r
			v := 2 * r
			if saw {
				v++
			}
			atomic.StoreInt64(&seen.v, v)
		}
	})
	missed, r := 0, int64(1)
	for ; r <= rounds; r++ {
		atomic.StoreInt64(&begun.v, r)
		for range r % 128 { // the other takes a while to see that
			atomic.LoadInt64(&seen.v)
		}
		fenced.v = r
		if err := Membarrier(); err != nil {
			t.Fatal(err)
		}
		saw := atomic.LoadInt64(&plain.v) == r
		await(&seen, 2*r)
		if !saw && atomic.LoadInt64(&seen.v) == 2*r {
			missed++
		}
		if time.Now().After(end) {
			break
		}
	}
	if r < rounds { // let the other go
		atomic.StoreInt64(&begun.v, rounds)
	}
	wg.Wait()
	if missed > 0 {
		t.Errorf("in %d of %d rounds neither saw the other's store", missed, r)
	}
}
