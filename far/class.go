package far

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"polder/codec"
	"polder/far/heap"
	"polder/far/objects"
)

// ClassConfig says how the heap treats the objects of a class.
type ClassConfig struct {
	// Name appears in statistics.
	Name string
	// Keep says that on a heap made by Open the objects outlive the process: they are part of checkpoints. In the
	// next process NewClass gives back the class that had the Name, with all its objects, if T still has the same
	// layout. Refs in such an object may refer only to objects of classes with Keep.
	Keep bool
	// HotBits is how many passes of the evacuator an object survives without being used, 1 to 8: CLOCK with that many
	// hot bits. Zero means 1. An object that was used only once since it was made or fetched survives no pass.
	HotBits int
	// Evacuating, if not nil, may change the bytes that are about to be written to far memory. They are a copy: the
	// object itself does not change, and stays as it is if it turns out to be in use after all.
	Evacuating func(object []byte)
	// Evacuated, if not nil, is called when an object has become far, with a reference to the object's pointer. It
	// must not wait for local memory, and may be called in a goroutine of the heap's while others use the pointer.
	Evacuated func(r AnyRef)
	// Fetched, if not nil, may change the bytes of a fetched object before anybody sees them, to undo what Evacuating
	// did.
	Fetched func(object []byte)
}

// ClassStats counts what has happened to the objects of a class.
type ClassStats = objects.Stats

// newClass makes a class of objects of size bytes; if size is negative, the objects may be of any size.
func (h *Heap) newClass(cfg ClassConfig, size int, layout string) (*objects.Class, error) {
	c := objects.Config{Name: cfg.Name, HotBits: cfg.HotBits, Evacuating: cfg.Evacuating, Fetched: cfg.Fetched, Outlives: cfg.Keep, Layout: layout}
	if cfg.Evacuated != nil {
		c.Evacuated = func(number uint64) { cfg.Evacuated(AnyRef{number}) }
	}
	return h.objects.NewClass(c, size)
}

// A Class is a kind of objects on a heap: values of type T that are treated
// alike, such as the elements of one data structure. All methods may be called
// by any number of goroutines.
type Class[T any] struct {
	h     *Heap
	c     *objects.Class
	names *names
}

// NewClass makes a class of objects of type T, which must not hold Go pointers, because the garbage collector would
// not see them. A heap has up to 16,384 classes at a time; every structure counts as a class.
func NewClass[T any](h *Heap, cfg ClassConfig) (*Class[T], error) {
	t := reflect.TypeFor[T]()
	if err := pointerless(t); err != nil {
		return nil, fmt.Errorf("cannot make class %q: %w", cfg.Name, err)
	}
	layout, err := keptLayout(cfg.Keep, cfg.Name, t)
	if err != nil {
		return nil, fmt.Errorf("cannot keep class %q: %w", cfg.Name, err)
	}
	oc, err := h.newClass(cfg, int(t.Size()), layout)
	if err != nil {
		return nil, err
	}
	c := &Class[T]{h, oc, new(names)}
	if err := c.names.decode(h, h.objects.State(oc)); err != nil {
		h.objects.Disown(oc)
		return nil, fmt.Errorf("cannot open class %q: its names: %w", cfg.Name, err)
	}
	if oc.Outlives() {
		h.objects.SetState(oc, c.names.encode)
	}
	return c, nil
}

// Heap is the heap to which the class belongs.
func (c *Class[T]) Heap() *Heap { return c.h }

// Stats returns the statistics of the objects of the class.
func (c *Class[T]) Stats() ClassStats { return c.c.Stats() }

// Free ends the class; afterwards nothing may be made of it. If objects of the class have not been freed, Free fails
// and does nothing. It looks at all pointers of the heap, which takes some nanoseconds each, and must not be called
// in a scope.
func (c *Class[T]) Free() error {
	n := 0
	c.h.objects.Each(c.c, func(*uint64) { n++ })
	if n > 0 {
		return fmt.Errorf("cannot free class %q: %d of its objects have not been freed", c.c.Name(), n)
	}
	c.h.objects.Retire(c.c)
	return nil
}

// Clear frees all objects of the class; those that are far or lost it does not read. Their pointers must not be used
// any more, and nobody may make or free objects of the class meanwhile. Clear looks at all pointers of the heap,
// which takes some nanoseconds each, and must not be called in a scope.
func (c *Class[T]) Clear() { c.h.objects.Each(c.c, c.h.objects.Free) }

// New makes an object with the value v. If there is no room in local memory, it waits for some. It must not be called
// in a scope, since the evacuator might be waiting for that scope; in a scope, use NewIn.
func (c *Class[T]) New(ctx context.Context, v T) (Ptr[T], error) { return c.make(ctx, v, 0) }

// make is New for an object whose use is what: 0 or objects.Stream.
func (c *Class[T]) make(ctx context.Context, v T, what int) (p Ptr[T], err error) {
	err = c.h.untilRoom(ctx, func() error {
		w, err := c.h.objects.New(c.c, nil, c.c.Size, what, codec.Bytes(&v))
		if err == nil {
			p = ptrTo[T](c.h, w)
		}
		return err
	})
	return p, err
}

// NewIn makes an object in a scope, and returns its pointer and the zeroed object, which the caller fills; it is
// valid until the scope is left. NewIn does not wait. A scope that takes more than Config.ScopeBytes may get
// ErrScopeFull.
func (c *Class[T]) NewIn(s *heap.Scope) (Ptr[T], *T, error) {
	c.h.core.MustBeOpen(s)
	w, err := c.h.objects.New(c.c, s, c.c.Size, 0, nil)
	if err != nil {
		return Ptr[T]{}, nil, c.h.core.NoRoom(s, err, c.c.Size)
	}
	p := ptrTo[T](c.h, w)
	return p, p.DerefMut(s), nil
}

// NewStream is New for an object that will not be used again soon: the object goes to the log whose objects are
// evacuated first.
func (c *Class[T]) NewStream(ctx context.Context, v T) (Ptr[T], error) {
	return c.make(ctx, v, objects.Stream)
}

// New makes an object with the value v, of a class that the heap has for all objects of type T that are made by New
// or NewIn. See Class.New.
func New[T any](ctx context.Context, h *Heap, v T) (Ptr[T], error) {
	c, err := defaultClass[T](h)
	if err != nil {
		return Ptr[T]{}, err
	}
	return c.New(ctx, v)
}

// NewIn makes an object, of the same class as New, in a scope. See Class.NewIn.
func NewIn[T any](s *heap.Scope) (Ptr[T], *T, error) {
	c, err := defaultClass[T](heapOfScope(s))
	if err != nil {
		return Ptr[T]{}, nil, err
	}
	return c.NewIn(s)
}

// defaults are the classes of the functions New and NewIn on a heap, by type.
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
