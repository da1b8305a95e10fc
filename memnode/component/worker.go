package component

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"polder/memnode/component/wire"
)

// A worker holds one client's objects, in a process of its own; or, if their components are Bounded, in the node's
// process, where only do is called. In its own process it has as many goroutines as there are slots. They take turns
// in waiting for the next record; the goroutine that has got one executes the request while another goroutine waits.
// So no request is passed from one goroutine to another.
type worker struct {
	set    Set
	cfg    workerConfig
	lane   *lane
	budget *budget
	chunks Chunks // the Chunks that calls are given

	reading sync.Mutex // held by the goroutine that waits for a record
	pending []byte     // guarded by reading: records that have been read
	buf     [credits * recordSize]byte

	mu      sync.RWMutex
	objects map[uint64]*held
	last    uint32 // number of the object constructed last
}

// held is an object.
type held struct {
	id  uint64
	env *Env

	mu     sync.Mutex // held while the object is called
	call   Call       // guarded by mu
	object Object     // guarded by mu; nil: lost, or removed
	lost   bool       // guarded by mu
}

func newWorker(set Set, cfg workerConfig, l *lane, own *atomic.Int64) *worker {
	return &worker{
		set: set, cfg: cfg, lane: l, budget: &budget{limit: cfg.Memory, all: l.used(), own: own}, objects: make(map[uint64]*held),
	}
}

