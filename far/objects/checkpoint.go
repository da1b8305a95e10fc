package objects

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/record"
)

// The objects' part of a checkpoint says what each word that is in use is; of words that are asleep it only says
// where their page is. It is taken while the evacuator does nothing, so that no object moves, and after the part that
// says how much lives in each segment: between the two, what lives only becomes less. It is about the classes that
// outlive the process, and is
//
//	u32 numbers of classes; u32 classes; for each: u16 number, u8 kind of far record, u64 the class's Born,
//	  u32 size of its objects, 2^32-1 if they differ, u16 length of its name, the name,
//	  u32 length of its layout, the layout, u32 length of its state, the state
//	u32 pages of words; for each: u8 what follows:
//	  awake: u16 words; for each: u16 place in the page, u64 word
//	  away: u64 number of the word of the page's object; for each group of 64 words: u64 the words that are in use;
//	    for each group: u64 the words that are to be freed; u16 words that become those of unused objects;
//	    for each of them: u16 place in the page, u16 class
//	u32 objects without a far copy; for each: u64 number of the word, u16 class, u32 length, the bytes
//
// A page that is away may have words of classes that do not outlive the process. They are freed when the page is
// woken. Nobody gets the numbers of those classes before a checkpoint is loaded that has no page away.

const (
	pageAwake = iota
	pageAway
)

// Keeps reports whether there are objects that outlive the process.
func (sp *Space) Keeps() bool { return sp.keeps.Load() }

// Outlives reports whether the class is part of checkpoints.
func (c *Class) Outlives() bool { return c.cfg.Outlives || c.kind == record.Page }

// isGone reports whether w is the word of an object of a class that did not outlive the process before.
func (sp *Space) isGone(w Word) bool {
	switch {
	case w.Far():
		return sp.class(w.FarClass()).gone
	case w.Zero():
		return sp.class(uint16(w)).gone
	}
	return false
}

// SetState sets the function that says what is kept with the class. It is called while a checkpoint is taken, with
// sp.mu held, and must not wait.
func (sp *Space) SetState(c *Class, state func() []byte) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	c.state = state
}

// State is what is kept with the class, nil if that is nothing.
func (sp *Space) State(c *Class) []byte {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if c.state == nil {
		return nil
	}
	return c.state()
}

// claim opens the class with cfg's name if it is from a checkpoint and nobody has asked for it yet. It returns nil if
// there is no such class, and fails if that has another layout or size. sp.mu must be held.
func (sp *Space) claim(cfg Config, size int, kind record.Kind) (*Class, error) {
	old := *sp.classes.Load()
	for i, was := range old {
		if !was.kept || was.cfg.Name != cfg.Name || was.kind != kind {
			continue
		}
		if was.cfg.Layout != cfg.Layout || was.Size != size {
			return nil, fmt.Errorf("cannot open class %q: its objects are %s, %d bytes each, and cannot be opened as %s, %d bytes", cfg.Name, was.cfg.Layout, was.Size, cfg.Layout, size)
		}
		c := &Class{ID: was.ID, Born: was.Born, Size: size, kind: kind, cfg: cfg, state: was.state, again: true}
		sp.become(i, c)
		return c, nil
	}
	return nil, nil
}

// become makes c the class with number id. sp.mu must be held.
func (sp *Space) become(id int, c *Class) {
	classes := slices.Clone(*sp.classes.Load())
	classes[id] = c
	sp.classes.Store(&classes)
}

// Again reports whether the class is from a checkpoint, and not new.
func (c *Class) Again() bool { return c.again }

