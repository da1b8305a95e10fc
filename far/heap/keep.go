package heap

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"polder/far/record"
)

// What is in far memory outlives the heap if its store is a Keeper: a checkpoint says where everything
// lies, and the root says where the last checkpoint lies, and what it takes to believe it. A heap that is opened
// again is as it was at that checkpoint; what was written to far memory later is no part of it. So that
// all of it is still there, segments that a checkpoint refers to are given back only after the next one.

// A Keeper is a Store whose segments outlive the process that has borrowed them. One process at a time has it
// open, which is for the Keeper to see to.
type Keeper interface {
	Store
	// Root returns what SetRoot was given last, nil if it never was.
	Root(ctx context.Context) ([]byte, error)
	// SetRoot keeps root, at most MaxRoot bytes, in the place of the one before, once all that was written to segments
	// is kept as well. It does so entirely or, if it fails, perhaps not at all.
	SetRoot(ctx context.Context, root []byte) error
	// Reopen borrows a segment again by its name; its bytes are what they were. It fails with a *LostError if
	// they are gone for good.
	Reopen(ctx context.Context, name string) (Segment, error)
	// Prune gives back what an earlier process has borrowed and nobody has reopened.
	Prune(ctx context.Context) error
	// Wants reports whether there should be another root soon, since what the Keeper has to remember until then is getting long.
	Wants() bool
}

const (
	// MaxRoot is the most bytes of a root.
	MaxRoot = 64 << 10

	rootMagic = 0x746f6f526c6f50<<8 | 1 // "PolRoot" and the version of the format
)

// Root is where a checkpoint is, and the secrets that are not told to who lends far memory.
type Root struct {
	Heap   uint64
	Epoch  uint64 // of the owner: whoever opens the heap raises it
	Seed   uint64 // of the hash of keys
	Key    [16]byte
	Length uint64            // of the checkpoint, in bytes; 0 if there is none yet
	Sum    [sha256.Size]byte // of the checkpoint, which may lie where anybody can write
	Parts  []Part            // where it lies, in order
}

// Part is a segment that has a part of a checkpoint.
type Part struct {
	Name     string
	Epoch    uint64
	Position uint64
	Length   uint64 // of the part
}

