package objects

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/heap"
	"polder/far/record"
	"polder/internal/arena"
)

// sleeper sends words of pointers that nobody uses to far memory, as the paper's data structures may do with their
// metadata (section 4.2). It sends a page of words at a time, while words take more than their share of the budget.
//
// A page may go when none of its objects is local. Its words become an object, of a class of the sleeper's own, which
// is evacuated, cleaned, checked and fetched as any object is. What stays is the word of that object, one for 512.
// The memory of the page is given back, and its words read as asleep. Whoever comes upon one of them wakes the page:
// fetches the object, and puts the words back where they were. So no pointer moves, and whoever finds a word that is
// not asleep does as if there were no sleeper.
//
// The kernel makes the words read as asleep: the file overlay, in which every word is asleep, is mapped over the
// page, privately. So whoever looks sees the word, or asleep, and never something in between.
//
// A word that is asleep changes under mu only, when its page is woken. Freeing a word waits for nothing: whoever
// frees one that is asleep leaves a note in later, and the word is freed once its page is awake. The evacuator meets
// no word that is asleep, since it deals with local objects. The cleaner may meet some, so it says first which
// records it is about to clean: see Learn. From then on, until the cleaner has ended, no page goes far; and Learn
// wakes the pages with words of objects that are alive and have to be moved.
type sleeper struct {
	sp    *Space
	kick  chan struct{}
	early bool // pages go far as soon as they may; for tests

	hand uint64 // the page that sweep looks at next; only the sleeper's goroutine uses it

	class    atomic.Pointer[Class] // of pages' objects; nil until the first page is about to go
	restored *Class                // the same class, if it is from a checkpoint; immutable once the heap is open
	// fetching counts, for a page and all others that share its place here, the misses that are being fetched. If the
	// page went far meanwhile, whoever waits would have to begin again, and again.
	fetching [256]atomic.Int32
	leaked   atomic.Bool // pages have been lost, and what they referred to counts as live

	mu       sync.Mutex
	cache    wordCache // words of pages' objects
	kept     int       // words of pages' objects that are in use
	overlay  *arena.Memfd
	words    *arena.Mapping // a mapping of overlay, through which it is written
	pages    []pageState
	runs     int                      // stretches of pages that overlay is mapped to
	away     int                      // pages that are asleep
	reserve  int                      // pages that are paid for, to be woken when there is no other memory
	waking   map[uint64]chan struct{} // pages that somebody is waking; closed when that has ended
	later    map[uint64]*laterWords   // what becomes of words when their page is woken
	cleaning bool                     // the cleaner is at work: no page may go
}

// pageState is a page of words, as the sleeper knows it.
type pageState struct {
	object uint64 // the number of the word of the page's object; 0 if the page is awake
	age    uint8  // how many sweeps have to pass the page by before it may go
	mapped bool   // overlay is mapped to it
}

// laterWords is what becomes of the words of a page that is asleep when it is woken.
type laterWords struct {
	freed [pageGroups]uint64
	zero  map[uint16]uint16 // words, by their place in the page, that become those of unused objects of this class
}

const (
	pageBytes = WordsPerPage * WordSize
	// pageStateSize is what a page's state takes of the budget.
	pageStateSize = 16

	// sleepShare: pages go far while words take more than 1/sleepShare of the budget.
	sleepShare = 32
	// sweepPages is how many pages are looked at in one sweep.
	sweepPages = 4096
	// newAge and wokenAge are the ages of pages that are new, and that have been woken.
	newAge, wokenAge = 1, 3
	// overlayShare: overlay and the reserve take 1/overlayShare of the budget each, but at least leastOverlay pages,
	// and at most mostOverlay. Adjacent pages share one mapping of the process, at most as many as overlay has pages.
	overlayShare              = 256
	leastOverlay, mostOverlay = 4, 512
	// mostRuns is how many stretches of pages overlay may be mapped to. Each takes two of the 65,530 mappings that a
	// process may have.
	mostRuns = 8192
)

func (z *sleeper) init(sp *Space, early bool) {
	z.sp, z.early, z.kick = sp, early, make(chan struct{}, 1)
	z.waking, z.later = map[uint64]chan struct{}{}, map[uint64]*laterWords{}
}

