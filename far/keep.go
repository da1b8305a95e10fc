package far

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/objects"
	"polder/far/record"
	"polder/far/store"
	"polder/internal/arena"
)

// A checkpoint is what the maps of a heap are at one moment: what tables know, where leaves are, and those
// entries that have no far copy yet. It is taken with the locks of all shards held, and so is whole; since it is
// of what is in local memory, its size depends on the budget and not on what is far. It is
//
//	u32 shards of a map; u32 the longest value that is one entry; u64 local budget; u64 version of large values
//	u64, u64, u32 and for each segment what heap.AppendSegments says
//	u32 maps; for each: u16 id, u16 length of its name, the name, u16 length of its types, the types, and
//	  u32 shards, 0 if it was never used; for each:
//	    u32 ranges, and u64 for each; u32 entries that were lost with leaves
//	    u32 words; for each: u32 tag, u64 word
//	    u32 entries; for each: u64 hash, u32 length, and the entry behind its heap header
//	u8 whether there may be pieces without a head; u32 large values to be removed; for each:
//	  u16 map, u64 version, u64 size, u32 size of a piece, u32 pieces that are left
//	u32 length of the program's own state, and that

// Open opens the heap that store has kept, with its maps as they were at its last checkpoint, or makes
// a new one if there is none: [Heap.NewByteMap] and [NewMap] give the map back that had the name. Pointers are
// no part of a checkpoint. Local may be another budget than before, unless it is so much smaller that
// large values were stored in longer pieces.
//
// The heap takes a checkpoint when it is closed, when [Heap.Checkpoint] is called, every so often if
// [Config.CheckpointEvery] says so, and when what it would give back is needed.
func Open(ctx context.Context, store store.Keeper, cfg Config) (*Heap, error) {
	lay, err := layoutFor(store, &cfg)
	if err != nil {
		return nil, err
	}
	return open(ctx, store, cfg, lay)
}

func open(ctx context.Context, store store.Keeper, cfg Config, lay layout) (*Heap, error) {
	h, err := prepare(store, cfg, lay)
	if err != nil {
		return nil, err
	}
	if err := h.load(ctx, store, lay); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open the heap: %w", err), h.abandon())
	}
	h.checkpointed.Store(time.Now().UnixNano())
	h.start()
	h.core.Wg.Go(h.checkpoints)
	return h, nil
}

// abandon gives back what a heap has that was not started.
func (h *Heap) abandon() error {
	var errs []error
	for _, m := range *h.maps.Load() {
		for i := range m.shards() {
			errs = append(errs, m.at(i).t.Close(), m.at(i).cold.close())
		}
	}
	unregister(h)
	return errors.Join(append(errs, h.settler.close(), h.objects.Close(), h.core.Unmap())...)
}

// load makes the heap what store has kept.
func (h *Heap) load(ctx context.Context, store store.Keeper, lay layout) error {
	root, b, err := h.core.Far.OpenKeeper(ctx, store)
	if err != nil {
		return err
	}
	if root == nil {
		secret := index.NewSecret()
		h.leaves = index.NewKey(secret)
		h.core.Far.SetSecrets(h.seed, secret)
		if err := h.core.Far.Reopened(ctx); err != nil {
			return err
		}
		return h.core.Reserve(ctx)
	}
	h.seed, h.leaves = root.Seed, index.NewKey(root.Key)
	if len(b) > 0 {
		d := &record.Decoder{B: b}
		if err := h.decode(ctx, d, lay); err != nil {
			return fmt.Errorf("its checkpoint: %w", err)
		}
		if len(d.B) > 0 {
			return fmt.Errorf("its checkpoint: %d bytes follow it", len(d.B))
		}
	}
	if err := h.core.Far.Reopened(ctx); err != nil {
		return err
	}
	return h.core.Reserve(ctx)
}

