package remote

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/record"
	"polder/far/remote/scan"
	"polder/far/store"
	"polder/internal/offload"
	"polder/pool"
)

// scanners are the scan components that a store has constructed, one at a node.
type scanners struct {
	mu     sync.Mutex
	byNode map[string]*scanner // guarded by mu
}

// scanner is what a store knows of a node's component.
type scanner struct {
	mu     sync.Mutex
	object *pool.Object // guarded by mu; nil until constructed, and when it was lost
	next   atomic.Int64 // when the node, which has refused, may be asked again, in Unix nanoseconds

	newsMu sync.Mutex
	places map[uint32]scan.Place // segments that the node did not know, to be told to it; guarded by newsMu
}

// refused notes that the node has failed, and is to be left alone for refusedFor. It does not if the caller has given
// up, or the connection was lost: that says nothing of what the node would do.
func (n *scanner) refused(ctx context.Context, err error) {
	if ctx.Err() == nil && !errors.Is(err, pool.ErrOutcomeUnknown) && !errors.Is(err, pool.ErrLost) {
		n.next.Store(time.Now().Add(refusedFor).UnixNano())
	}
}

// refuses reports whether the node is not to be asked.
func (n *scanner) refuses() bool { return time.Now().UnixNano() < n.next.Load() }

// refusedFor is how long a node is left alone that has no memory for components, or no component of that name.
const refusedFor = 10 * time.Second

// inFlight is how many requests of one call are under way at a time: enough for the node to have another request when
// it has answered one.
const inFlight = 4

var (
	errApart   = errors.New("the segment is not in one piece at a node")
	errRefused = errors.New("the node has refused to look through objects a short while ago")
	errTooLong = errors.New("the objects are too large to be looked through by the node")

	errSenseless = errors.New("an answer that makes no sense")
)

// scanWork is what a goroutine needs to look through memory that is mapped here.
type scanWork struct {
	req     scan.Request
	scratch [scan.MaxRecord]byte
}

var scanWorks = sync.Pool{New: func() any { return new(scanWork) }}

// Scan implements store.Computer. The component "scan" at each node looks through what lies there; where a node's
// memory is mapped, this process does.
func (s *poolStore) Scan(ctx context.Context, q *offload.Scan, o store.Objects, parts []store.ScanPart, a *offload.Aggregate) {
	c := &scanCall{store: s, q: q, objects: o, parts: parts, a: a}
	at := map[string]*scanRequest{} // the request that is being filled, by node
	limit := make(chan struct{}, inFlight)
	var wg sync.WaitGroup
	send := func(r *scanRequest) {
		limit <- struct{}{}
		wg.Go(func() {
			c.ask(ctx, r)
			<-limit
		})
	}
	for i := range parts {
		p := &parts[i]
		node, first, mapped, ok := p.Seg.(segment).Home()
		size, answer := scan.PartSize(o, q.Stride, p)
		switch {
		case !ok:
			p.Err = errApart
			continue
		case record.Size(o.Size) > scan.MaxRecord || size > scan.MaxBytes || answer > scan.MaxAnswer || len(p.Elements) > scan.MaxRuns:
			p.Err = errTooLong
			continue
		case mapped:
			c.look(ctx, p)
			continue
		}
		r := at[node]
		if r != nil && (r.bytes+size > scan.MaxBytes || r.answer+answer > scan.MaxAnswer || len(r.runs)+max(len(p.Elements), 1) > scan.MaxRuns) {
			send(r)
			r = nil
		}
		if r == nil {
			r = &scanRequest{node: node}
			at[node] = r
		}
		r.parts, r.bytes, r.answer = append(r.parts, i), r.bytes+size, r.answer+answer
		r.runs = scan.AppendRuns(r.runs, p, first)
	}
	if len(at) == 1 && len(limit) == 0 {
		for _, r := range at { // fast path: the caller sends it
			c.ask(ctx, r)
		}
	} else {
		for _, r := range at {
			send(r)
		}
	}
	wg.Wait()
}

// scanCall is a call of Scan.
type scanCall struct {
	store   *poolStore
	q       *offload.Scan // whoever looks through something makes a copy
	objects store.Objects
	parts   []store.ScanPart

	mu sync.Mutex
	a  *offload.Aggregate // guarded by mu
}

