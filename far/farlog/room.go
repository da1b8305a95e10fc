package farlog

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/store"
)

// Room is what those who wait in a full store know of the room that checkpoints make. Its methods may be called by
// any number of goroutines.
type Room struct {
	looked  atomic.Bool // see Looked
	mu      sync.Mutex
	now     Waiting
	counted time.Time // when Refuses last counted what lives
}

// Waiting is what Room knows at one moment.
type Waiting struct {
	More        chan struct{} // closed when there may be more room, after the next checkpoint
	Checkpoints int64         // how many there have been, including those that failed
	// Why is why the last checkpoint failed, or could not reserve segments for the next one. Unless it is lack of
	// room, it says nothing of how much room there is.
	Why error
	// Fruitless is how many checkpoints in succession have been in vain: somebody had looked for room before, and yet
	// nothing could be stored after it, no more was reserved than before, and no less lived in far memory.
	Fruitless int

	since, last time.Time // when the first fruitless checkpoint was, and the last
	reserved    int       // segments, after the last checkpoint, fruitless or not
	live        int64     // bytes in far memory, then
}

const (
	// After mostFruitless checkpoints that made no room, or someFruitless if the first of them was fruitlessFor ago,
	// those who wait are refused. The room that cleaning yields may be just what the checkpoint takes that records
	// it.
	mostFruitless = 16
	someFruitless = 2
	fruitlessFor  = 2 * time.Second
	// fruitlessRest is for how long everybody is refused then, unless so much dies that it is worth another look.
	// What has died is counted at most once in countEvery.
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

// Looked says that somebody has looked for room, so that the next checkpoint shows whether there is some.
func (r *Room) Looked() { r.looked.Store(true) }

// Committed makes those who wait look again. It is called after a checkpoint, with the number of segments that are
// reserved now, with how many bytes may be stored and how many live in far memory, and with why the checkpoint or the
// reserving failed.
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

// Refuses reports whether waiting is in vain. live counts the bytes that live in far memory: if they are fewer by at
// least a segment than after the last checkpoint, there is something to clean, and waiting is not in vain.
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
