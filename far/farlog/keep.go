package farlog

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"polder/far/record"
	"polder/far/store"
)

// What is in far memory outlives the heap if its store is a Keeper. A checkpoint says where everything lies. The root
// says where the last checkpoint lies, and has what it takes to verify it. A heap that is opened again is as it was
// at that checkpoint; what was written to far memory later is no part of it. The segments that a checkpoint refers to
// are given back only after the next checkpoint, so that all of them are still there when the heap is opened.

// keeping is what a far log remembers for its Keeper.
type keeping struct {
	keeper  store.Keeper
	root    record.Root
	parts   []store.Segment        // the segments that the last checkpoint is in, in the order of root.Parts
	spares  []store.Segment        // reserved for the next checkpoint, and for what has to be written back before it
	most    int                    // how many spares there should be
	kept    map[store.Segment]bool // those that the last checkpoint, or a failed one since, refers to; nil before there is any
	listed  []store.Segment        // kept in the order of the checkpoint; nil until this process has taken one
	pins    []*Pinned              // checkpoints whose segments stay although others have followed
	due     chan struct{}          // receives when a checkpoint should be taken
	wanted  bool                   // somebody waits for the next checkpoint
	holding bool                   // a checkpoint is being made: it may refer to any segment
	waiting []Kept                 // dead segments that are given back after the next checkpoint
	pinned  []Kept                 // dead segments that only pins keep
}

// Keeps reports whether the heap outlives its process.
func (f *Log) Keeps() bool { return f.keeping.keeper != nil }

// Waits is how many dead segments wait for the next checkpoint.
func (f *Log) Waits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.keeping.waiting)
}

// retain keeps a dead segment, and reports true, if the last checkpoint or the one that is being made may refer to
// it, or a pin needs it. f.mu must be held.
func (f *Log) retain(s Kept) bool {
	k := &f.keeping
	switch {
	case k.keeper == nil:
		return false
	case k.holding || k.kept[s.seg]:
		k.waiting = append(k.waiting, s)
	case k.hasPinned(s.seg):
		f.keepPinned(s)
	default:
		return false
	}
	if f.starved() {
		k.remind()
	}
	return true
}

// keepPinned keeps a dead segment for the pins that need it; if the store is full, it breaks the pins instead. f.mu
// must be held.
func (f *Log) keepPinned(s Kept) {
	f.keeping.pinned = append(f.keeping.pinned, s)
	if f.scarce.Load() {
		f.breakPins()
	}
}

// remind says that a checkpoint is due.
func (k *keeping) remind() {
	select {
	case k.due <- struct{}{}:
	default:
	}
}

// Due returns a channel that receives when a checkpoint should be taken. See starved for the reasons, such as
// somebody needing the dead segments that wait for the checkpoint.
func (f *Log) Due() <-chan struct{} { return f.keeping.due }

// Want says that somebody waits for the next checkpoint.
func (f *Log) Want() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keeping.wanted = true
	f.keeping.remind()
}

// Hold begins a checkpoint: until Commit or Unhold, no segment that dies is given back.
func (f *Log) Hold() {
	f.mu.Lock()
	f.keeping.holding = true
	f.mu.Unlock()
}

// Unhold ends what Hold began, without a checkpoint.
func (f *Log) Unhold() {
	f.mu.Lock()
	f.keeping.holding = false
	f.mu.Unlock()
}

// Has reports whether a far address is within a segment.
func (f *Log) Has(addr uint64) bool {
	segs := *f.Segs.Load()
	id := addr / f.Units
	return id < uint64(len(segs)) && segs[id].Load() != nil
}

// Starved reports whether a checkpoint is due.
func (f *Log) Starved() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.starved()
}

// starved is Starved with f.mu held. A checkpoint is due when the keeper wants one or needs a segment, when somebody
// waits for one, and when dead segments wait for it while the store is full, or too many of them.
func (f *Log) starved() bool {
	k := &f.keeping
	n := len(k.waiting)
	return k.keeper.Wants() || f.Needs() || k.wanted || n > 0 && f.scarce.Load() || n > leastWaiting && n > f.count/waitingShare
}

const (
	// leastWaiting is how many dead segments may wait for a checkpoint in any case. More may wait if they are at most
	// a waitingShare-th of those in use.
	leastWaiting = 4
	waitingShare = 8
)