// decode takes a checkpoint from d.
func (h *Heap) decode(ctx context.Context, d *record.Decoder, lay layout) error {
	shards, pieces, local := int(d.U32()), int(d.U32()), int64(d.U64())
	h.version = d.U64()
	if d.Err == nil && (shards <= 0 || shards > 4096 || shards&(shards-1) != 0 || pieces <= 0 || pieces > maxPiece) {
		return fmt.Errorf("%d shards, and %d bytes in a piece", shards, pieces)
	}
	if pieces > lay.Staging/8 {
		return fmt.Errorf("it was made with a local budget of %d bytes, and its large values are in pieces of %d, which are too long for %d: give it more", local, pieces, h.core.Budget.Load())
	}
	h.shards, h.pieces = shards, pieces
	if err := h.core.Far.LoadSegments(ctx, d); err != nil {
		return err
	}
	n := int(d.U32())
	if n > objects.FirstOwner {
		return fmt.Errorf("%d maps", n)
	}
	leaves := false
	for range n {
		id, name, types := d.U16(), string(d.Bytes(int(d.U16()))), string(d.Bytes(int(d.U16())))
		m, err := h.keptMap(id, name, types)
		if err != nil || d.Err != nil {
			return errors.Join(err, d.Err)
		}
		switch n := int(d.U32()); {
		case n == 0:
			continue
		case n != shards:
			return fmt.Errorf("map %q has %d shards, want %d", name, n, shards)
		}
		for i := range shards {
			sh := m.at(i)
			if err := h.decodeShard(d, m, sh); err != nil {
				return fmt.Errorf("map %q: %w", name, err)
			}
			leaves = leaves || sh.hasLeaves()
		}
	}
	if s := d.Bytes(1); s != nil {
		h.strays.Store(s[0] != 0)
	}
	maps := *h.maps.Load()
	for range d.U32() {
		id, o := int(d.U16()), orphan{big: bigHead{version: d.U64(), size: int(d.U64()), piece: int(d.U32())}, n: int(d.U32())}
		if d.Err != nil {
			break
		}
		if id >= len(maps) || o.big.piece != pieces || o.n < 0 || o.n > o.big.size {
			return fmt.Errorf("a large value of map %d in %d pieces", id, o.n)
		}
		o.m = maps[id]
		h.orphans = append(h.orphans, o)
	}
	h.state = append([]byte(nil), d.Bytes(int(d.U32()))...)
	if d.Err == nil && leaves {
		return h.settler.ready()
	}
	return d.Err
}

// keptMap makes the map of an id that a heap was closed with.
func (h *Heap) keptMap(id uint16, name, types string) (*ByteMap, error) {
	maps := *h.maps.Load()
	if int(id) < len(maps) {
		return nil, fmt.Errorf("map %d is there twice", id)
	}
	if id >= objects.FirstOwner {
		return nil, fmt.Errorf("map %d", id)
	}
	for len(maps) < int(id) { // those in between were freed
		m := &ByteMap{h: h, id: uint16(len(maps))}
		m.freed.Store(true)
		if h.none == nil {
			h.none = newShards(h.shards, true)
		}
		m.first.Store(&h.none[0])
		h.freedMaps = append(h.freedMaps, m.id)
		maps = append(maps, m)
	}
	m := &ByteMap{h: h, id: id, name: name, types: types, kept: true}
	maps = append(maps, m)
	h.maps.Store(&maps)
	return m, nil
}

