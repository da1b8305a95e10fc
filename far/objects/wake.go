package objects

import (
	"context"
	"fmt"
	"slices"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/pagelog"
	"polder/internal/limit"
)

// begin makes the caller the one who wakes the page of word p: it returns the number of the word of the page's
// object, and the caller has to call end. If somebody else is waking the page, begin returns a channel that is closed
// when that has ended. If p is awake, it returns nothing.
func (z *sleeper) begin(p *uint64) (n uint64, end func(), other <-chan struct{}) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if !Load(p).Asleep() {
		return 0, nil, nil
	}
	page := z.sp.words.number(p) / WordsPerPage
	if c := z.waking[page]; c != nil {
		return 0, nil, c
	}
	c := make(chan struct{})
	z.waking[page] = c
	return z.pages[page].object, func() {
		z.mu.Lock()
		delete(z.waking, page)
		z.mu.Unlock()
		close(c)
	}, nil
}

// waker says on whose behalf a page is woken.
type waker struct {
	s     *heap.Scope // nil for the evacuator, or while the heap is being opened
	claim func() heap.Claim
	half  bool // it leaves half of the reserve to others
	// needs reports whether the page's words, nil if they are lost, are a reason to wake it; if needs is nil, they
	// are.
	needs func(from []uint64) bool
}

// rouse wakes the page of word p, unless w does not need it awake, or waits until somebody else has woken it.
func (z *sleeper) rouse(ctx context.Context, p *uint64, w waker) error {
	sp := z.sp
	for {
		n, end, other := z.begin(p)
		switch {
		case n != 0:
			defer end()
			if ctx.Err() != nil {
				return sp.tooLate(ctx)
			}
			var buf [pageBuf]uint64
			from, err := z.peek(ctx, w.s, n, buf[:])
			if err != nil || w.needs != nil && !w.needs(from) {
				return err
			}
			if err = z.place(sp.words.number(p)/WordsPerPage, from, w); err != nil {
				return err
			}
			z.drop(n)
			return nil
		case other == nil:
			return nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return sp.tooLate(ctx)
		}
	}
}

// place puts the words of a page back, if there is memory for that: room in the budget, or a page of the reserve, or
// what w may claim. Otherwise it fails as heap.Logs.WakeIndex does.
func (z *sleeper) place(page uint64, from []uint64, w waker) error {
	l := &z.sp.core.Logs
	err := l.WakeIndex(heap.Words, pageBytes, heap.ForMutator)
	ok := z.put(page, from, err == nil, w.half)
	if !ok && w.claim != nil {
		if err = l.WakeIndex(heap.Words, pageBytes, w.claim()); err == nil {
			ok = z.put(page, from, true, false)
		}
	}
	if z.short() {
		z.poke()
	}
	if ok {
		return nil
	}
	return err
}

// wake wakes the page of word p, on behalf of s.
func (sp *Space) wake(s *heap.Scope, p *uint64) error {
	if err := sp.core.Begin(); err != nil {
		return err
	}
	defer sp.core.End()
	claim := func() heap.Claim { return sp.core.Claim(s, pageBytes) }
	err := sp.sleep.rouse(sp.core.HeldIn(s).Ctx, p, waker{s: s, claim: claim, half: true})
	return sp.core.NoRoom(s, err, pageBytes)
}

// Awaken wakes the page of p, which is asleep. It must not be called in a scope.
func (sp *Space) Awaken(ctx context.Context, p *uint64) error {
	return sp.awaken(ctx, sp.words.number(p)/WordsPerPage)
}

// awaken wakes a page, unless it is awake. It must not be called in a scope.
func (sp *Space) awaken(ctx context.Context, page uint64) error {
	p := &sp.words.page(page)[0]
	if !Load(p).Asleep() {
		return nil
	}
	return sp.core.One(ctx, func(s *heap.Scope) {
		if err := sp.wake(s, p); err != nil {
			sp.core.Fail(s, err)
		}
	})
}

// Learn is for heap.Host. It wakes every page that is asleep and has the word of a living object among rs. Until
// Learn is called without any rs, no page goes far.
func (sp *Space) Learn(ctx context.Context, rs []heap.Suspect) error {
	z := &sp.sleep
	z.mu.Lock()
	z.cleaning = len(rs) > 0
	away := z.away
	z.mu.Unlock()
	if away == 0 {
		return nil
	}
	var due []heap.Suspect
	for _, r := range rs {
		if r.Owner >= FirstOwner && !r.Dead && sp.words.has(r.Number) && Load(sp.At(r.Number)).Asleep() {
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b heap.Suspect) int { return int(int64(a.Number) - int64(b.Number)) })
	for len(due) > 0 {
		page, k := due[0].Number/WordsPerPage, 1
		for k < len(due) && due[k].Number/WordsPerPage == page {
			k++
		}
		if err := z.learn(ctx, due[:k]); err != nil {
			return err
		}
		due = due[k:]
	}
	return ctx.Err()
}

