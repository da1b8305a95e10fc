package ahead

// A Prefetcher guesses which objects of a data structure a goroutine will use
// next. Every scope has one for each structure that is used in it, so it needs
// no lock. Objects are numbered in the structure's order; an object of an Array
// or a Vector is a group of elements.
//
// Access is told of object i when it is used for the first time in a while,
// which is when it was far, was prefetched, or has survived a pass of the
// evacuator unused: what is hot costs nothing, and is not seen. It appends the
// numbers of the objects that are to be fetched to dst and returns that. Window
// is how many objects may be on their way or waiting to be used; numbers outside
// of the structure are passed over.
type Prefetcher interface {
	Access(i, window int, dst []int) []int
}

// NoPrefetch is a Prefetcher that never asks for anything.
type NoPrefetch struct{}

// Access returns dst.
func (NoPrefetch) Access(i, window int, dst []int) []int { return dst }

// Stride is the Prefetcher that structures have if they are given no other. It
// finds sequences and strides, in both directions: after two equal steps it asks
// for the objects ahead, and again when half of those have been used. The
// zero Stride is ready.
type Stride struct {
	last, step int
	seen       int // how many equal steps in succession
	next       int // the first object that was not asked for
	begun      bool
}

// Onward is a Stride that has found a sequence, of which 0 is the next object.
func Onward() *Stride { return &Stride{begun: true, step: 1, seen: 1, last: -1} }

// Access does as Prefetcher says.
func (p *Stride) Access(i, window int, dst []int) []int {
	d := i - p.last
	if d == 0 && p.begun {
		return dst
	}
	p.last = i
	if !p.begun {
		p.begun = true
		return dst
	}
	// Hot objects are not seen, so a multiple of the step counts as a step, too.
	if p.step == 0 || d%p.step != 0 || d/p.step < 1 || d/p.step > max(window, 1) {
		p.step, p.seen, p.next = d, 1, i+d
		return dst
	}
	if p.seen++; p.seen < 2 {
		return dst
	}
	return p.ahead(i, window, dst)
}

// ahead asks for what is missing of the window beyond i.
func (p *Stride) ahead(i, window int, dst []int) []int {
	lead := (p.next-i)/p.step - 1
	if lead < 0 {
		p.next, lead = i+p.step, 0
	}
	if lead > window/2 {
		return dst
	}
	for ; lead < window; lead++ {
		dst = append(dst, p.next)
		p.next += p.step
	}
	return dst
}