// decodeShard takes a shard from d.
func (h *Heap) decodeShard(d *record.Decoder, m *ByteMap, sh *shard) error {
	if n := int(d.U32()); n > 0 && d.Err == nil {
		if n&(n-1) != 0 || n > len(d.B)/8 {
			return fmt.Errorf("%d ranges", n)
		}
		refs := make([]index.Ref, n)
		for i := range refs {
			refs[i] = index.Ref(d.U64())
			if a := refs[i].Addr(); a != 0 && !h.core.Far.Has(a) {
				return fmt.Errorf("a leaf at %#x, where no segment is", a)
			}
		}
		size := index.LoadedBytes(n)
		if err := h.core.Logs.GrowIndex(heap.Leaves, size, heap.ForMutator); err != nil {
			return err
		}
		sh.cold = new(leafIndex)
		if err := sh.cold.Load(refs); err != nil {
			h.core.Logs.ShrinkIndex(heap.Leaves, size)
			return err
		}
	}
	lost, n := int(d.U32()), int(d.U32())
	if d.Err != nil || n > len(d.B)/12 {
		return errors.Join(d.Err, fmt.Errorf("%d words in %d bytes", n, len(d.B)))
	}
	if sh.cold != nil {
		sh.cold.lost = lost
		sh.entries, sh.lost = sh.cold.count(), lost
	}
	words := d.Bytes(12 * n)
	dirty := int(d.U32())
	if d.Err != nil || dirty > len(d.B) {
		return errors.Join(d.Err, fmt.Errorf("%d entries in %d bytes", dirty, len(d.B)))
	}
	if n+dirty > 0 {
		if err := sh.resize(h, index.TableBytes(n+dirty)); err != nil {
			return err
		}
	}
	for ; len(words) > 0; words = words[12:] {
		tag, w := binary.LittleEndian.Uint32(words), index.Word(binary.LittleEndian.Uint64(words[4:]))
		if w&index.Far == 0 || w.Addr() != 0 && !w.IsLost() && !h.core.Far.Has(w.Addr()) {
			return fmt.Errorf("the word %#x refers to nothing", w)
		}
		sh.t.Insert(tag, w)
		switch {
		case !w.Visible():
		case w.IsLost():
			sh.lost++
		default:
			sh.entries++
		}
	}
	for range dirty {
		hs, b := hash(d.U64()), d.Bytes(int(d.U32()))
		if d.Err != nil {
			return d.Err
		}
		if err := h.decodeEntry(m, sh, hs, b); err != nil {
			return err
		}
	}
	return nil
}

// decodeEntry stores the entry that b is, which has no far copy.
func (h *Heap) decodeEntry(m *ByteMap, sh *shard, hs hash, b []byte) error {
	const at = entryHeader - heap.ObjectHeader
	if len(b) < at || hs>>hashBits != 0 || m.shard(hs) != sh {
		return fmt.Errorf("an entry of %d bytes with the hash %#x", len(b), uint64(hs))
	}
	r := newEntry{tag: b[2], flags: b[3] &^ entryExpires}
	klen, body := int(binary.LittleEndian.Uint16(b)), b[at:]
	if b[3]&entryExpires != 0 && len(body) >= 8 {
		r.expire, body = int64(binary.LittleEndian.Uint64(body)), body[8:]
	}
	if klen > len(body) || r.flags&^(entryBig|entryPiece) != 0 {
		return fmt.Errorf("an entry of %d bytes with a key of %d", len(b), klen)
	}
	r.key, r.value = body[:klen], body[klen:]
	if r.flags&entryBig != 0 {
		if err := h.checkBig(r.value); err != nil {
			return err
		}
	}
	if r.size() > h.core.Logs.SegSize {
		return fmt.Errorf("an entry of %d bytes is too long for the local budget", r.size())
	}
	if err := m.insert(sh, hs, index.None, nil, &r); err != nil {
		return fmt.Errorf("no room for an entry that was not in far memory yet: %w", err)
	}
	return nil
}

// keptBy returns the map of a name and types that the heap was closed with, nil if there is none that nobody has
// yet. h.mu must be held.
func (h *Heap) keptBy(name, types string) (*ByteMap, error) {
	for _, m := range *h.maps.Load() {
		if !m.kept || m.name != name {
			continue
		}
		if types != "" && m.types != types {
			return nil, fmt.Errorf("map %q was made from %s, and cannot be opened as one from %s", name, cmp.Or(m.types, "bytes to bytes"), types)
		}
		m.kept = false
		return m, nil
	}
	return nil, nil
}

