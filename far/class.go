package far

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"polder/codec"
	"polder/far/heap"
	"polder/far/record"
)

// ClassConfig says how the heap treats the objects of a class.
type ClassConfig struct {
	// Name appears in statistics.
	Name string
	// HotBits is how many passes of the evacuator an object survives without
	// being used, 1 to 8: CLOCK with so many hot bits. Zero means 1. What was
	// used only once since it was made or fetched does not survive any.
	HotBits int
	// Evacuating, if not nil, may change the bytes that are about to be
	// written to far memory. They are a copy: the object is not changed, and
	// stays as it is if it turns out to be in use after all.
	Evacuating func(object []byte)
	// Evacuated, if not nil, is called when an object has become far. The
	// reference is that of its pointer. It must not wait for local memory,
	// and may be called in a goroutine of the heap's while others use the
	// pointer.
	Evacuated func(r AnyRef)
	// Fetched, if not nil, may change the bytes of an object that was fetched,
	// before anybody sees them. It undoes what Evacuating did.
	Fetched func(object []byte)
}

// ClassStats is what the objects of a class have been through.
type ClassStats struct {
	Name string

	Misses         uint64 // dereferences that had to wait for a fetch
	Coalesced      uint64 // those of them that joined somebody else's
	Warmed         uint64 // dereferences of a local object for the first time in a pass
	Rescued        uint64 // dereferences that met an object that was to be moved
	Prefetched     uint64 // objects that were fetched before anybody asked
	BytesIn        uint64 // fetched
	BytesOut       uint64 // written to far memory
	Evacuated      uint64 // objects that became far
	EvacuatedClean uint64 // those of them that had a good far copy
	Computed       uint64 // times that the store has looked through an object where it lay
}

// Add adds what the objects of another class have been through, so that classes of one
// name count as one.
func (s *ClassStats) Add(o *ClassStats) {
	s.Misses += o.Misses
	s.Coalesced += o.Coalesced
	s.Warmed += o.Warmed
	s.Rescued += o.Rescued
	s.Prefetched += o.Prefetched
	s.BytesIn += o.BytesIn
	s.BytesOut += o.BytesOut
	s.Evacuated += o.Evacuated
	s.EvacuatedClean += o.EvacuatedClean
	s.Computed += o.Computed
}

// class is a kind of objects: the paper's data structure.
type class struct {
	id   uint16 // what words and objects call it, while it exists
	born uint64 // version of the last far record that cannot be its, though it may have its id
	cfg  ClassConfig
	size int // of the objects' data, -1 if they differ

	ended atomic.Bool // nothing is to be made of it any more

	misses, coalesced, warmed, rescued atomic.Uint64
	prefetched, bytesIn, bytesOut      atomic.Uint64
	evacuatedDirty, evacuatedClean     atomic.Uint64
	computed                           atomic.Uint64
}

// maxClasses is how many classes a heap has at a time.
const maxClasses = 1 << 14

// objectOwners is the first number of an owner that is a class of objects. Those below are maps.
const objectOwners = 1<<16 - maxClasses

// owner is the number of the owner that c is.
func (c *class) owner() uint16 { return objectOwners + c.id }

// classIn is the class that a local object's second word tells of.
func classIn(tail uint64) uint16 { return heap.TailOwner(tail) % maxClasses }

// putFar makes b, which has room for it, the record of an object, and returns its data.
func (c *class) putFar(b []byte, number uint64, data []byte) []byte {
	return record.Put(b, record.Header{Kind: record.Object, Owner: c.owner(), Number: number}, data).Value()
}