// scanRequest is what one node is asked in one request.
type scanRequest struct {
	node          string
	parts         []int // which of the parts of the call these are
	runs          []scan.Run
	bytes, answer int
}

// merge adds b to what the call has found.
func (c *scanCall) merge(b *offload.Aggregate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.q.Merge(c.a, b)
}

// look looks through p, which is mapped here.
func (c *scanCall) look(ctx context.Context, p *store.ScanPart) {
	w := scanWorks.Get().(*scanWork)
	defer scanWorks.Put(w)
	w.req.Scan, w.req.Objects = *c.q, c.objects
	w.req.Runs = scan.AppendRuns(w.req.Runs[:0], p, 0)
	read := func(_ *scan.Run, off uint64, b []byte) error {
		_, err := p.Seg.(segment).ReadContext(ctx, b, int64(off))
		return err
	}
	switch scan.Op(p) {
	case scan.Gather:
		_, p.Err = w.req.Gather(read, w.scratch[:], p.Out[:0])
	case scan.Filter:
		_, p.Err = w.req.Filter(read, w.scratch[:], p.Out[:0])
	default:
		a, err := w.req.Aggregate(read, w.scratch[:])
		if p.Err = err; err == nil {
			c.merge(&a)
		}
	}
}

// ask has a node look through what r says.
func (c *scanCall) ask(ctx context.Context, r *scanRequest) {
	err := c.compute(ctx, r)
	for _, i := range r.parts {
		c.parts[i].Err = err
	}
}

func (c *scanCall) compute(ctx context.Context, r *scanRequest) error {
	req := scan.Request{Scan: *c.q, Objects: c.objects, Runs: r.runs}
	k := pool.Computation{Op: scan.Op(&c.parts[r.parts[0]]), In: req.Append(nil), Repeat: true}
	out, err := c.store.compute(ctx, r.node, c.parts[r.parts[0]].Seg.(segment).Chunk, k)
	if err != nil {
		return err
	}
	var a offload.Aggregate
	switch {
	case k.Op != scan.Aggregate && len(out) == r.answer:
		for _, i := range r.parts {
			out = out[copy(c.parts[i].Out, out):]
		}
	case k.Op == scan.Aggregate && a.Decode(out):
		c.merge(&a)
	default:
		return &store.CorruptError{Segment: r.node, Err: errSenseless}
	}
	return nil
}

// compute has the scanner of a node carry out k. The chunk near lies at that node.
func (s *poolStore) compute(ctx context.Context, node string, near *pool.Chunk, k pool.Computation) ([]byte, error) {
	object, err := s.scanner(ctx, node, near)
	if err != nil {
		return nil, err
	}
	out, err := object.Compute(ctx, k, nil)
	if errors.Is(err, pool.ErrLost) || errors.Is(err, pool.ErrFreed) {
		s.lostScanner(node, object)
	}
	return out, err
}

// node is what s knows of a node.
func (s *poolStore) node(name string) *scanner {
	s.scanners.mu.Lock()
	defer s.scanners.mu.Unlock()
	if s.scanners.byNode == nil {
		s.scanners.byNode = make(map[string]*scanner)
	}
	n := s.scanners.byNode[name]
	if n == nil {
		n = new(scanner)
		s.scanners.byNode[name] = n
	}
	return n
}

// scanner returns the object at a node that looks through what lies there. The chunk near lies at that node. The
// first caller constructs the object.
func (s *poolStore) scanner(ctx context.Context, node string, near *pool.Chunk) (*pool.Object, error) {
	n := s.node(node)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.object != nil {
		return n.object, nil
	}
	if n.refuses() {
		return nil, errRefused
	}
	o, err := s.pool.ConstructAt(ctx, near, scan.Name, nil)
	if err != nil {
		n.refused(ctx, err)
		return nil, err
	}
	n.object = o
	return o, nil
}

// lostScanner makes the next caller construct another object, since o is lost.
func (s *poolStore) lostScanner(node string, o *pool.Object) {
	n := s.node(node)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.object == o {
		n.object = nil
	}
}