// poke makes the sleeper's goroutine look whether there is something to do.
func (z *sleeper) poke() {
	select {
	case z.kick <- struct{}{}:
	default:
	}
}

// short reports whether some of the reserve is in use.
func (z *sleeper) short() bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.words != nil && z.reserve < z.overlaid()
}

// due reports whether words take more than their share.
func (z *sleeper) due() bool {
	return z.early || z.short() || z.sp.core.Logs.Of(heap.Words) > z.sp.core.Local()/sleepShare
}

// run is the sleeper's goroutine.
func (z *sleeper) run() {
	ctx := z.sp.core.Ctx
	var tick <-chan time.Time
	if z.early {
		t := time.NewTicker(time.Millisecond)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-z.kick:
		case <-tick:
		}
		z.catchUp(ctx)
		if z.due() {
			_ = z.sweep(ctx) // and again, when it is due
		}
	}
}

// catchUp wakes the pages that have words to be freed or to become zero.
func (z *sleeper) catchUp(ctx context.Context) {
	z.mu.Lock()
	var pages []uint64
	for page := range z.later {
		pages = append(pages, page)
	}
	z.mu.Unlock()
	if len(pages) == 0 {
		return
	}
	s := z.sp.core.Acquire(ctx)
	defer z.sp.core.Release(s)
	for _, page := range pages {
		z.sp.core.EnterAtOnce(s)
		err := z.rouse(ctx, &z.sp.words.page(page)[0], waker{s: s})
		s.Leave()
		if err != nil {
			return // it is tried again
		}
	}
}

// ready makes the class, overlay and the reserve, if that has not been done yet.
func (z *sleeper) ready() error {
	if z.class.Load() != nil {
		return nil
	}
	if z.sp.most < pageBytes {
		return fmt.Errorf("a page of words does not fit into a log: %w", heap.ErrTooLarge)
	}
	n := min(max(int(z.sp.core.Local()/overlayShare/pageBytes), leastOverlay), mostOverlay)
	size := int64(2 * n * pageBytes) // overlay, and the reserve
	l := &z.sp.core.Logs
	if err := l.GrowIndex(heap.Words, size, heap.ForMutator); err != nil {
		return err
	}
	fd, err := arena.NewMemfd("polder-words", n*pageBytes)
	if err != nil {
		l.ShrinkIndex(heap.Words, size)
		return err
	}
	m, err := fd.Map(0, n*pageBytes, true)
	c := z.restored
	if err == nil && c == nil {
		c, err = z.sp.newClass(Config{Name: "words"}, pageBytes, record.Page)
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}
	if err != nil {
		l.ShrinkIndex(heap.Words, size)
		return errors.Join(err, fd.Close())
	}
	fill(wordsOf(m.Bytes()), asleep)
	z.mu.Lock()
	z.overlay, z.words, z.reserve = fd, m, n
	z.mu.Unlock()
	z.class.Store(c)
	return nil
}

func fill(ws []uint64, w Word) {
	for i := range ws {
		storeWord(&ws[i], w)
	}
}

// overlaid is how many pages overlay has.
func (z *sleeper) overlaid() int { return len(z.words.Bytes()) / pageBytes }

// sweep looks at up to sweepPages pages, and sends those that may go, for as long as words take more than their
// share.
func (z *sleeper) sweep(ctx context.Context) error {
	if err := z.ready(); err != nil {
		return err
	}
	pages := uint64(z.sp.words.pages.Load())
	for n := min(pages, sweepPages); n > 0 && ctx.Err() == nil && z.due(); n-- {
		page := z.hand % pages
		z.hand = page + 1
		if err := z.send(ctx, page); err != nil {
			return err
		}
	}
	return nil
}

// send sends a page to far memory, if it may go.
func (z *sleeper) send(ctx context.Context, page uint64) error {
	z.mu.Lock()
	for uint64(len(z.pages)) <= page {
		z.pages = append(z.pages, pageState{age: newAge})
	}
	st := &z.pages[page]
	wait := st.object != 0
	if !wait && st.age > 0 {
		st.age--
		wait = true
	}
	z.mu.Unlock()
	ws := z.sp.words.page(page)
	var were [WordsPerPage]uint64
	if wait || !z.mayGo(ws, &were) {
		return nil
	}
	n, err := z.keep(ctx, were[:])
	if err == nil && !z.replace(page, n, &were) {
		z.drop(n)
	}
	return err
}