func (h *Heap) newClass(cfg ClassConfig, size int) (*class, error) {
	if cfg.HotBits < 0 || cfg.HotBits > 8 {
		return nil, fmt.Errorf("cannot make class %q: HotBits is %d, want 1 to 8, or 0 for 1", cfg.Name, cfg.HotBits)
	}
	if size > h.maxObject {
		return nil, fmt.Errorf("cannot make class %q: its objects are %d bytes, at most %d fit into a log: %w", cfg.Name, size, h.maxObject, ErrTooLarge)
	}
	cfg.HotBits = max(cfg.HotBits, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	old := *h.classes.Load()
	if len(old) == 0 {
		defer h.core.UseScopes()
	}
	id, again := h.usedID()
	c := &class{born: h.core.Far.Version(), cfg: cfg, size: size}
	switch {
	case again:
		c.id = id
		classes := slices.Clone(old)
		classes[id] = c
		h.classes.Store(&classes)
	case len(old) == maxClasses:
		return nil, fmt.Errorf("cannot make class %q: the heap has %d classes and structures, of which %d were freed while scopes were open that still are: free some, and leave the scopes",
			cfg.Name, maxClasses, len(h.retired))
	default:
		c.id = uint16(len(old))
		classes := append(old[:len(old):len(old)], c)
		h.classes.Store(&classes)
	}
	return c, nil
}

func (h *Heap) class(id uint16) *class { return (*h.classes.Load())[id] }

func (c *class) stats() ClassStats {
	return ClassStats{
		Name:           c.cfg.Name,
		Misses:         c.misses.Load(),
		Coalesced:      c.coalesced.Load(),
		Warmed:         c.warmed.Load(),
		Rescued:        c.rescued.Load(),
		Prefetched:     c.prefetched.Load(),
		BytesIn:        c.bytesIn.Load(),
		BytesOut:       c.bytesOut.Load(),
		Evacuated:      c.evacuatedDirty.Load() + c.evacuatedClean.Load(),
		EvacuatedClean: c.evacuatedClean.Load(),
		Computed:       c.computed.Load(),
	}
}

// A Class is a kind of objects on a heap: values of type T that are treated
// alike, such as the elements of one data structure. All methods may be called
// by any number of goroutines.
type Class[T any] struct {
	h *Heap
	c *class
}

// NewClass makes a class of objects of type T, which must not hold Go
// pointers: the garbage collector does not see them. A heap has up to 16,384
// classes, and structures, of which each is one, at a time.
func NewClass[T any](h *Heap, cfg ClassConfig) (*Class[T], error) {
	t := reflect.TypeFor[T]()
	if err := pointerless(t); err != nil {
		return nil, fmt.Errorf("cannot make class %q: %w", cfg.Name, err)
	}
	c, err := h.newClass(cfg, int(t.Size()))
	if err != nil {
		return nil, err
	}
	return &Class[T]{h, c}, nil
}

// Heap is the heap that the class is of.
func (c *Class[T]) Heap() *Heap { return c.h }

// Stats returns what the objects of the class have been through.
func (c *Class[T]) Stats() ClassStats { return c.c.stats() }

// New makes an object that is v, and waits for room in local memory if it has
// to. It must not be called in a scope, which the evacuator might be waiting
// for; NewIn is for that.
func (c *Class[T]) New(ctx context.Context, v T) (Ptr[T], error) {
	for {
		w, err := c.h.newObject(c.c, nil, c.c.size, 0, codec.Bytes(&v))
		if err == nil {
			return ptrTo[T](c.h, w), nil
		}
		if err != heap.ErrNoRoom {
			return Ptr[T]{}, err
		}
		if err := c.h.core.RoomSoon(ctx); err != nil {
			return Ptr[T]{}, err
		}
	}
}

// NewIn makes an object in a scope, and returns it, zeroed, to be filled: it is
// valid until the scope is left. It does not wait; a scope that takes more than
// Config.ScopeBytes may get ErrScopeFull.
func (c *Class[T]) NewIn(s *heap.Scope) (Ptr[T], *T, error) {
	c.h.core.MustBeOpen(s)
	w, err := c.h.newObject(c.c, s, c.c.size, 0, nil)
	if err != nil {
		return Ptr[T]{}, nil, c.h.core.NoRoom(s, err, c.c.size)
	}
	p := ptrTo[T](c.h, w)
	return p, p.DerefMut(s), nil
}

// NewStream is New for an object that will not be used again soon: it goes to
// the log of those that are evacuated first.
func (c *Class[T]) NewStream(ctx context.Context, v T) (Ptr[T], error) {
	for {
		w, err := c.h.newObject(c.c, nil, c.c.size, derefStream, codec.Bytes(&v))
		if err == nil {
			return ptrTo[T](c.h, w), nil
		}
		if err != heap.ErrNoRoom {
			return Ptr[T]{}, err
		}
		if err := c.h.core.RoomSoon(ctx); err != nil {
			return Ptr[T]{}, err
		}
	}
}

// New makes an object that is v, of a class that all objects of type T share
// which are made so. See Class.New.
func New[T any](ctx context.Context, h *Heap, v T) (Ptr[T], error) {
	c, err := defaultClass[T](h)
	if err != nil {
		return Ptr[T]{}, err
	}
	return c.New(ctx, v)
}

// NewIn makes an object in a scope. See Class.NewIn.
func NewIn[T any](s *heap.Scope) (Ptr[T], *T, error) {
	c, err := defaultClass[T](heapOfScope(s))
	if err != nil {
		return Ptr[T]{}, nil, err
	}
	return c.NewIn(s)
}

// defaults are a heap's classes of New, by type.
type defaults struct {
	byType sync.Map // reflect.Type to *Class[T]
	mu     sync.Mutex
}

func defaultClass[T any](h *Heap) (*Class[T], error) {
	t := reflect.TypeFor[T]()
	if c, ok := h.defaults.byType.Load(t); ok {
		return c.(*Class[T]), nil
	}
	h.defaults.mu.Lock()
	defer h.defaults.mu.Unlock()
	if c, ok := h.defaults.byType.Load(t); ok {
		return c.(*Class[T]), nil
	}
	c, err := NewClass[T](h, ClassConfig{Name: t.String()})
	if err == nil {
		h.defaults.byType.Store(t, c)
	}
	return c, err
}

// pointerless returns an error that names the first Go pointer in a type.
func pointerless(t reflect.Type) error {
	if err := codec.Pointerless(t); err != nil {
		return fmt.Errorf("%w; far.Ref is a pointer that may be there", err)
	}
	return nil
}
