package component

import (
	"time"

	"polder/internal/arena"
	"polder/memnode/component/wire"
)

// A Place holds a client's objects in the client's own process, in memory that a
// node on the same machine lends it and has passed to it as a memfd. The data is
// as near to the client there as to the node, so that a request costs no switch
// between processes, and whatever a component does harms the one process that
// asked for it. Only components that are Portable can be in a Place.
//
// It may be used by any number of goroutines, but for Close.
type Place struct{ w *worker }

// NewPlace makes a place in all of memory, which becomes its own, for objects of
// the components in set.
func NewPlace(memory *arena.Memfd, set Set) (*Place, error) {
	r, err := newRegion(memory)
	if err != nil {
		return nil, err
	}
	w := newWorker(set, workerConfig{Number: placeNumber, Memory: int64(memory.Size()), Objects: maxObjects}, nil, nil)
	w.budget, w.region = newBudget(int64(memory.Size())), r
	return &Place{w}, nil
}

const (
	// placeNumber is a number that no worker has for a long time: who asks
	// the node for an object of a place is told that it is not there.
	placeNumber = 1<<32 - 1
	// maxObjects is the most objects of a client that can be had.
	maxObjects = 1 << 20
)

// Do carries out a request, and returns the object that it has constructed, or
// what has been appended to out, which lies within its capacity. StatusOf tells
// the status of an error.
func (p *Place) Do(r *wire.Request, deadline time.Time, out []byte) (object uint64, data []byte, err error) {
	object, data, err = p.w.carryOut(0, r, deadline, out)
	if err == nil && len(data) > cap(out) {
		return 0, nil, ErrTooLarge
	}
	return object, data, err
}

// StatusOf is how a request ended that failed with err.
func StatusOf(err error) wire.Status { return statusOf(err) }

// Close ends every object. Nothing must be called any more.
func (p *Place) Close() {
	p.w.close()
	p.w.region.close()
}