// Disown undoes NewClass for a class that was not used since: a class from a checkpoint becomes one that nobody has
// asked for again, and a new class is retired.
func (sp *Space) Disown(c *Class) {
	if !c.again {
		sp.Retire(c)
		return
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.become(int(c.ID), &Class{ID: c.ID, Born: c.Born, Size: c.Size, kind: c.kind, cfg: Config{Name: c.cfg.Name, HotBits: 1, Outlives: true, Layout: c.cfg.Layout}, state: c.state, kept: true})
}

// Freeze appends the objects' part of a checkpoint to b, within b's capacity. If that is too small, it returns a
// capacity that should be enough as need. The evacuator does nothing meanwhile.
func (sp *Space) Freeze(b []byte) (_ []byte, need int64) {
	z, t := &sp.sleep, &sp.words
	z.mu.Lock() // first: no page goes far any more with words of a class that is not among f.classes
	defer z.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	sp.mu.Lock()
	f := freezing{sp: sp, classes: *sp.classes.Load()}
	f.encodeClasses()
	sp.mu.Unlock()
	f.size = int64(len(f.b)) + 8
	f.walk(func(n int, _ func(b []byte) []byte) { f.size += int64(n) })
	if f.size += f.dirtySize; f.size > int64(cap(b)-len(b)) {
		return nil, f.size * 9 / 8
	}
	b = append(b, f.b...)
	b = binary.LittleEndian.AppendUint32(b, uint32(t.pages.Load()))
	end := int64(cap(b)) - f.dirtySize
	full := false
	f.dirty, f.dirtySize, f.lost = f.dirty[:0], 0, 0
	f.walk(func(n int, put func(b []byte) []byte) {
		if full = full || int64(len(b)+n) > end; !full {
			b = put(b)
		}
	})
	if full || int64(len(b))+4+f.dirtySize > int64(cap(b)) { // objects were written to meanwhile
		return nil, f.size * 5 / 4
	}
	sp.lacks.Store(int64(f.lost))
	return f.encodeDirty(b), 0
}

// Lacks is how many of the objects that the last checkpoint should have were lost, not counting those whose words
// were asleep.
func (sp *Space) Lacks() int { return int(sp.lacks.Load()) }

// freezing is the making of a checkpoint.
type freezing struct {
	sp      *Space
	classes []*Class
	b       []byte // classes
	size    int64

	lost      int      // objects
	dirty     []uint64 // numbers of the words of objects without a far copy
	dirtySize int64
}

// encodeClasses puts the classes into f.b.
func (f *freezing) encodeClasses() {
	put16, put32, put64 := binary.LittleEndian.AppendUint16, binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	f.b = put32(f.b, uint32(len(f.classes)))
	at, n := len(f.b), uint32(0)
	f.b = put32(f.b, 0)
	for _, c := range f.classes {
		if c.ended.Load() || !c.Outlives() {
			continue
		}
		n++
		var state []byte
		if c.state != nil {
			state = c.state()
		}
		f.b = put64(append(put16(f.b, c.ID), byte(c.kind)), c.Born)
		f.b = put32(f.b, uint32(c.Size))
		f.b = append(put16(f.b, uint16(len(c.cfg.Name))), c.cfg.Name...)
		f.b = append(put32(f.b, uint32(len(c.cfg.Layout))), c.cfg.Layout...)
		f.b = append(put32(f.b, uint32(len(state))), state...)
	}
	binary.LittleEndian.PutUint32(f.b[at:], n)
}

// walk calls emit for each page, with the most bytes that the page takes, and a function that appends them. It notes
// dirty objects in f.dirty. z.mu and t.mu must be held.
func (f *freezing) walk(emit func(n int, put func(b []byte) []byte)) {
	z, t := &f.sp.sleep, &f.sp.words
	for page := range uint64(t.pages.Load()) {
		if page < uint64(len(z.pages)) && z.pages[page].object != 0 {
			later := z.later[page]
			n := 1 + 8 + 2*8*pageGroups + 2
			if later != nil {
				n += 4 * len(later.zero)
			}
			emit(n, func(b []byte) []byte { return f.encodeAway(b, page, later) })
			continue
		}
		var words [WordsPerPage]Word
		n := f.wordsOf(page, &words)
		emit(3+10*n, func(b []byte) []byte {
			b = binary.LittleEndian.AppendUint16(append(b, pageAwake), uint16(n))
			for i, w := range words {
				if w != 0 {
					b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint16(b, uint16(i)), uint64(w))
				}
			}
			return b
		})
	}
}

// encodeAway appends a page that is asleep.
func (f *freezing) encodeAway(b []byte, page uint64, later *laterWords) []byte {
	put16, put64 := binary.LittleEndian.AppendUint16, binary.LittleEndian.AppendUint64
	b = put64(append(b, pageAway), f.sp.sleep.pages[page].object)
	for _, g := range f.sp.words.taken[page*pageGroups:][:pageGroups] {
		b = put64(b, g)
	}
	if later == nil {
		later = new(laterWords)
	}
	for _, g := range later.freed {
		b = put64(b, g)
	}
	b = put16(b, uint16(len(later.zero)))
	for i, class := range later.zero {
		b = put16(put16(b, i), class)
	}
	return b
}

