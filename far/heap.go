package far

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/ahead"
	"polder/far/bytemap"
	"polder/far/heap"
	"polder/far/objects"
	"polder/far/store"
	"polder/internal/invariants"
)

// Heap is memory for maps and for objects of pointers: a local budget and a
// store behind it.
type Heap struct {
	core    heap.Heap
	state   []byte       // the program's state in the checkpoint that the heap was opened with
	stateOf func() State // see KeepState; under checkpoint

	checkpoint    chan struct{} // capacity 1; holds an element while a checkpoint is taken
	every         time.Duration // between two checkpoints, 0 for none
	checkpointed  atomic.Int64  // when the last one was taken, in Unix nanoseconds
	checkpointAt  atomic.Uint64 // maps.Changes at that time, or somewhat earlier
	checkpointErr atomic.Pointer[error]

	maps     bytemap.Maps
	objects  objects.Space // of pointers
	defaults defaults      // classes of New
	clones   clones        // of Shared
	strings  atomic.Pointer[bytesClasses]
	held     [heldParts]heldBytes
	ahead    ahead.Engine

	once       sync.Once
	mu         sync.Mutex
	structures []*tracker // those not freed, under mu
}

// NewHeap makes a heap with a local budget of cfg.Local bytes over store. When the heap is closed, nothing of it
// remains in the store. NewHeap fails if the configuration is wrong.
func NewHeap(store Store, cfg Config) (*Heap, error) {
	lay, err := layoutFor(store, &cfg)
	if err != nil {
		return nil, err
	}
	return newHeap(store, cfg, lay)
}

// layoutFor divides cfg's budget, and sets the defaults of MaxLocal and MaxValue in cfg.
func layoutFor(store Store, cfg *Config) (layout, error) {
	if store == nil {
		return layout{}, errors.New("cannot make a heap: there is no store; NewMemStore makes one of this process's memory")
	}
	if cfg.MaxValue < 0 || int64(cfg.MaxValue) > 1<<32-1 {
		return layout{}, fmt.Errorf("cannot make a heap: MaxValue is %d, want 0 to 4 GiB", cfg.MaxValue)
	}
	if cfg.MaxLocal == 0 {
		cfg.MaxLocal = 4 * min(cfg.Local, math.MaxInt64/4)
	}
	sz, err := heap.SizesFor(store, cfg.core())
	if err != nil {
		return layout{}, fmt.Errorf("cannot make a heap: %w", err)
	}
	if cfg.MaxValue == 0 {
		cfg.MaxValue = int(min(cfg.Local/4, 512<<20))
	}
	return layout{Sizes: sz}, nil
}

// layout is how a heap divides its budget.
type layout struct {
	heap.Sizes
	shards int         // of a map; 0 lets the budget decide
	policy heap.Policy // nil is CLOCK; for tests
	early  bool        // words of far entries and objects go far as soon as they may; for tests
}

func newHeap(store Store, cfg Config, lay layout) (*Heap, error) {
	h, err := prepare(store, cfg, lay)
	if err == nil {
		h.start()
	}
	return h, err
}

// prepare makes a heap whose goroutines have not been started.
func prepare(st store.Store, cfg Config, lay layout) (*Heap, error) {
	h := &Heap{every: cfg.CheckpointEvery, checkpoint: make(chan struct{}, 1)}
	h.stateOf = func() State { return State{Bytes: h.state} } // until the program says what is to be kept
	core := cfg.core()
	core.Policy = lay.policy
	if err := h.core.Init(st, core, lay.Sizes, (*host)(h)); err != nil {
		return nil, fmt.Errorf("cannot make a heap: %w", err)
	}
	if err := h.objects.Init(&h.core, lay.Sizes, lay.early); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a heap: %w", err), h.unmap())
	}
	h.maps.Init(&h.core, lay.Sizes, bytemap.Config{MaxValue: cfg.MaxValue, Most: objects.FirstOwner, Shards: lay.shards, Early: lay.early})
	h.ahead.Init(&h.core, &h.objects)
	register(h)
	return h, nil
}

func (h *Heap) start() {
	h.core.Start()
	h.maps.Start()
	h.objects.Start()
}

// NewByteMap makes an empty map on the heap. On a heap that was opened again, it returns the map that had the name,
// if there was one and nobody has asked for it yet. The name appears in statistics, too. A heap takes 49,152 maps at
// a time.
func (h *Heap) NewByteMap(name string) *ByteMap {
	m, err := h.maps.New(name, "", false)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return m
}

// NewTxn makes a transaction without changes.
func (h *Heap) NewTxn() *Txn { return h.maps.NewTxn() }

// Close is CloseBy with a minute.
func (h *Heap) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return h.CloseBy(ctx)
}

// CloseBy stops the heap's goroutines. A heap of NewHeap gives its far memory back. A heap of Open takes a checkpoint
// first, and leaves its far memory for the next Open. It tries to take the checkpoint until ctx ends; if there is
// none, all changes since the checkpoint before are lost, unless something else has them. Calls that wait for room
// end with ErrClosed; CloseBy waits for calls that read from the store. Closing twice is a no-op.
func (h *Heap) CloseBy(ctx context.Context) error {
	var err error
	h.once.Do(func() { err = h.close(ctx, true) })
	return err
}

// HandOver is CloseBy for a heap that was made by Open and that another process is about to open. HandOver does not
// give spare segments back to the store, so that the other process need not wait for that; that process gives back
// all segments that its checkpoint does not refer to.
func (h *Heap) HandOver(ctx context.Context) error {
	var err error
	h.once.Do(func() { err = h.close(ctx, !h.core.Far.Keeps()) })
	return err
}

func (h *Heap) close(ctx context.Context, giveBack bool) error {
	var errs []error
	if h.core.Far.Keeps() {
		if err := h.Checkpoint(ctx); err != nil {
			errs = append(errs, err)
		}
		select {
		case h.checkpoint <- struct{}{}: // for good: no other checkpoint may run from now on
		case <-ctx.Done():
		}
	}
	h.core.Stop()
	h.maps.Shut()
	quiet := h.core.AwaitScopes()
	if invariants.Enabled && quiet == nil {
		if err := h.audit(); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	if quiet == nil {
		// Whoever enters a scope after End finds no object. AwaitScopes waits for those who entered before.
		h.objects.End()
		quiet = h.core.AwaitScopes()
	}
	// Nobody can reach the logs any more, since every access goes through an index.
	errs = append(errs, h.maps.Close())
	if giveBack {
		errs = append(errs, h.core.GiveBack())
	}
	unregister(h)
	if quiet != nil {
		errs = append(errs, quiet) // and the memory stays mapped
	} else {
		errs = append(errs, h.unmap())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot close the heap cleanly: %w", err)
	}
	return nil
}

// unmap gives the local memory back.
func (h *Heap) unmap() error { return errors.Join(h.objects.Close(), h.core.Unmap()) }

// audit counts again everything that is counted, and returns an error that says what does not agree. It runs while
// the heap is being closed, in builds with invariants; no call may be under way.
func (h *Heap) audit() error {
	t := h.core.Tally()
	for _, tr := range h.structures {
		t.Index[heap.Nodes] += tr.nodeParts.Load() * nodePartBytes
	}
	if err := h.maps.Audit(t); err != nil {
		return err
	}
	if err := h.objects.Audit(t); err != nil {
		return err
	}
	return h.core.Audit(t)
}
