package far

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// coldest is the coldness of what may go in the next pass, whatever its class.
const coldest = 0xff

// deref returns the object of p, which is local and stays where it is until s
// is left.
func (h *Heap) deref(s *Scope, p *uint64, what int) (object, error) {
	s.mustBeOpen()
	for {
		if o := h.derefLocal(s, p, what); o != nil {
			return o, nil
		}
		switch w := loadWord(p); {
		case w.local():
			// It has become so just now.
		case w.far():
			if err := h.miss(s, p, w, what); err != nil {
				return nil, err
			}
		case w.zero():
			if err := h.materialize(s, p, w, what); err != nil {
				return nil, s.noRoom(err, h.class(uint16(w)).size)
			}
		case h.shut.Load():
			return nil, ErrClosed
		default:
			panic("BUG: a far pointer is used after it was freed")
		}
	}
}

// derefLocal is deref of an object that is local; nil if it is not.
func (h *Heap) derefLocal(s *Scope, p *uint64, what int) object {
	for {
		w := loadWord(p)
		if !w.local() {
			return nil
		}
		var o object
		if w.marked() {
			o = h.meet(s, p, w, what)
		} else {
			o = h.use(p, w, what)
		}
		if o != nil {
			return o
		}
	}
}

// use returns the local object of p, whose word is w, or nil if the word has
// changed.
func (h *Heap) use(p *uint64, w pword, what int) object {
	o := h.logs.object(w.addr())
	cold := 0
	if what&derefStream != 0 {
		cold = coldest
	}
	if w.coldness() != cold {
		if !casWord(p, w, w.cooled(cold)) {
			return nil
		}
		if cold == 0 {
			h.class(tailClass(atomic.LoadUint64(o.tail()))).warmed.Add(1)
		}
	}
	if what&derefMut != 0 {
		h.soil(o)
	}
	return o
}

// soil makes a local object one without a far copy.
func (h *Heap) soil(o object) {
	for {
		tail := atomic.LoadUint64(o.tail())
		far := tailFar(tail)
		if far == 0 {
			return
		}
		if atomic.CompareAndSwapUint64(o.tail(), tail, newTail(0, tailClass(tail))) {
			h.buryFar(far, roundSize(farObjectSize(headLen(o.head()))))
			return
		}
	}
}

// meet returns the object of p, whose word is w, marked; or nil if the word is
// to be looked at again.
func (h *Heap) meet(s *Scope, p *uint64, w pword, what int) object {
	seg := h.logs.segmentOf(w.addr())
	switch seg.phase.Load() {
	case phaseWaiting:
		hot := w
		if what&derefStream == 0 {
			hot = w.cooled(0)
		}
		if hot != w && !casWord(p, w, hot) {
			return nil
		}
		if !s.pin(w.addr()) {
			casWord(p, hot, hot.unmarked())
			return nil
		}
		if seg.phase.Load() != phaseWaiting || loadWord(p) != hot {
			return nil
		}
		o := h.logs.object(w.addr())
		h.class(tailClass(atomic.LoadUint64(o.tail()))).rescued.Add(1)
		if what&derefMut != 0 {
			h.soil(o)
		}
		return o
	case phaseSettling:
		casWord(p, w, w.unmarked().cooled(0))
		return nil
	case phaseMoving:
		return h.copyOut(s, p, w, what, seg)
	}
	return nil // the pass is over
}

// copyOut moves a marked object to where it is left alone. The evacuator or
// others may have been faster, and the bytes may then be anything.
func (h *Heap) copyOut(s *Scope, p *uint64, w pword, what int, seg *logSegment) object {
	o := h.logs.object(w.addr())
	head, tail := o.head(), atomic.LoadUint64(o.tail())
	n := headLen(head)
	if h.words.number(p) != headNumber(head) || n > h.maxLocal || objectSize(n) > len(o) ||
		int(tailClass(tail)) >= len(*h.classes.Load()) {
		return nil // it is not there any more
	}
	c := h.class(tailClass(tail))
	to, addr, err := h.newSlot(s, objects, objectHead(headNumber(head), n), tail, n)
	if err != nil {
		casWord(p, w, w.unmarked().cooled(0)) // it stays
		return nil
	}
	copy(to[objectHeader:], o[objectHeader:objectHeader+n])
	if !casWord(p, w, localWord(addr, 0)) {
		h.dropSlot(addr, n)
		return nil
	}
	c.rescued.Add(1)
	seg.live.Add(-int64(objectSize(n)))
	if what&derefMut != 0 {
		h.soil(to)
	}
	return to
}