// wordsOf sets words to what the checkpoint says of the words of a page that is awake, 0 for nothing. It returns of
// how many it says something.
func (f *freezing) wordsOf(page uint64, words *[WordsPerPage]Word) (n int) {
	for i := range words {
		if words[i] = f.wordOf(page*WordsPerPage + uint64(i)); words[i] != 0 {
			n++
		}
	}
	return n
}

// wordOf is what the checkpoint says of word n. It is 0, for nothing, if nobody has the word, if the class of its
// object does not outlive the process, or if the object is dirty; wordOf then notes it in f.dirty.
func (f *freezing) wordOf(n uint64) Word {
	for {
		w := Load(f.sp.At(n))
		var id uint16
		switch {
		case w.Far():
			id = w.FarClass()
			if s := f.sp.core.Far.Seg(w.FarAddr()); s == nil || s.Gone() {
				f.lost++
				return lostWord
			}
		case w.Zero():
			id = uint16(w)
		case w.lost():
			f.lost++
			return w
		case !w.Local():
			return 0
		default:
			o := f.sp.core.Logs.Object(w.Addr())
			tail := atomic.LoadUint64(o.Tail())
			size := object.HeadLen(o.Head())
			if Load(f.sp.At(n)) != w {
				continue
			}
			if id = classIn(tail); int(id) >= len(f.classes) || !f.classes[id].Outlives() {
				return 0
			}
			far := object.TailFar(tail)
			if far != 0 {
				if s := f.sp.core.Far.Seg(far); s != nil && !s.Gone() {
					return farWord(far, object.FarSize(size), id)
				}
			}
			f.dirty = append(f.dirty, n)
			f.dirtySize += 14 + int64(size)
			return 0
		}
		if int(id) >= len(f.classes) || !f.classes[id].Outlives() {
			return 0
		}
		return w
	}
}

// encodeDirty appends those of the dirty objects that are still there. An object that has become zero meanwhile is
// written as zeros: its word must not be missing among those of an array.
func (f *freezing) encodeDirty(b []byte) []byte {
	put16, put32, put64 := binary.LittleEndian.AppendUint16, binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	at, count := len(b), uint32(0)
	b = put32(b, 0)
	for _, n := range f.dirty {
		var id uint16
		var data []byte
		switch w := Load(f.sp.At(n)); {
		case w.Local():
			o := f.sp.core.Logs.Object(w.Addr())
			id, data = classIn(atomic.LoadUint64(o.Tail())), o[object.Header:object.Header+object.HeadLen(o.Head())]
		case w.Zero():
			id = uint16(w)
			data = make([]byte, f.sp.class(id).Size)
		default:
			continue // it was freed
		}
		b = put16(put64(b, n), id)
		b = append(put32(b, uint32(len(data))), data...)
		count++
	}
	binary.LittleEndian.PutUint32(b[at:], count)
	return b
}

// Load takes the objects' part of a checkpoint from d and makes it the contents of sp, which nobody uses yet.
func (sp *Space) Load(ctx context.Context, d *record.Decoder) error {
	if err := sp.loadClasses(d); err != nil {
		return err
	}
	l := loading{sp: sp, ctx: ctx, away: map[uint64]uint64{}}
	t := &sp.words
	n := int(d.U32())
	if d.Err != nil || n > len(d.B) || n > len(t.table)/WordsPerPage {
		return errors.Join(d.Err, fmt.Errorf("%d pages of words: give the heap more local memory", n))
	}
	if n > 0 {
		t.mu.Lock()
		err := t.grow(n, &sp.core.Logs, heap.ForMutator)
		t.mu.Unlock()
		if err != nil {
			return fmt.Errorf("no room for %d pages of words: %w", n, err)
		}
	}
	for page := range uint64(n) {
		var err error
		switch what := d.Bytes(1); {
		case what == nil:
		case what[0] == pageAwake:
			err = l.awake(d, page)
		case what[0] == pageAway:
			err = l.asleep(d, page)
		default:
			err = fmt.Errorf("it is of kind %d", what[0])
		}
		if err = errors.Join(d.Err, err); err != nil {
			return fmt.Errorf("page %d of words: %w", page, err)
		}
	}
	for range d.U32() {
		if err := l.dirty(d); err != nil {
			return err
		}
	}
	return errors.Join(d.Err, l.end())
}

