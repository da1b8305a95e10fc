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
	// gatherParts and gatherBytes are how many parts the store is asked for at a time, and about the bytes of their records: as many
	// as fit a request, so that it has begun with the first ones when the next are looked for.
	gatherParts = 1024
	gatherBytes = 1 << 20
	// askBytes is what it takes to ask a node for an element (far/remote/scan).
	askBytes = 24
	// partElements and partBytes are the most elements of one part, and about the most bytes of them.
	partElements = 1024
	partBytes    = 32 << 10
	// readers is how many batches are read at a time.
	readers = 4
)

// A pick is an element that is wanted, and where it goes to: the element's index, and that among those that are gathered
// with it in the lowest 16 bits.
type pick uint64

func (p pick) element() int { return int(p >> 16) }
func (p pick) place() int   { return int(p & (GatherMost - 1)) }

// gathering is some elements of a structure that are being gathered.
type gathering struct {
	looking
	stride int
	dst    []byte   // of all that are gathered with them
	of     [][]pick // that are the elements of each part
	todo   [][]pick // of objects that are to be read, each those of one
	ids    []uint32 // elements of parts, as far as it is used
	out    []byte   // where parts with several have them copied to, likewise
}

var gatherings = sync.Pool{New: func() any { return new(gathering) }}

// newGathering makes a part of a call that gathers elements of stride bytes to dst, out of what another one needs no more.
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
	digit = 11  // bits by which picks are put in order at a time
	few   = 512 // picks for which comparing them is as fast
)

// inOrder returns picks, which are in the order of their places, in that of their elements, and a buffer for the next ones. For
// tens of thousands that takes a ninth of the time of comparing them, during which no node would do anything.
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

// here copies what is local of picks, which are in order, and finds out what the store is to copy, and what is to be read. It
// returns what is left when that is enough.
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
			// As in Deref's fast path, the object stays where it is until s is left. What is
			// used here is no hotter for that.
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

// copy copies elements of an object whose data is given, or zeros if it is nil.
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

// take has the store copy elements of the far object whose word p was word, or reports false: it is to be read, as it is,
// too, if asking for them moves more bytes.
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

// there has the store copy what here has left to it, and reads the rest.
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

// read copies what is to be read: some objects at a time are brought in one read of the store, by several readers.
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
					cancel(err) // of the first one that fails
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
	if n > 1 { // what is missing then, and what goes wrong, who uses the objects comes upon
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
