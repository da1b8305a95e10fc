package far

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"polder/codec"
	"polder/far/record"
)

// keptLayout returns the layout of type t, if something of type t is to be kept under name. When that is opened
// again, its layout is compared with the one that was kept. If keep is false, keptLayout returns "".
func keptLayout(keep bool, name string, t reflect.Type) (string, error) {
	switch {
	case !keep:
		return "", nil
	case name == "":
		return "", errors.New("it has no name by which it could be found again")
	}
	return layoutOf(t)
}

// layoutOf is codec.Layout of t. Refs are allowed, since they mean the same in another process; other references are
// refused.
func layoutOf(t reflect.Type) (string, error) {
	return codec.Layout(t, func(t reflect.Type) (string, error) {
		name, _, generic := strings.Cut(t.Name(), "[")
		switch {
		case t.PkgPath() != reflect.TypeFor[BytesRef]().PkgPath():
		case name == "Ref" && generic:
			return "far.Ref", nil
		case name == "BytesRef" || name == "SharedRef" && generic:
			return "", fmt.Errorf("a %v cannot be kept, since what it refers to is not: use a far.Ref, or a map", t)
		}
		return "", nil
	})
}

// names are the pointers of a class that were given names.
type names struct {
	mu sync.Mutex
	of map[string]uint64 // by name, the number of the pointer's word; under mu
}

// encode returns the names in the form in which a checkpoint keeps them with the class.
func (ns *names) encode() []byte {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(ns.of)) {
		b = binary.LittleEndian.AppendUint64(b, ns.of[name])
		b = append(binary.LittleEndian.AppendUint16(b, uint16(len(name))), name...)
	}
	return b
}

// decode makes ns the names in b, which a checkpoint has kept. It leaves out pointers of h that were freed.
func (ns *names) decode(h *Heap, b []byte) error {
	ns.of = map[string]uint64{}
	for d := (&record.Decoder{B: b}); len(d.B) > 0; {
		n := d.U64()
		name := string(d.Bytes(int(d.U16())))
		if d.Err != nil {
			return d.Err
		}
		if _, err := h.objects.Taken(n, 1); err == nil { // else it was freed
			ns.of[name] = n
		}
	}
	return nil
}

// maxName is how many bytes the name of a pointer may have.
const maxName = 1 << 10

// SetNamed gives p a name, by which Named finds p again; if the class is kept, also in another process that opens the
// heap. A nil p takes the name away. Do that before you free the pointer that has the name.
func (c *Class[T]) SetNamed(name string, p Ptr[T]) error {
	if len(name) > maxName {
		return fmt.Errorf("cannot name a pointer: the name has %d bytes, at most %d are possible", len(name), maxName)
	}
	n := p.Ref().n
	switch {
	case p.IsNil():
	case n == 0:
		return fmt.Errorf("cannot name a pointer: %w", ErrClosed)
	case heapOf(p.word()) != c.h:
		return errors.New("cannot name a pointer: it is of another heap than the class")
	}
	c.names.mu.Lock()
	defer c.names.mu.Unlock()
	if n == 0 {
		delete(c.names.of, name)
	} else {
		c.names.of[name] = n
	}
	return nil
}

// Named returns the pointer that has the name, and whether there is one.
func (c *Class[T]) Named(name string) (Ptr[T], bool) {
	c.names.mu.Lock()
	defer c.names.mu.Unlock()
	n, ok := c.names.of[name]
	return Ref[T]{n: n}.Ptr(c.h), ok
}

// runsState is what a checkpoint keeps of an array or a vector with its class: how many elements there are, and where
// the words of their objects are.
type runsState struct {
	n      int
	firsts []uint64 // the number of the first word of each part
}

func (st runsState) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(st.n))
	for _, first := range st.firsts {
		b = binary.LittleEndian.AppendUint64(b, first)
	}
	return b
}

// keptRuns returns what a checkpoint has kept with the class of tr. It reports false for ok if nothing was kept. If
// in that case the class is from a checkpoint, which was taken before the structure was complete, keptRuns frees the
// objects of the class.
func (tr *tracker) keptRuns() (st runsState, ok bool, err error) {
	b := tr.h.objects.State(tr.Class)
	if b == nil {
		if tr.Class.Again() {
			tr.h.objects.Each(tr.Class, tr.h.objects.Free)
		}
		return st, false, nil
	}
	d := &record.Decoder{B: b}
	st.n = int(d.U64())
	for len(d.B) > 0 {
		st.firsts = append(st.firsts, d.U64())
	}
	if d.Err == nil && st.n < 0 {
		d.Err = errors.New("its length is negative")
	}
	return st, true, d.Err
}

// keep makes checkpoints keep what st returns, with the class of tr, if the class outlives the process.
func (tr *tracker) keep(st func() runsState) {
	if tr.Class.Outlives() {
		tr.h.objects.SetState(tr.Class, func() []byte { return st().encode() })
	}
}

// keptWords returns the n words of the structure from number first on.
func (tr *tracker) keptWords(first uint64, n int) ([]uint64, error) {
	words, err := tr.h.objects.Taken(first, n)
	if err != nil && n > 0 {
		return nil, fmt.Errorf("cannot open %s %q: %w", tr.kind, tr.Class.Name(), err)
	}
	return words, nil
}