// loadClasses takes classes from d.
func (sp *Space) loadClasses(d *record.Decoder) error {
	ids, n := int(d.U32()), int(d.U32())
	if d.Err != nil || ids > MaxClasses || n > ids {
		return errors.Join(d.Err, fmt.Errorf("%d classes with %d numbers", n, ids))
	}
	classes := make([]*Class, ids)
	for range n {
		id, kind := int(d.U16()), d.Bytes(1)
		c := &Class{ID: uint16(id), Born: d.U64(), Size: int(int32(d.U32())), kept: true}
		c.cfg = Config{Name: string(d.Bytes(int(d.U16()))), HotBits: 1, Outlives: true, Layout: string(d.Bytes(int(d.U32())))}
		state := append([]byte(nil), d.Bytes(int(d.U32()))...)
		if d.Err != nil {
			return d.Err
		}
		c.kind = record.Kind(kind[0])
		switch {
		case id >= ids || classes[id] != nil || c.kind != record.Object && c.kind != record.Page || c.Size < -1:
			return fmt.Errorf("class %d, %q", id, c.cfg.Name)
		case c.Size > sp.most:
			return fmt.Errorf("class %q has objects of %d bytes, and at most %d fit into a log: give the heap more local memory", c.cfg.Name, c.Size, sp.most)
		case c.kind == record.Page && (c.Size != pageBytes || sp.sleep.restored != nil):
			return fmt.Errorf("class %d of words", id)
		case c.kind == record.Page:
			c.cfg, c.kept = Config{Name: c.cfg.Name, HotBits: 1}, false
			sp.sleep.restored = c
		case len(state) > 0:
			c.state = func() []byte { return state }
		}
		classes[id] = c
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for id, c := range classes {
		if c == nil { // its class, if there was one, did not outlive the process before
			c = &Class{ID: uint16(id), cfg: Config{HotBits: 1}}
			c.ended.Store(true)
			c.gone = true
			classes[id] = c
		}
	}
	sp.keeps.Store(true)
	sp.classes.Store(&classes)
	if len(classes) > 0 {
		sp.core.UseScopes()
	}
	return nil
}

// loading is the opening of a checkpoint.
type loading struct {
	sp      *Space
	ctx     context.Context
	away    map[uint64]uint64 // pages that are asleep, by the number of the word of their object
	objects []uint64          // numbers of the words of pages' objects
}

// hasClass returns the class of a number, nil if there is none.
func (l *loading) hasClass(id uint16) *Class {
	classes := *l.sp.classes.Load()
	if int(id) >= len(classes) || classes[id].ended.Load() {
		return nil
	}
	return classes[id]
}

// use makes w the value of word n, and n a word in use. It fails if n is in use already.
func (l *loading) use(n uint64, w Word) error {
	t := &l.sp.words
	t.mu.Lock()
	defer t.mu.Unlock()
	g, bit := int(n/wordGroup), uint64(1)<<(n%wordGroup)
	if t.taken[g]&bit != 0 {
		return fmt.Errorf("word %d is there twice", n)
	}
	t.take(g, t.taken[g]|bit)
	t.inUse++
	storeWord(t.at(n), w)
	return nil
}

// awake takes a page from d that is awake.
func (l *loading) awake(d *record.Decoder, page uint64) error {
	n := int(d.U16())
	b := d.Bytes(10 * n)
	if d.Err != nil || n > WordsPerPage {
		return errors.Join(d.Err, fmt.Errorf("%d words", n))
	}
	for ; len(b) > 0; b = b[10:] {
		i, w := uint64(binary.LittleEndian.Uint16(b)), Word(binary.LittleEndian.Uint64(b[2:]))
		var c *Class
		switch {
		case w.Far():
			if c = l.hasClass(w.FarClass()); !l.sp.core.Far.Has(w.FarAddr()) || w != farWord(w.FarAddr(), w.FarSize(), w.FarClass()) {
				c = nil
			}
		case w.Zero():
			if c = l.hasClass(uint16(w)); w != zeroWord(uint16(w)) || c != nil && c.Size < 0 {
				c = nil
			}
		}
		if c == nil && !w.lost() || i >= WordsPerPage {
			return fmt.Errorf("word %d is %#x, which refers to nothing", i, w)
		}
		n := page*WordsPerPage + i
		if err := l.use(n, w); err != nil {
			return err
		}
		if c != nil && c.kind == record.Page {
			l.objects = append(l.objects, n)
		}
	}
	return nil
}

// asleep takes a page from d that is asleep. l.end puts the page to sleep, when all words are known.
func (l *loading) asleep(d *record.Decoder, page uint64) error {
	z, t := &l.sp.sleep, &l.sp.words
	object := d.U64()
	if page == 0 || object == 0 || l.away[object] != 0 {
		return fmt.Errorf("its words are at %d, as those of page %d", object, l.away[object])
	}
	l.away[object] = page
	t.mu.Lock()
	for g := page * pageGroups; g < (page+1)*pageGroups; g++ {
		taken := d.U64()
		t.take(int(g), taken)
		t.inUse += bits.OnesCount64(taken)
	}
	t.mu.Unlock()
	later, some := new(laterWords), false
	for g := range later.freed {
		later.freed[g] = d.U64()
		if later.freed[g]&^t.taken[page*pageGroups+uint64(g)] != 0 {
			return errors.New("a word is to be freed that nobody has")
		}
		some = some || later.freed[g] != 0
	}
	for range d.U16() {
		i, id := d.U16(), d.U16()
		if c := l.hasClass(id); d.Err != nil || i >= WordsPerPage || c == nil || c.Size < 0 {
			return errors.Join(d.Err, fmt.Errorf("word %d becomes an object of class %d", i, id))
		}
		if later.zero == nil {
			later.zero = map[uint16]uint16{}
		}
		later.zero[i] = id
		some = true
	}
	if some {
		z.later[page] = later
	}
	return nil
}

// dirty takes an object from d that has no far copy.
func (l *loading) dirty(d *record.Decoder) error {
	sp := l.sp
	n, id := d.U64(), d.U16()
	b := d.Bytes(int(d.U32()))
	if d.Err != nil {
		return d.Err
	}
	c := l.hasClass(id)
	if c == nil || !sp.words.has(n) || len(b) > sp.most || c.Size >= 0 && c.Size != len(b) {
		return fmt.Errorf("an object of %d bytes, of class %d, and word %d", len(b), id, n)
	}
	if err := l.use(n, freeWord); err != nil {
		return err
	}
	if err := sp.fill(l.ctx, n, c, c.cfg.HotBits, b); err != nil {
		return fmt.Errorf("no room for an object that was not in far memory yet: %w", err)
	}
	if c.kind == record.Page {
		l.objects = append(l.objects, n)
	}
	return nil
}

// end puts those pages to sleep that were asleep. It frees the objects of pages that were not: such a page was just
// being woken, or about to go.
func (l *loading) end() error {
	sp, z := l.sp, &l.sp.sleep
	if len(l.away) == 0 {
		for _, c := range *sp.classes.Load() {
			if c.gone {
				sp.retired = append(sp.retired, retiredClass{c: c})
			}
		}
	}
	if z.restored == nil {
		if len(l.away) > 0 {
			return errors.New("words are far, and there is no class of them")
		}
		return nil
	}
	if err := z.ready(); err != nil {
		return fmt.Errorf("no room for words of pointers: %w", err)
	}
	for range sp.words.pages.Load() {
		z.pages = append(z.pages, pageState{age: newAge})
	}
	for _, n := range l.objects {
		page, ok := l.away[n]
		if !ok {
			z.kept++
			z.drop(n)
			continue
		}
		delete(l.away, n)
		if err := l.sleep(page, n); err != nil {
			return fmt.Errorf("page %d of words: %w", page, err)
		}
	}
	for n, page := range l.away {
		return fmt.Errorf("page %d of words should be at %d, where nothing is", page, n)
	}
	return nil
}

// sleep puts a page to sleep whose words are in the object of word n.
func (l *loading) sleep(page, n uint64) error {
	z, t := &l.sp.sleep, &l.sp.words
	z.mu.Lock()
	for i := range t.page(page) {
		if w := Load(&t.page(page)[i]); !w.Free() {
			z.mu.Unlock()
			return fmt.Errorf("word %d of it is %#x", i, w)
		}
	}
	fill(t.page(page), asleep)
	z.kept++
	t.mu.Lock()
	err := errNoMapping
	if z.mayMap(page) {
		err = z.unmap(page)
	}
	t.hide(page)
	t.mu.Unlock()
	z.pages[page].object = n
	z.away++
	z.sp.core.Logs.SleepIndex(heap.Words, pageBytes)
	z.mu.Unlock()
	if err != nil { // the process has too few mappings
		return z.rouse(l.ctx, &t.page(page)[0], waker{})
	}
	return nil
}

var errNoMapping = errors.New("the process has no mapping left for words that are far")