// Kept reports whether the heap was made by Open, and so outlives its process.
func (h *Heap) Kept() bool { return h.core.Far.Keeps() }

// State is what the program that has closed the heap has had kept with its last checkpoint, see KeepState.
func (h *Heap) State() []byte { return h.state }

// State is what a program keeps with a checkpoint beside maps.
type State struct {
	Bytes []byte
	Thaw  func()          // called as soon as maps may change again; nil if there is nothing to do
	Kept  func(err error) // called when the checkpoint counts, or err says why it does not; nil if there is nothing to do
}

// KeepState has each checkpoint keep what state returns, which is called right before: what is in maps has to agree
// with it until Thaw is called. It may wait for locks that are held by those who write: so a write that finds the store full waits for no
// checkpoint from then on, and fails at once.
func (h *Heap) KeepState(state func() State) {
	h.checkpoint <- struct{}{}
	defer func() { <-h.checkpoint }()
	h.stateOf = state
	h.core.Blocks.Store(true)
}

// LastCheckpoint is when the last checkpoint was taken, or the heap was opened.
func (h *Heap) LastCheckpoint() time.Time { return time.Unix(0, h.checkpointed.Load()) }

// CheckpointError is why the last checkpoint that was due could not be taken, nil if it was.
func (h *Heap) CheckpointError() error {
	if err := h.checkpointErr.Load(); err != nil {
		return *err
	}
	return nil
}

// errBusy: something that is under way has to end before there can be a checkpoint.
var errBusy = errors.New("a map is being cleared")

// Checkpoint has the heap be, when it is opened again, as it is at some moment while Checkpoint runs. A transaction
// that has not ended by then has changed nothing. It takes memory for as long, about two thirds of what indexes have
// and what was written last; and calls on maps are held up while that is copied. One runs at a time: others wait for it, until their ctx ends.
func (h *Heap) Checkpoint(ctx context.Context) error {
	if !h.core.Far.Keeps() {
		return errors.New("cannot take a checkpoint: the heap's store keeps nothing: see far.Open")
	}
	select {
	case h.checkpoint <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("cannot take a checkpoint: another one has not ended: %w", context.Cause(ctx))
	}
	defer func() { <-h.checkpoint }()
	changes := h.changes() // or more
	size := int64(0)
	for {
		need, err := size, h.core.WriteBack(ctx)
		switch {
		case err == nil:
			need, err = h.tryCheckpoint(ctx, size)
		case !errors.Is(err, store.ErrSealed): // else it goes on in another segment
			return fmt.Errorf("cannot take a checkpoint: cannot write back what is local: %w", err)
		}
		if err == nil {
			h.checkpointed.Store(time.Now().UnixNano())
			h.checkpointAt.Store(changes)
			return nil
		}
		if err != errBusy && err != errGrown && !errors.Is(err, store.ErrSealed) {
			return err
		}
		size = need
		h.settler.wake()
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("cannot take a checkpoint: %w: %w", err, context.Cause(ctx))
		case <-h.core.Ctx.Done():
			return heap.ErrClosed
		}
	}
}

// dirtyShare is the part of the budget that may have no far copy when a checkpoint is taken, if
// there is little memory for it.
const dirtyShare = 32

// leastCheckpoint is room for what every checkpoint has.
const leastCheckpoint = 64 << 10

// errGrown: there is more to be written than there was room for.
var errGrown = errors.New("indexes grow too fast")