// Reserve borrows segments until most are reserved for the next checkpoint, or the store is full. When least are, the
// spare segments for pages come first, since a checkpoint may have to settle words. It borrows none while the keeper
// needs one: see Needs.
func (f *Log) Reserve(ctx context.Context, least, most int) error {
	if err := f.reserve(ctx, &f.keeping.spares, func() int { return min(least, most) }); err != nil {
		return err
	}
	if err := f.reserve(ctx, &f.paged, func() int { return f.pageSpares }); err != nil {
		return err
	}
	return f.reserve(ctx, &f.keeping.spares, func() int { return most })
}

// reserve borrows segments until there are as many of them as n says, or the store is full. It calls n with f.mu held.
func (f *Log) reserve(ctx context.Context, segs *[]store.Segment, n func() int) error {
	for atOnce := reserveAtOnce; ; {
		f.mu.Lock()
		lacking := n() - len(*segs)
		if f.Needs() {
			lacking = 0
		}
		f.mu.Unlock()
		if lacking <= 0 {
			return nil
		}
		got := make([]store.Segment, min(lacking, atOnce))
		errs := make([]error, len(got))
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() { got[i], errs[i] = f.Store.Alloc(ctx) })
		}
		wg.Wait()
		f.mu.Lock()
		for i, err := range errs {
			if err == nil {
				*segs = append(*segs, got[i])
			}
		}
		f.mu.Unlock()
		switch err := errors.Join(errs...); {
		case err == nil:
		case f.full(err) && atOnce > 1:
			atOnce = 1 // borrowing at the same time, they may have taken each other's last room
		case f.full(err):
			return nil
		default:
			return fmt.Errorf("cannot reserve far memory for a checkpoint: %w", err)
		}
	}
}

// reserveAtOnce is how many segments Reserve borrows at a time: a heap that is being opened waits for them.
const reserveAtOnce = 4

// A roomy store says how many segments it could lend now, if it knows. Somebody else may borrow them first.
type roomy interface{ Room() (n int, known bool) }

// room returns how many segments the store could lend now, if it knows.
func (f *Log) room() (n int, known bool) {
	if r, ok := f.Store.(roomy); ok {
		return r.Room()
	}
	return 0, false
}

// plenty is how many times a reserve must fit into a store that has plenty of room.
const plenty = 16

// Plenty reports whether the store has so much room that a reserve of n segments can be had later as well as now.
func (f *Log) Plenty(n int) bool {
	room, _ := f.room()
	return room >= plenty*n
}

// TakeReserved returns a reserved segment, or nil if fewer than leave would be left.
func (f *Log) TakeReserved(leave int) store.Segment {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := &f.keeping
	n := len(k.spares) - 1
	if n < leave {
		return nil
	}
	s := k.spares[n]
	k.spares = k.spares[:n]
	return s
}

// Reserved is how many segments are kept for the next checkpoint.
func (f *Log) Reserved() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.keeping.spares)
}

// AppendSegments appends to b what a checkpoint says of far memory, and returns the segments that it lists, in that
// order: those in which something lives. The caller holds all locks of owners, so that nothing that lives is moved
// meanwhile.
func (f *Log) AppendSegments(b []byte) ([]byte, []store.Segment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b = binary.LittleEndian.AppendUint64(b, f.version.Load())
	b = binary.LittleEndian.AppendUint64(b, f.age.Load())
	at, n := len(b), uint32(0)
	b = binary.LittleEndian.AppendUint32(b, 0)
	var segs []store.Segment
	f.All(func(s *Segment) {
		if s.Live.Load() == 0 || s.Gone() {
			return
		}
		n++
		segs = append(segs, s.Seg)
		for _, v := range []uint64{s.ID, s.age, s.epoch, uint64(s.stream), uint64(s.Live.Load()), uint64(s.filled.Load()), uint64(s.written.Load())} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		name := s.Seg.Name()
		b = binary.LittleEndian.AppendUint16(b, uint16(len(name)))
		b = append(b, name...)
	})
	binary.LittleEndian.PutUint32(b[at:], n)
	return b, segs
}