// newSlot makes room for an object of n bytes and writes its header. With s
// nil it may be followed by a wait for room, in which s may not be: see
// errNoRoom.
func (h *Heap) newSlot(s *Scope, k kind, head, tail uint64, n int) (object, uintptr, error) {
	c := s.claim(objectSize(n))
	if k == streams && c == forScope {
		// What is set aside for scopes is enough for the other logs only.
		if o, addr, err := h.slotIn(k, forMutator, head, tail, n); err == nil {
			return o, addr, nil
		}
		k = objects
	}
	return h.slotIn(k, c, head, tail, n)
}

func (h *Heap) slotIn(k kind, c claim, head, tail uint64, n int) (object, uintptr, error) {
	ol := h.buffer(k)
	ol.mu.Lock()
	defer ol.mu.Unlock()
	return h.slot(ol, c, head, tail, n)
}

// buffer is the allocation buffer of this processor (the paper's PCAB).
func (h *Heap) buffer(k kind) *openLog {
	ols := h.logs.objects
	if k == streams {
		ols = h.logs.streams
	}
	return &ols[processor()&(len(ols)-1)]
}

// slot is slotIn in ol, whose mutex must be held.
func (h *Heap) slot(ol *openLog, c claim, head, tail uint64, n int) (object, uintptr, error) {
	b, at, ok := h.logs.place(ol, objectSize(n), c)
	if !ok {
		return nil, 0, errNoRoom
	}
	o := object(b)
	atomic.StoreUint64(o.tail(), tail)
	o.setHead(head)
	return o, h.logs.base + uintptr(at)*unit + objectHeader, nil
}

// dropSlot accounts for a slot of n bytes of data that nothing refers to.
func (h *Heap) dropSlot(addr uintptr, n int) {
	h.logs.segmentOf(addr).live.Add(-int64(objectSize(n)))
}

// newObject makes an object of n bytes that is data, or zero without.
func (h *Heap) newObject(c *class, s *Scope, n, what int, data []byte) (*uint64, error) {
	if n > h.maxObject {
		return nil, fmt.Errorf("cannot make an object of %d bytes (at most %d): %w", n, h.maxObject, ErrTooLarge)
	}
	k, coldness := objects, c.cfg.HotBits
	if what&derefStream != 0 {
		k, coldness = streams, coldest
	}
	if h.shut.Load() {
		return nil, ErrClosed
	}
	c.mustExist()
	ol := h.buffer(k)
	ol.mu.Lock()
	number, err := h.words.next(h.cacheOf(ol), &h.logs, s.claim(wordCost))
	if err != nil {
		ol.mu.Unlock()
		return nil, err
	}
	o, addr, err := h.slot(ol, s.claim(objectSize(n)), objectHead(number, n), newTail(0, c.id), n)
	if err != nil {
		h.cacheOf(ol).left |= 1 << (number % wordGroup)
		ol.mu.Unlock()
		return nil, err
	}
	ol.mu.Unlock()
	clear(o[objectHeader+copy(o[objectHeader:], data):])
	p := h.words.at(number)
	storeWord(p, localWord(addr, coldness))
	return p, nil
}