// tryCheckpoint is one try, with at least so many bytes of memory. It returns how many it should have been.
func (h *Heap) tryCheckpoint(ctx context.Context, size int64) (int64, error) {
	least := h.core.Stats().Index + h.core.Dirty() + leastCheckpoint
	more := size > least // than it takes now
	size = max(size, least) * 5 / 4
	size = (size + int64(arena.PageSize)) &^ int64(arena.PageSize-1)
	if err := h.settler.room(heap.Checkpoint, size); err != nil && (more || h.core.Dirty() > h.Local()/dirtyShare) {
		return 0, errGrown
	} else if err != nil {
		return 0, fmt.Errorf("no memory for a checkpoint of %d bytes: %w", size, err)
	}
	defer h.core.Logs.ShrinkIndex(heap.Checkpoint, size)
	mem, err := arena.Anonymous(int(size), false)
	if err != nil {
		return 0, err
	}
	defer mem.Close()
	h.core.Far.Hold()
	state := h.stateOf()
	b, segs, need, err := h.freeze(mem.Bytes(), state.Bytes)
	if state.Thaw != nil {
		state.Thaw()
	}
	if err != nil {
		h.core.Far.Unhold()
	} else {
		err = h.core.Commit(ctx, b, segs)
	}
	if state.Kept != nil {
		state.Kept(err)
	}
	return need, err
}