// Commit writes a checkpoint, which refers to segs, and makes it the one that the heap will be opened with. Whether
// it fails or not, it ends what Hold began. It returns the segments that the caller has to give back. It keeps up to
// most segments reserved for the next checkpoint; if the keeper needs a segment, one less than are reserved now, but
// not less than least.
func (f *Log) Commit(ctx context.Context, checkpoint []byte, segs []store.Segment, least, most int) (free []store.Segment, err error) {
	k := &f.keeping
	if f.Needs() {
		most = min(most, max(least, f.Reserved()-1))
	}
	root := k.root
	root.Length, root.Sum, root.Parts = uint64(len(checkpoint)), sha256.Sum256(checkpoint), nil
	var parts, sealed []store.Segment
	again := mostAgain
	for rest := checkpoint; len(rest) > 0 && err == nil; {
		var seg store.Segment
		if seg, err = f.borrowForCheckpoint(ctx); len(sealed) > 0 && again > 0 && errors.Is(err, store.ErrStoreFull) {
			for _, s := range sealed { // in a full store, they may be all the room that there is
				f.GiveBack(ctx, s)
			}
			sealed, again, err = nil, again-1, nil
			continue
		} else if err != nil {
			break
		}
		parts = append(parts, seg)
		var p record.Part
		switch p, err = f.writePart(ctx, seg, rest); {
		case err == nil:
			root.Parts = append(root.Parts, p)
			rest = rest[p.Length:]
		case errors.Is(err, store.ErrSealed): // the checkpoint goes on in another segment
			sealed = append(sealed, seg)
			parts = parts[:len(parts)-1]
			err = nil
		}
	}
	if err == nil {
		if b := root.Encode(); len(b) > record.MaxRoot {
			err = fmt.Errorf("its root would have %d bytes, more than %d: it takes larger segments", len(b), record.MaxRoot)
		} else {
			err = k.keeper.SetRoot(ctx, b)
		}
	}
	if err != nil {
		// Nobody knows whether the new root is kept: so both checkpoints stay.
		err = fmt.Errorf("cannot write a checkpoint: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.holding, k.wanted, k.most = false, false, most; err == nil {
		dead := k.waiting
		for _, s := range k.parts {
			if k.hasPinned(s) {
				dead = append(dead, Kept{seg: s})
			} else {
				k.spares = append(k.spares, s)
			}
		}
		k.waiting, k.parts, k.root, k.listed = nil, parts, root, append([]store.Segment{}, segs...)
		k.kept = make(map[store.Segment]bool, len(segs))
		for _, s := range segs {
			k.kept[s] = true
		}
		for _, s := range dead {
			switch {
			case k.kept[s.seg]: // it has died since the checkpoint listed it
				k.waiting = append(k.waiting, s)
			case k.hasPinned(s.seg):
				f.keepPinned(s)
			case len(k.spares) < min(least, most):
				k.spares = append(k.spares, s.seg)
			case f.scarce.Load() && len(f.paged) < f.pageSpares:
				// Otherwise no words could be settled until the store has room.
				f.paged = append(f.paged, s.seg)
			case len(k.spares) < most:
				k.spares = append(k.spares, s.seg)
			default:
				free = append(free, s.seg)
			}
		}
		if n := len(k.spares); n > most {
			free = append(free, k.spares[most:]...)
			k.spares = k.spares[:most]
		}
	} else { // the store may have the root
		for i, s := range parts {
			w := Kept{seg: s}
			if i < len(root.Parts) {
				w.part = root.Parts[i]
			}
			k.waiting = append(k.waiting, w)
		}
		if k.kept == nil {
			k.kept = make(map[store.Segment]bool, len(segs))
		}
		for _, s := range segs {
			k.kept[s] = true
		}
	}
	return slices.Concat(free, sealed), err
}

// A needy keeper may need a segment that is none of the log, when the store is full. Until it has that, nothing more
// can be written.
type needy interface{ Needs() bool }

// Needs reports whether the keeper needs such a segment.
func (f *Log) Needs() bool {
	n, ok := f.keeping.keeper.(needy)
	return ok && n.Needs()
}

// borrowForCheckpoint gets a segment for a part of a checkpoint: a reserved one, or else one from the store, or, if
// the store is full, an idle or a spare one.
func (f *Log) borrowForCheckpoint(ctx context.Context) (store.Segment, error) {
	if s := f.TakeReserved(0); s != nil {
		return s, nil
	}
	s, err := f.Store.Alloc(ctx)
	if f.full(err) {
		for _, take := range []func(bool) store.Segment{f.takeIdle, f.TakeSpare} {
			if s := take(false); s != nil {
				return s, nil
			}
		}
	}
	return s, err
}

// mostAgain is how often Commit, in a full store, gives back segments that late copies have closed, to go on in
// others.
const mostAgain = 16

// mostOfCheckpoint is the longest body of a checkpoint's record.
const mostOfCheckpoint = 256 << 10

// writePart writes the beginning of b to seg, as much as there is room for.
func (f *Log) writePart(ctx context.Context, seg store.Segment, b []byte) (record.Part, error) {
	p := record.Part{Name: seg.Name(), Epoch: f.keeping.root.Epoch, Position: f.age.Add(1)}
	mem := make([]byte, record.SegmentSize+record.Size(min(mostOfCheckpoint, f.SegSize/2)))
	seed := f.checkpointHeader(p).Put(mem)
	for off, used := 0, record.SegmentSize; len(b) > 0; used = 0 {
		n := min(len(b), len(mem)-record.SegmentSize-record.HeaderSize-record.Unit, f.SegSize-off-used-record.HeaderSize-record.Unit)
		if n <= 0 {
			break
		}
		r := record.Put(mem[used:used+record.Size(n)], record.Header{Kind: record.Checkpoint}, b[:n])
		r.SetVersion(f.version.Add(1))
		r.Seal(seed, off+used)
		used += r.Size()
		if err := seg.Write(ctx, mem[:used], off); err != nil {
			return p, err
		}
		off += used
		b = b[n:]
		p.Length += uint64(n)
	}
	return p, nil
}

func (f *Log) checkpointHeader(p record.Part) *record.Segment {
	return &record.Segment{Heap: f.heap, Stream: record.Checkpoints, Hash: record.XXH3, Epoch: p.Epoch, Position: p.Position}
}

// readPart appends a part of a checkpoint to b.
func (f *Log) readPart(ctx context.Context, seg store.Segment, p record.Part, b []byte) ([]byte, error) {
	mem := f.stretch()
	for off, end := record.SegmentSize, len(b)+int(p.Length); len(b) < end; {
		r, err := f.readStretch(ctx, seg, p, off, end-len(b), mem)
		if err != nil {
			return nil, err
		}
		b = append(b, r.Body()...)
		off += r.Size()
	}
	return b, nil
}

// stretch returns room for any record of a checkpoint.
func (f *Log) stretch() []byte { return make([]byte, record.Size(min(mostOfCheckpoint, f.SegSize/2))) }

// readStretch reads into mem the record at off of a part of a checkpoint. The body of the record has at most most
// bytes. It reads bytes that are wrong again, from other copies if the store has some.
func (f *Log) readStretch(ctx context.Context, seg store.Segment, p record.Part, off, most int, mem []byte) (r record.Record, err error) {
	ops := []store.ReadOp{{Seg: seg, Off: off, Buf: mem[:min(len(mem), f.SegSize-off, record.Size(most))], Bulk: true}}
	f.Store.Read(ctx, ops)
	if ops[0].Err != nil {
		return nil, ops[0].Err
	}
	right := func() bool {
		r, err = f.decodeStretch(ops[0].Buf, p, off, most)
		return err == nil
	}
	if !right() && !store.Reread(ctx, f.Store, ops[0], right) {
		return nil, &store.CorruptError{Segment: p.Name, Off: off, Err: err}
	}
	return r, nil
}

// decodeStretch decodes b, which was read at off of a part of a checkpoint.
func (f *Log) decodeStretch(b []byte, p record.Part, off, most int) (record.Record, error) {
	r, err := record.Decode(b, f.checkpointHeader(p).Seed(), off)
	if err == nil && (r.Kind() != record.Checkpoint || len(r.Body()) > most || r.Len() == 0) {
		err = errNoCheckpoint
	}
	return r, err
}

var errNoCheckpoint = errors.New("they are not those of a checkpoint")

// OpenKeeper makes the heap one that outlives its process. It is called before the log is used. It returns the root
// that keeper has, with the epoch raised by one, and the checkpoint. If keeper has no root it returns nil for both,
// and SetSecrets has to follow.
func (f *Log) OpenKeeper(ctx context.Context, keeper store.Keeper) (*record.Root, []byte, error) {
	k := &f.keeping
	k.keeper, k.due = keeper, make(chan struct{}, 1)
	b, err := keeper.Root(ctx)
	if err != nil || b == nil {
		return nil, nil, err
	}
	r, err := record.DecodeRoot(b)
	if err != nil {
		return nil, nil, err
	}
	r.Epoch++
	f.heap, k.root = r.Heap, *r
	if r.Length > maxCheckpoint {
		return nil, nil, fmt.Errorf("the checkpoint is said to be of %d bytes, more than %d", r.Length, uint64(maxCheckpoint))
	}
	checkpoint := make([]byte, 0, r.Length)
	for _, p := range r.Parts {
		seg, err := keeper.Reopen(ctx, p.Name)
		if err != nil {
			return nil, nil, err
		}
		f.mu.Lock() // the store may have the copies of a part compared already: see Mend
		k.parts = append(k.parts, seg)
		f.mu.Unlock()
		if p.Length > uint64(cap(checkpoint)-len(checkpoint)) {
			return nil, nil, fmt.Errorf("the parts of the checkpoint are longer than %d bytes, which it is said to be", r.Length)
		}
		if checkpoint, err = f.readPart(ctx, seg, p, checkpoint); err != nil {
			return nil, nil, err
		}
	}
	if uint64(len(checkpoint)) != r.Length || r.Length > 0 && sha256.Sum256(checkpoint) != r.Sum {
		return nil, nil, fmt.Errorf("the %d bytes of the checkpoint are not those that were written", len(checkpoint))
	}
	return r, checkpoint, nil
}

// maxCheckpoint bounds how much memory a root can make the heap allocate.
const maxCheckpoint = 1 << 36

// SetSecrets begins a new heap that outlives its process, with these secrets.
func (f *Log) SetSecrets(seed uint64, key [16]byte) {
	f.keeping.root = record.Root{Heap: f.heap, Epoch: 1, Seed: seed, Key: key}
}

// Reopened ends the opening: it makes the keeper remember the raised epoch, and give back what the checkpoint does
// not refer to.
func (f *Log) Reopened(ctx context.Context) error {
	k := &f.keeping
	if err := k.keeper.SetRoot(ctx, k.root.Encode()); err != nil {
		return err
	}
	return k.keeper.Prune(ctx)
}

// LoadSegments reads from d what AppendSegments has written, and borrows the segments again. A segment that the
// keeper has lost becomes a lostSegment.
func (f *Log) LoadSegments(ctx context.Context, d *record.Decoder) error {
	k := &f.keeping
	f.version.Store(d.U64())
	f.age.Store(d.U64())
	k.kept = map[store.Segment]bool{}
	used := map[uint64]bool{}
	for range d.U32() {
		s := &Segment{log: f, ID: d.U64(), age: d.U64(), epoch: d.U64(), stream: record.Stream(d.U64()), Restored: true}
		live, filled, written := d.U64(), d.U64(), d.U64()
		name := string(d.Bytes(int(d.U16())))
		switch {
		case d.Err != nil:
			return d.Err
		case s.ID == 0 || used[s.ID] || s.ID > record.MaxAddr/f.Units-1 || s.age > f.age.Load() ||
			s.stream != record.Data && s.stream != record.Pages || written > uint64(f.SegSize) || live > filled || filled > 2*uint64(f.SegSize):
			return fmt.Errorf("segment %d of the checkpoint (%s) is none", s.ID, name)
		}
		used[s.ID] = true
		var err error
		var lost *store.LostError
		if s.Seg, err = k.keeper.Reopen(ctx, name); errors.As(err, &lost) {
			s.Seg = lostSegment(name)
		} else if err != nil {
			return err
		}
		k.kept[s.Seg] = true
		s.Live.Store(int64(live))
		s.filled.Store(int64(filled))
		s.written.Store(int64(written))
		s.End = int(written)
		s.sealed.Store(true)
		s.Seed = s.Header().Seed()
		f.place(s)
		f.lastID = max(f.lastID, s.ID)
		f.count++
	}
	for id := uint64(1); id < f.lastID; id++ {
		if !used[id] {
			f.ids = append(f.ids, id)
		}
	}
	return d.Err
}

// lostSegment is a segment that is gone.
type lostSegment string

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (s lostSegment) Write(context.Context, []byte, int) error {
	return &store.LostError{Segment: string(s)}
}
func (s lostSegment) Free(context.Context) error { return nil }
func (s lostSegment) Lost() <-chan struct{}      { return closed }
func (s lostSegment) Name() string               { return string(s) }
