package component

import (
	"sync"
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

// WholePlace stands for all objects of a Place: a client that asks the node to
// destruct it has closed its Place, and its session need not outlive the
// connection for that.
const WholePlace uint64 = placeNumber << 32

// A Placed is an object in a Place.
type Placed struct{ h *held }

// ID is how other requests name the object.
func (o Placed) ID() uint64 { return o.h.id }

// Construct carries out a request to construct an object. StatusOf tells the
// status of an error, here and with Do.
func (p *Place) Construct(r *wire.Request, deadline time.Time) (Placed, error) {
	id, _, err := p.w.carryOut(0, r, deadline, nil)
	if err != nil {
		return Placed{}, err
	}
	return Placed{p.w.find(id)}, nil
}

// results are where components append to.
var results = sync.Pool{New: func() any { return new(result) }}

type result struct {
	call Call
	data [MaxResult]byte
}

// MaxResult is the most bytes that an object in a Place can be given or give.
const MaxResult = messageSize - wire.RequestHeader

// Do asks o for what r says, which is not Construct, and appends what it gives to
// buf. It has until the deadline, or if that is zero for limit.
//
// Hot path: it does not allocate.
func (p *Place) Do(o Placed, r *wire.Request, deadline time.Time, limit time.Duration, buf []byte) ([]byte, error) {
	out := results.Get().(*result)
	defer results.Put(out)
	data, err := p.do(o.h, r, deadline, limit, out)
	switch {
	case err != nil:
		return nil, err
	case len(data) > len(out.data):
		return nil, ErrTooLarge
	}
	return append(buf, data...), nil
}

func (p *Place) do(h *held, r *wire.Request, deadline time.Time, limit time.Duration, out *result) ([]byte, error) {
	if r.Others != [2]uint64{} {
		if deadline.IsZero() {
			deadline = time.Now().Add(limit)
		}
		_, data, err := p.w.carryOut(0, r, deadline, out.data[:0])
		return data, err
	}
	if h.shared && r.Verb == wire.Read {
		if data, err, ok := h.read(r, deadline, limit, out); ok {
			return data, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.usable(r.Verb); err != nil {
		return nil, err
	}
	out.call = Call{deadline: deadline, limit: limit}
	return p.w.perform(0, r, h, &out.call, out.data[:0])
}

// read reads beside others. It reports false if it has panicked: whoever is alone
// with the object sees to that.
func (h *held) read(r *wire.Request, deadline time.Time, limit time.Duration, out *result) (data []byte, err error, ok bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if err := h.usable(r.Verb); err != nil {
		return nil, err, true
	}
	defer func() {
		if p := recover(); p != nil {
			ok = false
		}
	}()
	out.call = Call{deadline: deadline, limit: limit}
	data, err = h.object.Read(&out.call, r.Key, out.data[:0])
	return data, err, true
}

// StatusOf is how a request ended that failed with err.
func StatusOf(err error) wire.Status { return statusOf(err) }

// Close ends every object. Nothing must be called any more.
func (p *Place) Close() {
	p.w.close()
	p.w.region.close()
}