// serve executes requests until the node hangs up.
func (w *worker) serve() error {
	w.lane.ready().Store(1)
	errs := make(chan error, credits)
	for range credits {
		go func() {
			for {
				slot, reply, n, err := w.next()
				if err == nil {
					err = w.execute(slot, reply, n)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	err := <-errs
	if errors.Is(err, errHungUp) {
		return nil
	}
	return err
}

var errHungUp = errors.New("the node has hung up")

// next waits for a record.
func (w *worker) next() (slot, reply, n int, err error) {
	w.reading.Lock()
	defer w.reading.Unlock()
	for len(w.pending) < recordSize {
		// Move the part of a record that has been read to the front.
		have := copy(w.buf[:], w.pending)
		k, err := unix.Read(workerSocket, w.buf[have:])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, 0, 0, fmt.Errorf("cannot read requests: %w", err)
		case k == 0:
			return 0, 0, 0, errHungUp
		default:
			w.pending = w.buf[:have+k]
		}
	}
	slot, reply, n, ok := record(w.pending)
	w.pending = w.pending[recordSize:]
	if !ok {
		return 0, 0, 0, fmt.Errorf("a record of slot %d, reply %d and %d bytes", slot, reply, n)
	}
	return slot, reply, n, nil
}

// execute carries out the request in a slot, and tells the node that the reply is there.
func (w *worker) execute(slot, reply, n int) error {
	var rec [recordSize]byte
	b := appendRecord(rec[:0], slot, reply, w.do(slot, reply, n))
	for {
		if _, err := unix.Write(workerSocket, b); err != unix.EINTR {
			if err != nil {
				return fmt.Errorf("cannot answer: %w", err)
			}
			return nil // 8 bytes, of at most some hundred in flight: the socket takes them whole
		}
	}
}

// do carries out the request of n bytes in a slot. It puts the reply into the given buffer, and returns how many
// bytes the reply has.
func (w *worker) do(slot, buffer, n int) int {
	var req wire.Request
	out := w.lane.reply(buffer)
	reply := wire.Reply{}
	var data []byte
	err := req.Decode(w.lane.request(slot)[:n])
	room := min(int(req.Room), len(out)-wire.ReplyHeader)
	if err == nil {
		deadline := time.Now().Add(req.Time)
		reply.Object, data, err = w.carryOut(slot, &req, deadline, out[wire.ReplyHeader:wire.ReplyHeader:wire.ReplyHeader+room])
		if err == nil && len(data) > room {
			err = ErrTooLarge
		}
	}
	reply.ID, reply.Verb, reply.Status = req.ID, req.Verb, statusOf(err)
	size := 0
	if err != nil {
		size = copy(out[wire.ReplyHeader:][:maxReason], err.Error())
		reply.Object = 0
	} else {
		size = copy(out[wire.ReplyHeader:], data) // copies nothing if data lies there already
	}
	return reply.Put(out, size)
}

// maxReason bounds the text of a refusal, which every client has room for.
const maxReason = 512

// refusal is an error with a status of its own.
type refusal struct {
	status wire.Status
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(s wire.Status, format string, args ...any) error {
	return &refusal{s, fmt.Sprintf(format, args...)}
}

func statusOf(err error) wire.Status {
	if err == nil { // fast path
		return wire.OK
	}
	var r *refusal
	switch {
	case errors.As(err, &r):
		return r.status
	case errors.Is(err, ErrNotFound):
		return wire.NotFound
	case errors.Is(err, ErrNoMemory):
		return wire.NoMemory
	case errors.Is(err, ErrTooLarge):
		return wire.TooLarge
	case errors.Is(err, ErrExpired):
		return wire.Expired
	case errors.Is(err, wire.ErrMalformed):
		return wire.Malformed
	}
	return wire.Refused
}

// carryOut carries out r.
//
// Hot path: it allocates only to construct.
func (w *worker) carryOut(slot int, r *wire.Request, deadline time.Time, out []byte) (object uint64, data []byte, err error) {
	running := w.lane.running(slot)
	defer running.Store(0)
	if r.Verb == wire.Construct {
		call := Call{deadline: deadline, Chunks: w.chunks}
		if call.Expired() {
			return 0, nil, ErrExpired
		}
		running.Store(1)
		object, err = w.construct(r, &call)
		return object, nil, err
	}
	h := w.find(r.Object)
	if h == nil {
		return 0, nil, refuse(wire.NoObject, "there is no object %#x", r.Object)
	}
	waited := !h.mu.TryLock()
	if waited {
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	if err := h.usable(r.Verb); err != nil {
		return 0, nil, err
	}
	h.call = Call{deadline: deadline, Chunks: w.chunks}
	if (waited || r.Time == 0) && h.call.Expired() {
		return 0, nil, ErrExpired
	}
	running.Store(1)
	if r.Verb == wire.Destruct {
		w.remove(h)
		return 0, nil, nil
	}
	data, err = h.carryOut(r, &h.call, out)
	return 0, data, err
}

// usable returns why h cannot execute v, or nil.
//
// Preconditions: h.mu is held.
func (h *held) usable(v wire.Verb) error {
	switch {
	case h.lost && v != wire.Destruct:
		return refuse(wire.Lost, "object %#x was lost when its component panicked", h.id)
	case h.object == nil && !h.lost:
		return refuse(wire.NoObject, "there is no object %#x", h.id)
	}
	return nil
}

func (w *worker) find(id uint64) *held {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.objects[id]
}

// remove forgets h and gives its memory back.
//
// Preconditions: h.mu is held.
func (w *worker) remove(h *held) {
	w.mu.Lock()
	delete(w.objects, h.id)
	w.mu.Unlock()
	h.object, h.lost = nil, false
	h.env.close()
}

func (w *worker) construct(r *wire.Request, c *Call) (id uint64, err error) {
	kind := w.set[string(r.Key)]
	construct := kind.New
	if construct == nil {
		return 0, refuse(wire.Unknown, "this node has no component %q", r.Key)
	}
	h := &held{env: newEnv(w.budget)}
	w.mu.Lock()
	if len(w.objects) >= w.cfg.Objects {
		w.mu.Unlock()
		return 0, refuse(wire.NoMemory, "a client may have no more than %d objects", w.cfg.Objects)
	}
	w.last++
	h.id = uint64(w.cfg.Number)<<32 | uint64(w.last)
	h.mu.Lock()
	defer h.mu.Unlock()
	w.objects[h.id] = h
	w.mu.Unlock()
	func() {
		defer func() {
			if p := recover(); p != nil {
				err = panicked(p)
			}
		}()
		h.object, err = construct(h.env, c, r.Data)
	}()
	if err == nil && h.object == nil {
		err = errors.New("the component made no object")
	}
	if err != nil {
		w.remove(h)
		return 0, err
	}
	return h.id, nil
}

// carryOut passes a request to the object.
//
// Preconditions: h.mu is held.
func (h *held) carryOut(r *wire.Request, c *Call, out []byte) (data []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			// The object may be in any state: it is lost.
			data, err = nil, panicked(p)
			h.object, h.lost = nil, true
			h.env.close()
		}
	}()
	switch r.Verb {
	case wire.Read:
		return h.object.Read(c, r.Key, out)
	case wire.Write:
		return out, h.object.Write(c, r.Key, r.Data)
	case wire.Delete:
		return out, h.object.Delete(c, r.Key)
	default:
		return h.object.Compute(c, r.Op, r.Data, out)
	}
}

func panicked(p any) error {
	return refuse(wire.Panicked, "panic: %v\n%s", p, debug.Stack())
}

// close ends every object. No object may be called any more.
func (w *worker) close() {
	for _, h := range w.objects {
		h.env.close()
	}
	clear(w.objects)
}