// freeze puts a checkpoint into mem, with the locks of all shards held. If mem is too small it fails with errGrown,
// and says how much it has to be.
func (h *Heap) freeze(mem, state []byte) (b []byte, segs []store.Segment, need int64, err error) {
	h.ending.Lock() // so that no transaction counts in part
	defer h.ending.Unlock()
	var held []*shard
	defer func() {
		for _, sh := range held {
			sh.mu.Unlock()
		}
	}()
	h.mu.Lock()
	maps := *h.maps.Load()
	h.mu.Unlock()
	firsts := make([]*shard, len(maps))
	for i, m := range maps {
		firsts[i] = m.first.Load()
		if m.freed.Load() {
			continue
		}
		for k := range m.shards() {
			sh := m.at(k)
			sh.mu.Lock()
			held = append(held, sh)
			if sh.cold != nil && sh.cold.shelf != nil {
				return nil, nil, 0, errBusy
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := *h.maps.Load(); len(now) != len(maps) {
		return nil, nil, 0, errBusy
	}
	for i, m := range maps {
		if (*h.maps.Load())[i] != m || m.first.Load() != firsts[i] {
			return nil, nil, 0, errBusy
		}
	}
	if h.settler.burying() {
		return nil, nil, 0, errBusy
	}
	if need = h.checkpointSize(maps) + int64(len(state)); need > int64(len(mem)) {
		return nil, nil, need, errGrown
	}
	b, segs = h.encode(mem[:0], maps)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(state)))
	return append(b, state...), segs, 0, nil
}

// checkpointSize is what a checkpoint takes at the most. All shards of maps must be locked.
func (h *Heap) checkpointSize(maps []*ByteMap) int64 {
	n := h.core.Dirty() + 64 + int64(len(h.orphans))*26
	h.core.Far.All(func(s *heap.FarSegment) { n += 64 + int64(len(s.Seg.Name())) })
	for _, m := range maps {
		n += 16 + int64(len(m.name)+len(m.types))
		for i := range m.shards() {
			sh := m.at(i)
			n += 16 + int64(sh.t.Used)*12
			if sh.cold != nil {
				n += int64(sh.cold.Len()) * 8
			}
		}
	}
	return n
}

// encode appends a checkpoint to b. All shards of maps must be locked, and h.mu.
func (h *Heap) encode(b []byte, maps []*ByteMap) ([]byte, []store.Segment) {
	put16, put32, put64 := binary.LittleEndian.AppendUint16, binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	b = put32(b, uint32(h.shards))
	b = put32(b, uint32(h.pieces))
	b = put64(b, uint64(h.core.Budget.Load()))
	b = put64(b, h.version)
	b, segs := h.core.Far.AppendSegments(b)
	at, n := len(b), uint32(0)
	b = put32(b, 0)
	for _, m := range maps {
		if m.freed.Load() {
			continue
		}
		n++
		b = put16(b, m.id)
		b = append(put16(b, uint16(len(m.name))), m.name...)
		b = append(put16(b, uint16(len(m.types))), m.types...)
		b = put32(b, uint32(len(m.shards())))
		for i := range m.shards() {
			b = h.encodeShard(b, m.at(i))
		}
	}
	binary.LittleEndian.PutUint32(b[at:], n)
	strays := byte(0)
	if h.strays.Load() || len(h.writing) > 0 {
		strays = 1
	}
	b = put32(append(b, strays), uint32(len(h.orphans)))
	for _, o := range h.orphans {
		b = put64(put64(put16(b, o.m.id), o.big.version), uint64(o.big.size))
		b = put32(put32(b, uint32(o.big.piece)), uint32(o.n))
	}
	return b, segs
}

// encodeShard appends what sh knows to b, as if no transaction had begun that has not ended.
func (h *Heap) encodeShard(b []byte, sh *shard) []byte {
	put32, put64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	lost := 0
	if sh.hasLeaves() {
		lost = sh.cold.lost
		b = put32(b, uint32(sh.cold.Len()))
		for i := range sh.cold.Len() {
			b = put64(b, uint64(sh.cold.At(i)))
		}
	} else {
		b = put32(b, 0)
	}
	b = put32(b, uint32(lost))
	at, n, dirty := len(b), uint32(0), 0
	b = put32(b, 0)
	for p := range sh.t.All() {
		w := *sh.t.Word(p)
		switch {
		case w.Hidden():
			w &^= index.Hidden
		case w&index.Txn != 0:
			continue
		}
		if !w.Far() {
			e := h.entryAt(w.Addr())
			if !e.Clean() {
				dirty++
				continue
			}
			w = w.At(e.Far()) | index.Far
		}
		n++
		b = put32(b, sh.t.Tag(p))
		b = put64(b, uint64(w&^(index.HotMask|index.Fresh|index.StampMask)))
	}
	binary.LittleEndian.PutUint32(b[at:], n)
	b = put32(b, uint32(dirty))
	for p := range sh.t.All() {
		w := *sh.t.Word(p)
		if dirty == 0 {
			break
		}
		if w.Far() || w&index.Txn != 0 && !w.Hidden() {
			continue
		}
		if e := h.entryAt(w.Addr()); !e.Clean() {
			dirty--
			b = put64(b, uint64(e.Hash()))
			b = put32(b, uint32(e.end()-heap.ObjectHeader))
			b = append(b, e[heap.ObjectHeader:e.end()]...)
		}
	}
	return b
}

const (
	// checkpointTick is how often is looked whether a checkpoint is due.
	checkpointTick = 100 * time.Millisecond
)

// changes counts the changes of contents of all maps. It never comes to the same twice if there was one.
func (h *Heap) changes() (n uint64) {
	for _, m := range *h.maps.Load() {
		m.eachShard(func(sh *shard) { n += sh.muts })
	}
	return n
}

// checkpoints takes checkpoints when they are due. If one fails, it is tried again after as long as between two.
func (h *Heap) checkpoints() {
	tick := time.NewTicker(checkpointTick)
	defer tick.Stop()
	pause, next := time.Second, time.Now()
	for {
		select {
		case <-h.core.Ctx.Done():
			return
		case <-tick.C:
		case <-h.core.Far.Due():
		}
		now := time.Now()
		last := time.Unix(0, h.checkpointed.Load())
		due := h.every > 0 && now.Sub(last) >= h.every && h.changes() != h.checkpointAt.Load() || h.core.Far.Starved()
		if !due || now.Before(next) {
			continue
		}
		if err := h.Checkpoint(h.core.Ctx); err != nil {
			h.checkpointErr.Store(&err)
			pause = min(2*pause, 30*time.Second)
			next = time.Now().Add(pause)
			continue
		}
		h.checkpointErr.Store(nil)
		pause = time.Second
	}
}