// drop frees the object of a page.
func (z *sleeper) drop(n uint64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.sp.Free(z.sp.At(n))
	z.kept--
}

// mayGo sets were to ws, the words of a page, and reports whether the page may go: some of its words are in use, and
// no object of theirs is local, or is itself a page of words.
func (z *sleeper) mayGo(ws []uint64, were *[WordsPerPage]uint64) bool {
	id, some := z.class.Load().ID, false
	for i := range ws {
		w := Load(&ws[i])
		were[i] = uint64(w)
		switch {
		case w.Far():
			if w.FarClass() == id {
				return false // or nobody would find the page's object
			}
			some = true
		case w.Zero() || w.lost():
			some = true
		case !w.Free():
			return false
		}
	}
	return some
}

// keep makes ws an object, and returns the number of its word.
func (z *sleeper) keep(ctx context.Context, ws []uint64) (uint64, error) {
	core := z.sp.core
	for {
		z.mu.Lock()
		n, err := z.sp.words.next(&z.cache, &core.Logs, heap.ForMutator)
		if err == nil {
			z.kept++
		}
		z.mu.Unlock()
		if err == nil {
			if err = z.sp.fill(ctx, n, z.class.Load(), Coldest, bytesOf(ws)); err == nil {
				return n, nil
			}
			z.mu.Lock()
			z.kept--
			z.cache.left |= 1 << (n % wordGroup) // only this goroutine takes another group
			z.mu.Unlock()
		}
		if err != heap.ErrNoRoom {
			return 0, err
		}
		if err := core.RoomSoon(ctx); err != nil {
			return 0, err
		}
	}
}

// replace puts a page to sleep whose words, were, have been copied to the object of word n. It reports false, and
// changes nothing, if the words have changed meanwhile, or the page may not go now.
func (z *sleeper) replace(page, n uint64, were *[WordsPerPage]uint64) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.cleaning || z.words == nil || !z.mayMap(page) || z.fetchingOf(page).Load() != 0 {
		return false
	}
	t := &z.sp.words
	ws := t.page(page)
	t.mu.Lock()
	ok := t.agrees(page, were)
	for i := 0; ok && i < len(ws); i++ {
		if ok = casWord(&ws[i], Word(were[i]), asleep); !ok {
			for j := range i {
				storeWord(&ws[j], Word(were[j]))
			}
		}
	}
	if ok && z.unmap(page) != nil {
		for i := range ws {
			storeWord(&ws[i], Word(were[i]))
		}
		z.runs, ok = mostRuns, false // the process has no mappings left
	}
	if ok {
		t.hide(page)
	}
	t.mu.Unlock()
	if !ok {
		return false
	}
	z.pages[page].object = n
	z.away++
	if z.reserve < z.overlaid() {
		z.reserve++
	} else {
		z.sp.core.Logs.SleepIndex(heap.Words, pageBytes)
	}
	return true
}

// fetchingOf is the counter of a page in fetching.
func (z *sleeper) fetchingOf(page uint64) *atomic.Int32 {
	return &z.fetching[page%uint64(len(z.fetching))]
}

// mayMap reports whether overlay may be mapped to a page. z.mu must be held.
func (z *sleeper) mayMap(page uint64) bool {
	return z.pages[page].mapped || z.runs < mostRuns || z.neighbours(page) > 0
}

// neighbours is how many of the two pages beside a page have overlay mapped to them, so that one mapping with them is
// enough. z.mu must be held.
func (z *sleeper) neighbours(page uint64) (n int) {
	per := uint64(z.overlaid())
	if page%per > 0 && z.pages[page-1].mapped {
		n++
	}
	if page%per < per-1 && page+1 < uint64(len(z.pages)) && z.pages[page+1].mapped {
		n++
	}
	return n
}

