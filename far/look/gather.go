package look

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"polder/far/ahead"
	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
	"polder/internal/offload"
)

const (
	// GatherMost is how many elements are gathered at a time.
	GatherMost = 1 << 16
	// gatherParts is how many parts the store is asked for at a time, and gatherBytes is about how many bytes their
	// records have: as many as fit a request, so that the store has begun with them while the next ones are looked
	// for.
	gatherParts = 1024
	gatherBytes = 1 << 20
	// askBytes is how many bytes of a request ask a node for one element (far/remote/scan).
	askBytes = 24
	// partElements is how many elements one part has at most, and partBytes about how many bytes these have.
	partElements = 1024
	partBytes    = 32 << 10
	// readers is how many batches are read at a time.
	readers = 4
)

// A pick is an element that is wanted, and where it goes to: the index of the element, and in the lowest 16 bits its
// place among the elements that are gathered together.
type pick uint64

func (p pick) element() int { return int(p >> 16) }
func (p pick) place() int   { return int(p & (GatherMost - 1)) }

// gathering is some elements of a structure that are being gathered.
type gathering struct {
	looking
	stride int
	dst    []byte   // for all elements that are gathered together
	of     [][]pick // for each part, the picks of its elements
	todo   [][]pick // for each object that is to be read, the picks of its elements
	ids    []uint32 // memory for the Elements of parts, in use up to its length
	out    []byte   // memory for the Out of parts with several elements, likewise
}

var gatherings = sync.Pool{New: func() any { return new(gathering) }}

// newGathering returns a gathering that copies elements of stride bytes to dst. It is a part of a call of Gather, and
// uses the memory of another gathering that is no longer needed.
func newGathering(e *ahead.Engine, st *ahead.Structure, stride int, dst []byte) *gathering {
	g := gatherings.Get().(*gathering)
	parts := g.parts[:0]
	*g = gathering{
		looking: newLooking(e, st, &offload.Scan{Stride: stride}), stride: stride, dst: dst,
		of: g.of[:0], todo: g.todo[:0], ids: g.ids[:0], out: g.out[:0],
	}
	g.parts = parts
	g.then = func() bool {
		clear(g.parts)
		clear(g.of)
		clear(g.todo)
		gatherings.Put(g)
		return true
	}
	return g
}

// Gather copies the elements of stride bytes at indices to dst.
func Gather(ctx context.Context, e *ahead.Engine, st *ahead.Structure, dst []byte, stride int, indices []int) error {
	picks := make([]pick, 0, min(len(indices), GatherMost))
	var spare []pick
	for len(indices) > 0 && stride > 0 {
		n := min(len(indices), GatherMost)
		picks = picks[:0]
		for k, i := range indices[:n] {
			picks = append(picks, pick(i)<<16|pick(k))
		}
		if !slices.IsSorted(picks) {
			picks, spare = inOrder(picks, spare)
		}
		rest := picks
		if err := inTurns(ctx, func(ctx context.Context) (*looking, error) {
			if len(rest) == 0 {
				return nil, nil
			}
			g := newGathering(e, st, stride, dst)
			err := g.begin(func() (err error) {
				rest, err = g.here(ctx, rest)
				return err
			}, func() error { return g.there(ctx) })
			if err != nil {
				return nil, err
			}
			return &g.looking, nil
		}); err != nil {
			return err
		}
		dst, indices = dst[n*stride:], indices[n:]
	}
	return nil
}

const (
	digit = 11  // bits by which one pass puts picks in order
	few   = 512 // with fewer picks, sorting by comparing is as fast
)

// inOrder returns picks, which are in the order of their places, in the order of their elements, and a buffer for the
// next call. For tens of thousands of picks that takes a ninth of the time of sorting by comparing, during which no
// node would do anything.
func inOrder(picks, spare []pick) (ordered, buffer []pick) {
	if len(picks) < few {
		slices.Sort(picks)
		return picks, spare
	}
	to := slices.Grow(spare[:0], len(picks))[:len(picks)]
	all := pick(0)
	for _, p := range picks {
		all |= p
	}
	for shift := 16; all>>shift != 0; shift += digit {
		var at [1 << digit]int32 // where the next pick with a digit goes to
		for _, p := range picks {
			at[p>>shift%(1<<digit)]++
		}
		n := int32(0)
		for d := range at {
			at[d], n = n, n+at[d]
		}
		for _, p := range picks {
			d := p >> shift % (1 << digit)
			to[at[d]] = p
			at[d]++
		}
		picks, to = to, picks
	}
	return picks, to
}

