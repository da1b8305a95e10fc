package farlog

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/store"
)

// Room is what those know who wait in a full store for the room that checkpoints make. Its methods may be called by any number of goroutines.
type Room struct {
	looked  atomic.Bool // see Looked
	mu      sync.Mutex
	now     Waiting
	counted time.Time // when Refuses has had it counted what lives
}

// Waiting is a moment of that.
type Waiting struct {
	More        chan struct{} // closed when there may be more
	Checkpoints int64         // that there have been, or have failed
	Why         error         // the last one failed, or could not be reserved for: other than lack of room, it says nothing of the room that there is
	Fruitless   int           // checkpoints, the last ones, before which somebody looked for room, and after which nothing could be stored and no more was reserved than before

	since, last time.Time // when the first of those was, and the last
	reserved    int       // segments, after the last one of all
	live        int64     // bytes in far memory, then
}

const (
	// After so many checkpoints that have made no room, or a few and so long after the first of them, those who wait are refused: what cleaning yields may
	// just be what the checkpoint takes that knows of it.
	mostFruitless = 16
	someFruitless = 2
	fruitlessFor  = 2 * time.Second
	// fruitlessRest is for how long all are refused then, unless so much dies that it is worth a look, which is counted once in countEvery.
	fruitlessRest = time.Second
	countEvery    = 10 * time.Millisecond
)

// Init has to be called first.
func (r *Room) Init() { r.now.More = make(chan struct{}) }

// Now is what is known now.
func (r *Room) Now() Waiting {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Looked says that somebody has looked for room, so that the next checkpoint tells whether there is some.
func (r *Room) Looked() { r.looked.Store(true) }

// Committed has those who wait look again, after a checkpoint with which so many segments are reserved, and so many bytes may be stored and live in far memory, or which failed.
func (r *Room) Committed(reserved int, most, live int64, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &r.now
	w.Checkpoints++
	if w.Why = why; r.looked.Swap(false) && (why == nil || errors.Is(why, store.ErrStoreFull)) {
		w.last = time.Now()
		if w.Fruitless++; w.Fruitless == 1 {
			w.since = w.last
		}
	}
	if most > 0 || reserved > w.reserved || live < w.live { // what has died can be cleaned
		w.Fruitless = 0
	}
	w.reserved, w.live = reserved, live
	close(w.More)
	w.More = make(chan struct{})
}

// Refuses reports whether nothing is to be gained by waiting. Live counts the bytes that live in far memory: if that is
// a segment less than after the last checkpoint, there is something to clean.
func (r *Room) Refuses(segment int, live func() int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &r.now
	vain := w.Fruitless >= mostFruitless || w.Fruitless >= someFruitless && time.Since(w.since) >= fruitlessFor
	if !vain || time.Since(w.last) >= fruitlessRest {
		return false
	}
	if now := time.Now(); now.Sub(r.counted) >= countEvery {
		r.counted = now
		if w.live-live() >= int64(segment) {
			w.Fruitless = 0
			return false
		}
	}
	return true
}