// unmap gives back the memory of a page. All of its words are asleep, and go on reading as that. z.mu must be held.
func (z *sleeper) unmap(page uint64) error {
	off := int(page) * pageBytes
	if z.pages[page].mapped {
		return z.sp.words.mapping.Punch(off, pageBytes)
	}
	if err := z.sp.words.mapping.Overlay(off, pageBytes, z.overlay, int(page)%z.overlaid()*pageBytes); err != nil {
		return err
	}
	z.runs += 1 - z.neighbours(page)
	z.pages[page].mapped = true
	return nil
}

// freeLater notes that word p is to be freed when its page is woken. It reports false, and does nothing, if p is not
// asleep. If class is not negative, p is to become the word of an unused object of that class instead.
func (z *sleeper) freeLater(p *uint64, class int) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	if !Load(p).Asleep() {
		return false
	}
	n := z.sp.words.number(p)
	page, i := n/WordsPerPage, uint16(n%WordsPerPage)
	later := z.later[page]
	if later == nil {
		later = new(laterWords)
		z.later[page] = later
		z.poke()
	}
	switch bit := uint64(1) << (i % wordGroup); {
	case class >= 0:
		if later.zero == nil {
			later.zero = map[uint16]uint16{}
		}
		later.zero[i] = uint16(class)
	case later.freed[i/wordGroup]&bit != 0:
		panic("BUG: a far pointer is freed twice")
	default:
		later.freed[i/wordGroup] |= bit
	}
	return true
}

// lost is the error of an object whose word is lost.
func (sp *Space) lost() error {
	e := new(heap.LostError)
	if name := sp.core.LastLost.Load(); name != nil {
		e.Segment = *name
	}
	return e
}

// pointers is how many words are in use, without the words of pages' objects, and without words that will be freed
// when their page is woken.
func (z *sleeper) pointers() int {
	z.mu.Lock()
	defer z.mu.Unlock()
	n, _ := z.sp.words.count()
	n -= z.kept + bits.OnesCount64(z.cache.left)
	for _, later := range z.later {
		for _, g := range later.freed {
			n -= bits.OnesCount64(g)
		}
	}
	return n
}

// Leaks is for heap.Host.
func (sp *Space) Leaks() bool { return sp.sleep.leaked.Load() }

// Learns is for heap.Host. It reports whether there are classes: words of their objects may be asleep when the
// cleaner looks.
func (sp *Space) Learns() bool { return len(*sp.classes.Load()) > 0 }

// Start starts the sleeper, which gives back the memory of words that are not used.
func (sp *Space) Start() { sp.core.Wg.Go(sp.sleep.run) }

// Chores is for heap.Host.
func (sp *Space) Chores(tick bool) {
	z := &sp.sleep
	if !tick {
		return
	}
	z.mu.Lock()
	behind := len(z.later) > 0
	z.mu.Unlock()
	if behind || z.due() {
		z.poke()
	}
}

// end makes all words that are asleep read as free, and gives up what the sleeper needs to send pages.
func (z *sleeper) end() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.words == nil {
		return
	}
	fill(wordsOf(z.words.Bytes()), freeWord) // which is what they read as from now on
	_ = errors.Join(z.words.Close(), z.overlay.Close())
	z.words = nil
}

// audit calls fn with every word that is asleep. It reports false if it could not read all of them, or some are about
// to be freed. It returns what the sleeper adds to the budget that pages of words take. Nothing may be under way.
func (z *sleeper) audit(fn func(n uint64, w Word)) (bytes int64, all bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	all = true
	var buf [pageBuf]uint64
	for page := range z.pages {
		if z.pages[page].object == 0 {
			continue
		}
		from, err := z.peek(context.Background(), nil, z.pages[page].object, buf[:])
		if err != nil || from == nil {
			all = false
			continue
		}
		later := z.later[uint64(page)]
		for i, w := range from {
			fn(uint64(page*WordsPerPage+i), Word(w))
			if later != nil && later.freed[i/wordGroup]>>(i%wordGroup)&1 != 0 {
				all = false // it counts until its page is woken
			}
		}
	}
	bytes = -int64(z.away) * pageBytes
	if z.words != nil {
		bytes += int64(z.overlaid()+z.reserve) * pageBytes
	}
	return bytes, all
}