// here copies those elements of picks that are local, and finds out which ones the store is to copy and which ones
// are to be read. The picks are in order. It stops when that is enough for one request, and returns the picks that
// are left.
func (g *gathering) here(ctx context.Context, picks []pick) (rest []pick, err error) {
	e, st := g.e, g.st
	s := e.Core.Acquire(ctx)
	defer e.Core.Release(s)
	open, bytes, woken := false, 0, -1
	leave := func() {
		if open {
			s.Leave()
			open = false
		}
	}
	defer leave()
	for len(picks) > 0 && len(g.parts) < gatherParts && len(g.todo) < gatherParts && g.bytes < gatherBytes {
		if !open {
			if err := context.Cause(ctx); err != nil {
				return nil, err
			}
			e.Core.EnterAtOnce(s)
			open = true
		}
		c, n := picks[0].element()/st.Group, 1
		for n < len(picks) && picks[n].element()/st.Group == c {
			n++
		}
		of := picks[:n]
		p := st.Word(c)
		if p == nil { // a Vector has become shorter
			g.copy(of, nil)
			picks = picks[n:]
			continue
		}
		switch word := objects.Load(p); {
		case word.Local() && !word.Marked():
			// As in Deref's fast path, the object stays where it is until s is left. Being used here makes it no
			// hotter.
			g.copy(of, e.Core.Logs.Object(word.Addr())[object.Header:])
		case word.Zero():
			g.copy(of, nil)
		case word.Far() && g.take(p, word, of):
		case word.Asleep() && woken != c:
			leave()
			woken = c
			if err := e.Space.Awaken(ctx, p); err == nil {
				continue
			}
			g.todo = append(g.todo, of)
		default:
			g.todo = append(g.todo, of)
		}
		picks = picks[n:]
		if bytes += object.Header + n*g.stride; bytes >= lookStep {
			leave()
			bytes = 0
		}
	}
	return picks, nil
}

// copy copies the elements of the picks from data, the data of their object, to their places; zeros if data is nil.
func (g *gathering) copy(of []pick, data []byte) {
	for _, p := range of {
		to := g.place(p)
		if data == nil {
			clear(to)
			continue
		}
		at := p.element() % g.st.Group * g.stride
		copy(to, data[at:at+g.stride])
	}
}

// place is where p goes to.
func (g *gathering) place(p pick) []byte {
	at := p.place() * g.stride
	return g.dst[at : at+g.stride : at+g.stride]
}

// take has the store copy the elements of the far object whose word p was word. It reports false if the object is to
// be read instead, as when asking for the elements would move more bytes than reading the object.
func (g *gathering) take(p *uint64, word objects.Word, of []pick) bool {
	size := object.FarSize(g.st.Class.Size)
	if len(of)*(askBytes+g.stride) >= size {
		return false
	}
	part, ok := g.hold(p, word)
	if !ok {
		return false
	}
	for len(of) > 0 {
		n := min(len(of), partElements, max(partBytes/g.stride, 1))
		first := len(g.ids)
		for _, p := range of[:n] {
			g.ids = append(g.ids, uint32(p.element()%g.st.Group))
		}
		part.Elements = g.ids[first:len(g.ids):len(g.ids)]
		if part.Out = g.place(of[0]); n > 1 {
			at := len(g.out)
			g.out = slices.Grow(g.out, n*g.stride)[:at+n*g.stride]
			part.Out = g.out[at:len(g.out):len(g.out)]
		}
		g.parts = append(g.parts, part)
		g.of = append(g.of, of[:n])
		g.bytes += size
		of = of[n:]
	}
	return true
}

// there has the store copy the elements that here has left to it, and reads the rest.
func (g *gathering) there(ctx context.Context) error {
	if len(g.parts) > 0 {
		g.scan(ctx, nil)
	}
	for k := range g.parts {
		p, of := &g.parts[k], g.of[k]
		switch {
		case p.Err != nil:
			g.todo = append(g.todo, of)
		case len(of) > 1:
			for i, to := range of {
				copy(g.place(to), p.Out[i*g.stride:])
			}
		}
	}
	return g.read(ctx)
}

// read reads the objects of todo and copies their elements. Several readers do that, each of which fetches some
// objects at a time with one read of the store.
func (g *gathering) read(ctx context.Context) error {
	per := min(max(ahead.DemandBytes/max(g.st.Class.Size, 1), 1), ahead.JobObjects)
	batches := slices.Collect(slices.Chunk(g.todo, per))
	if len(batches) == 1 {
		return g.readBatch(ctx, batches[0])
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(readers, len(batches)) {
		wg.Go(func() {
			for {
				k := int(next.Add(1)) - 1
				if k >= len(batches) || ctx.Err() != nil {
					return
				}
				if err := g.readBatch(ctx, batches[k]); err != nil {
					cancel(err) // the first error is the cause
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (g *gathering) readBatch(ctx context.Context, todo [][]pick) error {
	e, st := g.e, g.st
	var refs [ahead.JobObjects]uint64
	n := 0
	for _, of := range todo {
		if p := st.Word(of[0].element() / st.Group); p != nil && objects.Load(p).Far() {
			refs[n] = e.Space.Number(p)
			n++
		}
	}
	// The objects that are still missing after this, and errors, show when the objects are used below.
	if n > 1 {
		_, _ = e.Space.Fetch(ctx, refs[:n], objects.Stream, 0, false)
	}
	return e.WithScope(ctx, func(s *heap.Scope) {
		for _, of := range todo {
			c := of[0].element() / st.Group
			p := st.Word(c)
			if p == nil {
				g.copy(of, nil)
				continue
			}
			o := e.Enter(s, st, p, -1, 0, objects.Stream)
			if o == nil {
				return
			}
			g.copy(of, o[object.Header:])
			s.Leave()
		}
	})
}
