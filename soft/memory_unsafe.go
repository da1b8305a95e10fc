package soft

import "unsafe"

// base is the address of a heap's first segment. The memory behind it may
// become zero at any instruction; it never faults, because it is mapped for
// as long as the heap is reachable and its size is sealed against growth and
// only ever cut by a coordinator that means to end this process.
type base struct{ p unsafe.Pointer }

func baseOf(b []byte) base { return base{unsafe.Pointer(unsafe.SliceData(b))} }

// at returns the address of a byte of a segment.
//
// Preconditions: seg and off are within the heap.
func (b base) at(seg, off uint32) unsafe.Pointer {
	return unsafe.Add(b.p, uintptr(seg)*SegmentSize+uintptr(off))
}

// bytes views n bytes of a segment. What they say must be proved after use.
func (b base) bytes(seg, off, n uint32) []byte {
	return unsafe.Slice((*byte)(b.at(seg, off)), n)
}

// header reads an object's header. What it says must be proved after use.
func (b base) header(seg, off uint32) header {
	p := (*[2]uint64)(b.at(seg, off))
	return parseHeader(p[0], p[1])
}

func (b base) putHeader(seg, off uint32, h header) {
	p := (*[2]uint64)(b.at(seg, off))
	p[0], p[1] = h.words()
}

func (b base) load64(seg, off uint32) uint64 { return *(*uint64)(b.at(seg, off)) }

// asStripes views memory as the state words of stripes.
func asStripes(b []byte) []stripe {
	return unsafe.Slice((*stripe)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}

// copyOut copies a value out of a segment. What it says must be proved.
//
// Preconditions: T is codec.Pointerless; seg and off are within the heap and so
// are the bytes of T from there.
func copyOut[T any](b base, seg, off uint32, dst *T) { *dst = *(*T)(b.at(seg, off)) }

// copyIn copies a value into a segment.
//
// Preconditions: those of copyOut; the stripe is locked.
func copyIn[T any](b base, seg, off uint32, v *T) { *(*T)(b.at(seg, off)) = *v }

// sizeOf returns the size of a T in bytes. It declares no variable of type T: a large one would be allocated.
func sizeOf[T any]() int { return int(unsafe.Sizeof(*(*T)(nil))) }