// newRun makes n words in a row, of objects that are zero.
func (h *Heap) newRun(ctx context.Context, c *class, n int) ([]uint64, error) {
	if n < 0 || c.size < 0 {
		return nil, fmt.Errorf("cannot make a run of %d objects of class %q", n, c.cfg.Name)
	}
	c.mustExist()
	for n > 0 {
		first, err := h.words.run(n, &h.logs)
		if err == nil {
			ws := h.words.table[first : first+uint64(n) : first+uint64(n)]
			for i := range ws {
				storeWord(&ws[i], zeroWord(c.id))
			}
			return ws, nil
		}
		if err != errNoRoom {
			return nil, err
		}
		if err := h.roomSoon(ctx); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// materialize makes the object of p, whose word is w, an object of zeros in
// local memory.
func (h *Heap) materialize(s *Scope, p *uint64, w pword, what int) error {
	c := h.class(uint16(w))
	k, coldness := objects, c.cfg.HotBits
	if what&derefStream != 0 {
		k, coldness = streams, coldest
	}
	o, addr, err := h.newSlot(s, k, objectHead(h.words.number(p), c.size), newTail(0, c.id), c.size)
	if err != nil {
		return err
	}
	clear(o[objectHeader:])
	if !casWord(p, w, localWord(addr, coldness)) {
		h.dropSlot(addr, c.size)
	}
	return nil
}

// free frees the object of p, and p.
func (h *Heap) free(p *uint64) {
	for {
		w := loadWord(p)
		if w.free() {
			if h.shut.Load() {
				return
			}
			panic("BUG: a far pointer is freed twice")
		}
		if !casWord(p, w, freeWord) {
			continue
		}
		h.buryObject(w)
		h.words.put(h.words.number(p))
		return
	}
}

// buryObject accounts for the death of the object whose word was w.
func (h *Heap) buryObject(w pword) {
	h.logs.stir()
	switch {
	case w.far():
		h.buryFar(w.farAddr(), w.farSize())
	case w.local():
		o := h.logs.object(w.addr())
		n := headLen(o.head())
		h.soil(o)
		seg := h.logs.segmentOf(w.addr())
		for now := h.scopes.now(); ; {
			if old := seg.freed.Load(); old >= now || seg.freed.CompareAndSwap(old, now) {
				break
			}
		}
		seg.live.Add(-int64(objectSize(n)))
	}
}

// fetching is the fetches of objects under way, in parts by word.
type fetching struct {
	mu    sync.Mutex
	by    map[*uint64]*objectFlight // under mu
	count atomic.Int32              // of by
	_     [44]byte
}

// objectFlight is one fetch of an object, shared by all who want it.
type objectFlight struct {
	done chan struct{} // closed when err is set
	err  error
}

const fetchParts = 64

func (h *Heap) fetchingOf(p *uint64) *fetching {
	return &h.fetching[h.words.number(p)*0x9e3779b97f4a7c15>>58%fetchParts]
}

// errAgain: the word has changed, so that it has to be looked at again.
var errAgain = errors.New("changed meanwhile")

// miss brings the far object of p, whose word is w, into local memory. It
// returns nil if the word is to be looked at again.
func (h *Heap) miss(s *Scope, p *uint64, w pword, what int) error {
	if err := h.begin(); err != nil {
		return err
	}
	defer h.end()
	ctx := s.ctx
	if ctx.Err() != nil {
		return fmt.Errorf("cannot fetch an object: %w", context.Cause(ctx))
	}
	if r := h.runs.of(h.words.number(p)); r != nil {
		return h.join(ctx, w, r.done)
	}
	mine := &objectFlight{done: make(chan struct{})}
	if f := h.fetchAlone(p, mine); f != mine {
		if err := h.join(ctx, w, f.done); err != nil {
			return err
		}
		var lost *LostError
		var corrupt *CorruptError
		if errors.As(f.err, &lost) || errors.As(f.err, &corrupt) {
			return f.err
		}
		return nil // other reasons may have been the other's own
	}
	err := errAgain // unless it returns
	defer func() { h.endFlight(p, mine, err) }()
	if err = h.fetchObject(ctx, s, p, w, what); err == errAgain {
		return nil
	}
	return err
}

// join waits for somebody else's fetch of the object of word w.
func (h *Heap) join(ctx context.Context, w pword, done <-chan struct{}) error {
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("cannot fetch an object: %w", context.Cause(ctx))
	}
	h.class(w.farClass()).coalesced.Add(1)
	return nil
}

// mustServe panics if the pointer of word p cannot be dereferenced in s.
func (h *Heap) mustServe(s *Scope, p *uint64) {
	s.mustBeOpen()
	if p != nil && !isIn(h.words.table, p) {
		panic("BUG: a far pointer is dereferenced in a scope of another heap")
	}
}
