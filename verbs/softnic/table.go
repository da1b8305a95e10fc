package softnic

// maxSlots is the most objects in a table. A number is a slot in the low 16
// bits, from 1, and a generation in the 8 bits above, so that the number of an
// object that is gone does not name its successor soon.
const maxSlots = 1<<16 - 1

// table hands out numbers of 24 bits to objects.
type table[T any] struct {
	items []*T    // by slot; items[0] is unused
	gens  []uint8 // by slot
	free  fifo[uint16]
	limit int // most objects
}

func (t *table[T]) add(v *T) (num uint32, ok bool) {
	if len(t.items) == 0 {
		t.items, t.gens = make([]*T, 1), make([]uint8, 1)
	}
	// The oldest free slot is taken, once no new ones are to be had or
	// enough are free, so that generations last.
	if len(t.items) <= t.limit && t.free.len() < 256 {
		t.items = append(t.items, v)
		t.gens = append(t.gens, 0)
		return uint32(len(t.items) - 1), true
	}
	if t.free.len() == 0 {
		return 0, false
	}
	slot := *t.free.front()
	t.free.pop()
	t.gens[slot]++
	t.items[slot] = v
	return uint32(t.gens[slot])<<16 | uint32(slot), true
}

// get returns the object, or nil if there is none of that number.
func (t *table[T]) get(num uint32) *T {
	slot := int(num & maxSlots)
	if slot >= len(t.items) || uint32(t.gens[slot]) != num>>16 {
		return nil
	}
	return t.items[slot]
}

// Preconditions: get(num) is not nil.
func (t *table[T]) remove(num uint32) {
	slot := num & maxSlots
	t.items[slot] = nil
	*t.free.push() = uint16(slot)
}

// fifo is a queue in a ring that grows as needed and keeps its elements'
// storage for reuse.
type fifo[T any] struct {
	buf  []T // a power of two of them
	head int
	n    int
}

func (f *fifo[T]) len() int { return f.n }

// push adds an element, which may hold what a popped one held.
func (f *fifo[T]) push() *T {
	if f.n == len(f.buf) {
		f.grow()
	}
	e := &f.buf[(f.head+f.n)&(len(f.buf)-1)]
	f.n++
	return e
}

func (f *fifo[T]) grow() {
	buf := make([]T, max(4, 2*len(f.buf)))
	k := copy(buf, f.buf[f.head:])
	copy(buf[k:], f.buf[:f.head])
	f.buf, f.head = buf, 0
}

// Preconditions of front and pop: the queue is not empty.
func (f *fifo[T]) front() *T { return &f.buf[f.head] }

func (f *fifo[T]) pop() {
	f.head = (f.head + 1) & (len(f.buf) - 1)
	f.n--
}

func (f *fifo[T]) clear() { f.head, f.n = 0, 0 }