// Encode is the root as bytes.
func (r *Root) Encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, rootMagic)
	for _, v := range []uint64{r.Heap, r.Epoch, r.Seed} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = append(b, r.Key[:]...)
	b = binary.LittleEndian.AppendUint64(b, r.Length)
	b = append(b, r.Sum[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Parts)))
	for _, p := range r.Parts {
		b = binary.LittleEndian.AppendUint64(b, p.Epoch)
		b = binary.LittleEndian.AppendUint64(b, p.Position)
		b = binary.LittleEndian.AppendUint64(b, p.Length)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(p.Name)))
		b = append(b, p.Name...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// DecodeRoot reads a root, which may be anything.
func DecodeRoot(b []byte) (*Root, error) {
	if len(b) < 4 || len(b) > MaxRoot {
		return nil, fmt.Errorf("a root of %d bytes, want 4 to %d", len(b), MaxRoot)
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return nil, fmt.Errorf("CRC32C of the root is %08x, want %08x", got, sum)
	}
	d := &Decoder{B: body}
	if m := d.U64(); m != rootMagic {
		return nil, fmt.Errorf("the root begins with %#x, want %#x: it is none, or of another version of polder", m, uint64(rootMagic))
	}
	r := &Root{Heap: d.U64(), Epoch: d.U64(), Seed: d.U64()}
	copy(r.Key[:], d.Bytes(len(r.Key)))
	r.Length = d.U64()
	copy(r.Sum[:], d.Bytes(len(r.Sum)))
	n := int(d.U32())
	for range n {
		p := Part{Epoch: d.U64(), Position: d.U64(), Length: d.U64()}
		p.Name = string(d.Bytes(int(d.U16())))
		if d.Err != nil {
			break
		}
		r.Parts = append(r.Parts, p)
	}
	if d.Err == nil && len(d.B) > 0 {
		d.Err = fmt.Errorf("%d bytes follow it", len(d.B))
	}
	return r, d.Err
}

// Decoder reads what AppendUint64 and its like have written. After an error it returns zeros.
type Decoder struct {
	B   []byte // what is left
	Err error
}

// Bytes returns the next n bytes, nil if there are fewer.
func (d *Decoder) Bytes(n int) []byte {
	if d.Err == nil && (n < 0 || n > len(d.B)) {
		d.Err = fmt.Errorf("%d bytes are left, want %d more", len(d.B), n)
	}
	if d.Err != nil {
		return nil
	}
	b := d.B[:n:n]
	d.B = d.B[n:]
	return b
}

// U64 returns the next integer of 8 bytes.
func (d *Decoder) U64() uint64 {
	if b := d.Bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// U32 returns the next integer of 4 bytes.
func (d *Decoder) U32() uint32 {
	if b := d.Bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// U16 returns the next integer of 2 bytes.
func (d *Decoder) U16() uint16 {
	if b := d.Bytes(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// keeping is what a far log remembers for its Keeper.
type keeping struct {
	keeper  Keeper
	root    Root
	parts   []Segment        // the last checkpoint is in these,
	spares  []Segment        // reserved for the next one, and for what has to be written back before it,
	kept    map[Segment]bool // and refers to these; nil if nothing outlives the heap
	due     chan struct{}    // tells that there should be another one
	holding bool             // a checkpoint is being made, to which everything may belong
	waiting []Segment        // dead ones that go when there is another checkpoint
}

// Keeps reports whether the heap outlives its process, and Waits how many segments wait for the next
// checkpoint to be given back.
func (f *farLog) Keeps() bool { return f.keeping.keeper != nil }

// Waits is how many dead segments wait for the next checkpoint.
func (f *farLog) Waits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.keeping.waiting)
}

// retain keeps a dead segment until the next checkpoint if the last one may refer to it. f.mu must be held.
func (f *farLog) retain(seg Segment) bool {
	k := &f.keeping
	if k.keeper == nil || !k.holding && !k.kept[seg] {
		return false
	}
	k.waiting = append(k.waiting, seg)
	if f.starved() {
		k.remind()
	}
	return true
}

// remind says that a checkpoint is due.
func (k *keeping) remind() {
	select {
	case k.due <- struct{}{}:
	default:
	}
}

// Due tells when there should be a checkpoint, since dead segments wait for it that somebody needs, or that are more than
// a share of those in use.
func (f *farLog) Due() <-chan struct{} { return f.keeping.due }

// Hold begins a checkpoint: until Release no segment is given back.
func (f *farLog) Hold() {
	f.mu.Lock()
	f.keeping.holding = true
	f.mu.Unlock()
}

// Unhold ends what Hold began, without a checkpoint.
func (f *farLog) Unhold() {
	f.mu.Lock()
	f.keeping.holding = false
	f.mu.Unlock()
}

// Has reports whether a far address is within a segment.
func (f *farLog) Has(addr uint64) bool {
	segs := *f.Segs.Load()
	id := addr / f.Units
	return id < uint64(len(segs)) && segs[id].Load() != nil
}

// Starved reports whether a checkpoint is due.
func (f *farLog) Starved() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.starved()
}

// starved is Starved with f.mu held.
func (f *farLog) starved() bool {
	n := len(f.keeping.waiting)
	return f.keeping.keeper.Wants() || n > 0 && f.scarce.Load() || n > leastWaiting && n > f.count/waitingShare
}

const (
	// leastWaiting is how many dead segments may wait for a checkpoint in any case, and
	// waitingShare of how many in use one may.
	leastWaiting = 4
	waitingShare = 8
)

// checkpointReserve is how many segments are kept for the next checkpoint: what it takes to write back all that is local,
// and for indexes, which take most of what is left.
func (h *Heap) checkpointReserve() int { return 2 + int(h.Budget.Load()*5/4)/h.Far.SegSize }

// Reserve sees to it that there is room for the next checkpoint in a store that gets full, as far as that has room.
func (h *Heap) Reserve(ctx context.Context) error {
	f := &h.Far
	for {
		f.mu.Lock()
		enough := len(f.keeping.spares) >= h.checkpointReserve()
		f.mu.Unlock()
		if enough {
			return nil
		}
		s, err := f.Store.Alloc(ctx)
		if errors.Is(err, ErrStoreFull) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot reserve far memory for a checkpoint: %w", err)
		}
		f.mu.Lock()
		f.keeping.spares = append(f.keeping.spares, s)
		f.mu.Unlock()
	}
}

// takeReserved returns a segment of the reserve, nil if there are no more than are to be left.
func (f *farLog) takeReserved(leave int) Segment {
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

// lendReserve makes a segment of the reserve the open one, for what is written back before a checkpoint.
func (h *Heap) lendReserve() bool {
	s := h.Far.takeReserved(1 + h.checkpointReserve()/4)
	return s != nil && h.openWith(s) == nil
}

// AppendSegments appends to b what a checkpoint says of far memory. Nothing that lives may be moved meanwhile: the
// caller holds all locks of owners.
func (f *farLog) AppendSegments(b []byte) ([]byte, []Segment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b = binary.LittleEndian.AppendUint64(b, f.version.Load())
	b = binary.LittleEndian.AppendUint64(b, f.age.Load())
	at, n := len(b), uint32(0)
	b = binary.LittleEndian.AppendUint32(b, 0)
	var segs []Segment
	f.All(func(s *FarSegment) {
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

// Commit writes a checkpoint, which refers to segs, and makes it the one that the heap will be opened
// with. It ends what Hold began, whether it fails or not.
func (h *Heap) Commit(ctx context.Context, checkpoint []byte, segs []Segment) error {
	f := &h.Far
	k := &f.keeping
	root := k.root
	root.Length, root.Sum, root.Parts = uint64(len(checkpoint)), sha256.Sum256(checkpoint), nil
	var parts, sealed []Segment
	var err error
	for rest := checkpoint; len(rest) > 0 && err == nil; {
		var seg Segment
		if seg, err = f.borrowForCheckpoint(ctx); err != nil {
			break
		}
		parts = append(parts, seg)
		var p Part
		switch p, err = f.writePart(ctx, seg, rest); {
		case err == nil:
			root.Parts = append(root.Parts, p)
			rest = rest[p.Length:]
		case errors.Is(err, ErrSealed): // it goes on in another one
			sealed = append(sealed, seg)
			parts = parts[:len(parts)-1]
			err = nil
		}
	}
	if err == nil {
		if b := root.Encode(); len(b) > MaxRoot {
			err = fmt.Errorf("its root would have %d bytes, more than %d: it takes larger segments", len(b), MaxRoot)
		} else {
			err = k.keeper.SetRoot(ctx, b)
		}
	}
	if err != nil {
		// Nobody knows whether the new root is kept: so both checkpoints stay.
		err = fmt.Errorf("cannot write a checkpoint: %w", err)
	}
	f.mu.Lock()
	var free []Segment
	if k.holding = false; err == nil {
		free = k.waiting
		k.waiting, k.spares, k.parts, k.root = nil, append(k.spares, k.parts...), parts, root
		k.kept = make(map[Segment]bool, len(segs))
		for _, s := range segs {
			k.kept[s] = true
		}
		most := h.checkpointReserve()
		free = slices.DeleteFunc(free, func(s Segment) bool {
			switch {
			case k.kept[s]: // it has died since
				k.waiting = append(k.waiting, s)
			case len(k.spares) < most:
				k.spares = append(k.spares, s)
			default:
				return false
			}
			return true
		})
		if n := len(k.spares); n > most {
			free = append(free, k.spares[most:]...)
			k.spares = k.spares[:most]
		}
	} else { // the store may have the root
		k.waiting = append(k.waiting, parts...)
		if k.kept == nil {
			k.kept = make(map[Segment]bool, len(segs))
		}
		for _, s := range segs {
			k.kept[s] = true
		}
	}
	f.mu.Unlock()
	for _, s := range slices.Concat(free, sealed) {
		h.free(func() error { _, err := f.giveBack(ctx, debt{seg: s}); return err })
	}
	if err == nil && len(sealed) > 0 {
		return h.Reserve(ctx)
	}
	return err
}

// borrowForCheckpoint gets a segment for a part of a checkpoint: one that is reserved for it, or another one.
func (f *farLog) borrowForCheckpoint(ctx context.Context) (Segment, error) {
	if s := f.takeReserved(0); s != nil {
		return s, nil
	}
	s, err := f.Store.Alloc(ctx)
	if errors.Is(err, ErrStoreFull) {
		if s := f.takeSpare(false); s != nil {
			return s, nil
		}
	}
	return s, err
}

// mostOfCheckpoint is the longest body of a checkpoint's record.
const mostOfCheckpoint = 256 << 10

// writePart writes the beginning of b to seg, as much as there is room for.
func (f *farLog) writePart(ctx context.Context, seg Segment, b []byte) (Part, error) {
	p := Part{Name: seg.Name(), Epoch: f.keeping.root.Epoch, Position: f.age.Add(1)}
	mem := make([]byte, record.SegmentSize+record.Size(min(mostOfCheckpoint, f.SegSize/2)))
	seed := f.checkpointHeader(p).Put(mem)
	for off, used := 0, record.SegmentSize; len(b) > 0; used = 0 {
		n := min(len(b), len(mem)-record.SegmentSize-record.HeaderSize-Unit, f.SegSize-off-used-record.HeaderSize-Unit)
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

func (f *farLog) checkpointHeader(p Part) *record.Segment {
	return &record.Segment{Heap: f.heap, Stream: record.Checkpoints, Hash: record.XXH3, Epoch: p.Epoch, Position: p.Position}
}

// readPart appends a part of a checkpoint to b.
func (f *farLog) readPart(ctx context.Context, seg Segment, p Part, b []byte) ([]byte, error) {
	mem := make([]byte, record.Size(min(mostOfCheckpoint, f.SegSize/2)))
	seed := f.checkpointHeader(p).Seed()
	for off, end := record.SegmentSize, len(b)+int(p.Length); len(b) < end; {
		n := min(len(mem), f.SegSize-off)
		ops := []ReadOp{{Seg: seg, Off: off, Buf: mem[:n], Bulk: true}}
		f.Store.Read(ctx, ops)
		err := ops[0].Err
		var r record.Record
		if err == nil {
			r, err = record.Decode(mem[:n], seed, off)
			if err == nil && (r.Kind() != record.Checkpoint || len(r.Body()) > end-len(b) || r.Len() == 0) {
				err = ErrForeign
			}
			if err != nil {
				err = &CorruptError{Segment: p.Name, Off: off, Err: err}
			}
		}
		if err != nil {
			return nil, err
		}
		b = append(b, r.Body()...)
		off += r.Size()
	}
	return b, nil
}

// OpenKeeper makes the heap one that outlives its process. It is called before Start, and returns the root
// that store has, raised by an epoch, and the checkpoint; or none of both if there is none: then SetSecrets has to follow.
func (h *Heap) OpenKeeper(ctx context.Context, store Keeper) (*Root, []byte, error) {
	f, k := &h.Far, &h.Far.keeping
	k.keeper, k.due = store, make(chan struct{}, 1)
	b, err := store.Root(ctx)
	if err != nil || b == nil {
		return nil, nil, err
	}
	r, err := DecodeRoot(b)
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
		seg, err := store.Reopen(ctx, p.Name)
		if err != nil {
			return nil, nil, err
		}
		k.parts = append(k.parts, seg)
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

// maxCheckpoint bounds what a root can have a heap allocate.
const maxCheckpoint = 1 << 36

// SetSecrets begins a heap that outlives its process.
func (h *Heap) SetSecrets(seed uint64, key [16]byte) {
	f := &h.Far
	f.keeping.root = Root{Heap: f.heap, Epoch: 1, Seed: seed, Key: key}
}

// Reopened ends the opening: the epoch is raised, and what the checkpoint does not refer to is given back.
func (h *Heap) Reopened(ctx context.Context) error {
	k := &h.Far.keeping
	if err := k.keeper.SetRoot(ctx, k.root.Encode()); err != nil {
		return err
	}
	return k.keeper.Prune(ctx)
}

// LoadSegments takes from d what AppendSegments has written.
func (h *Heap) LoadSegments(ctx context.Context, d *Decoder) error {
	f, k := &h.Far, &h.Far.keeping
	f.version.Store(d.U64())
	f.age.Store(d.U64())
	k.kept = map[Segment]bool{}
	used := map[uint64]bool{}
	for range d.U32() {
		s := &FarSegment{ID: d.U64(), age: d.U64(), epoch: d.U64(), stream: record.Stream(d.U64()), restored: true}
		live, filled, written := d.U64(), d.U64(), d.U64()
		name := string(d.Bytes(int(d.U16())))
		switch {
		case d.Err != nil:
			return d.Err
		case s.ID == 0 || used[s.ID] || s.ID > AddrMask/f.Units-1 || s.age > f.age.Load() ||
			s.stream != record.Data && s.stream != record.Pages || written > uint64(f.SegSize) || live > filled || filled > 2*uint64(f.SegSize):
			return fmt.Errorf("segment %d of the checkpoint (%s) is none", s.ID, name)
		}
		used[s.ID] = true
		var err error
		var lost *LostError
		if s.Seg, err = k.keeper.Reopen(ctx, name); errors.As(err, &lost) {
			s.Seg = lostSegment(name)
		} else if err != nil {
			return err
		}
		k.kept[s.Seg] = true
		s.Live.Store(int64(live))
		s.filled.Store(int64(filled))
		s.written.Store(int64(written))
		s.end = int(written)
		s.sealed.Store(true)
		s.Seed = f.header(s).Seed()
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

func (s lostSegment) Write(context.Context, []byte, int) error { return &LostError{string(s)} }
func (s lostSegment) Free(context.Context) error               { return nil }
func (s lostSegment) Lost() <-chan struct{}                    { return closed }
func (s lostSegment) Name() string                             { return string(s) }