// learn wakes the page of the words of rs, all of the same page, if one of rs is alive. It runs in the evacuator's
// goroutine, and so waits for nobody who may be waiting for local memory.
func (z *sleeper) learn(ctx context.Context, rs []heap.Suspect) error {
	alive := func(from []uint64) bool {
		return from == nil || slices.ContainsFunc(rs, func(r heap.Suspect) bool {
			w := Word(from[r.Number%WordsPerPage])
			return w.Far() && w.FarAddr() == r.Addr
		})
	}
	err := z.rouse(ctx, z.sp.At(rs[0].Number), waker{needs: alive})
	if err == heap.ErrNoRoom {
		return heap.ErrNotNow
	}
	return err
}

// pageBuf is how many words a buffer for the record of a page has.
const pageBuf = 2 * WordsPerPage

// peek reads the words of a page, which are the object of word n, into buf, and returns them; nil if they are lost.
// Nobody else may be about to free n. It takes no local memory. Only the evacuator, or who has the heap to
// themselves, calls it with a nil scope.
func (z *sleeper) peek(ctx context.Context, s *heap.Scope, n uint64, buf []uint64) ([]uint64, error) {
	core, p := z.sp.core, z.sp.At(n)
	pins := core.Far.NewPins()
	defer pins.Release()
	for {
		w := Load(p)
		var o object.Object
		switch {
		case !w.Local():
		case s == nil:
			o = core.Logs.Object(w.Addr())
		default:
			o = z.sp.DerefLocal(s, p, Stream)
		}
		if o != nil {
			return buf[:copy(buf, wordsOf(o[object.Header:object.Header+pageBytes]))], nil
		}
		if !w.Far() {
			continue // it has become far meanwhile
		}
		seg := core.Far.Seg(w.FarAddr())
		if pins.Hold(w.FarAddr(), func() bool { return Load(p) == w }) == nil {
			if (seg == nil || seg.Gone()) && Load(p) == w {
				return nil, nil
			}
			continue
		}
		ctx := limit.Within(ctx, heap.StoreTimeout)
		defer ctx.End()
		reads := []pagelog.Read{pagelog.NewRead(core, w.FarAddr(), bytesOf(buf)[:w.FarSize()])}
		pagelog.ReadAll(ctx, core, reads)
		switch err := reads[0].Err; {
		case seg.Gone():
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("cannot read the words of pointers: %w", err)
		case len(reads[0].Buf) != pageBytes:
			return nil, fmt.Errorf("cannot read the words of pointers: they are %d bytes, want %d", len(reads[0].Buf), pageBytes)
		}
		return wordsOf(reads[0].Buf), nil
	}
}

// put puts the words of a page back where they were; if from is nil they are lost, and all that are in use become
// lostWord. If the page is not paid for, put takes one of the reserve. If there is none, or, with half set, only the
// half that is left to others, it does nothing, and reports false.
func (z *sleeper) put(page uint64, from []uint64, paid, half bool) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	if !paid {
		if z.reserve == 0 || half && z.reserve <= z.overlaid()/2 {
			return false
		}
		z.reserve--
	}
	t, later := &z.sp.words, z.later[page]
	delete(z.later, page)
	ws := t.page(page)
	var dead []Word
	free := func(i int, w *Word) {
		dead = append(dead, *w)
		*w = freeWord
		t.giveBack(page*WordsPerPage + uint64(i))
	}
	t.mu.Lock()
	for i := range ws {
		w := freeWord
		switch {
		case from != nil:
			w = Word(from[i])
		case t.isTaken(page, i):
			w = lostWord
		}
		if later != nil {
			if id, ok := later.zero[uint16(i)]; ok && !w.Zero() {
				dead = append(dead, w)
				w = zeroWord(id)
			}
			if later.freed[i/wordGroup]>>(i%wordGroup)&1 != 0 {
				if w.Free() {
					panic("BUG: a far pointer is freed twice")
				}
				free(i, &w)
			}
		}
		if z.restored != nil && z.sp.isGone(w) {
			free(i, &w)
		}
		storeWord(&ws[i], w)
	}
	t.show(page)
	t.mu.Unlock()
	z.pages[page].object, z.pages[page].age = 0, wokenAge
	z.away--
	for _, w := range dead {
		z.sp.buryObject(w)
	}
	if from == nil {
		z.leaked.Store(true)
	}
	return true
}
