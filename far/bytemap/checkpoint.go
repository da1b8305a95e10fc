package bytemap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
	"polder/far/record"
	"polder/far/store"
)

// A checkpoint is the state of a heap's maps at one moment: what tables know, where leaves are, and those entries
// that have no far copy yet. It is taken with the locks of all shards held, so it is consistent. As it is of what is
// in local memory, its size depends on the budget and not on what is far. It is
//
//	u32 shards of a map; u32 the longest value that is one entry; u64 local budget; u64 version of large values
//	u64, u64, u32 and for each segment what farlog.Log.AppendSegments says
//	u32 maps; for each: u16 id, u16 length of its name, the name, u16 length of its types, the types, and
//	  u32 shards, 0 if it was never used; for each:
//	    u32 ranges, and u64 for each; u32 entries that were lost with leaves
//	    u32 words; for each: u32 tag, u64 word
//	    u32 entries; for each: u64 hash, u32 length, and the entry behind its heap header
//	u8 whether there may be pieces without a head; u32 large values to be removed; for each:
//	  u16 map, u64 version, u64 size, u32 size of a piece, u32 pieces that are left

// ErrBusy: there can be no checkpoint just now, since something that is under way has to end first.
var ErrBusy = errors.New("a map is being cleared")

// ErrGrown: a checkpoint has more to write than there was room for.
var ErrGrown = errors.New("indexes grow too fast")

// NewSecrets makes a new secret that leaves are sealed with, and returns it with the seed of the hash of keys, which
// is new, too. Both have to be kept before anything is stored.
func (h *Maps) NewSecrets() (seed uint64, secret [16]byte) {
	secret = index.NewSecret()
	h.SetSecrets(h.seed, secret)
	return h.seed, secret
}

// SetSecrets sets the secrets to those that were kept.
func (h *Maps) SetSecrets(seed uint64, secret [16]byte) {
	h.seed, h.leaves = seed, index.NewKey(secret)
}

// Settle wakes the settler, which ends some of what makes Freeze fail with ErrBusy.
func (h *Maps) Settle() { h.settler.wake() }

// CleanLeaves has the settler clean the far memory of leaves as thoroughly as it does in a store that is full.
func (h *Maps) CleanLeaves() {
	h.settler.full.Store(true)
	h.settler.wake()
}

// Freeze puts a checkpoint into mem, with the locks of all shards held, and leaves room for more bytes behind it. If
// mem is too small, it fails with ErrGrown, and returns as need how many bytes mem has to have.
func (h *Maps) Freeze(mem []byte, more int) (b []byte, segs []store.Segment, need int64, err error) {
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
				return nil, nil, 0, ErrBusy
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := *h.maps.Load(); len(now) != len(maps) {
		return nil, nil, 0, ErrBusy
	}
	for i, m := range maps {
		if (*h.maps.Load())[i] != m || m.first.Load() != firsts[i] {
			return nil, nil, 0, ErrBusy
		}
	}
	if h.settler.burying() {
		return nil, nil, 0, ErrBusy
	}
	if need = h.checkpointSize(maps) + int64(more); need > int64(len(mem)) {
		return nil, nil, need, ErrGrown
	}
	b, segs = h.encode(mem[:0], maps)
	return b, segs, 0, nil
}

// checkpointSize is what a checkpoint takes at the most. All shards of maps must be locked.
func (h *Maps) checkpointSize(maps []*Map) int64 {
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
func (h *Maps) encode(b []byte, maps []*Map) ([]byte, []store.Segment) {
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
		b = put64(put64(put16(b, o.m.id), o.big.Version), uint64(o.big.Size))
		b = put32(put32(b, uint32(o.big.Piece)), uint32(o.n))
	}
	return b, segs
}

// encodeShard appends what sh knows to b, without the changes of transactions that have not ended.
func (h *Maps) encodeShard(b []byte, sh *shard) []byte {
	put32, put64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	c := sh.cold
	if !sh.hasLeaves() {
		c = new(leafIndex)
	}
	b = put32(c.Append(b), uint32(c.lost))
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
			b = put32(b, uint32(len(e.Kept())))
			b = append(b, e.Kept()...)
		}
	}
	return b
}

// Load decodes a checkpoint from d: it makes the maps of h those of the checkpoint, and the far memory its segments.
func (h *Maps) Load(ctx context.Context, d *record.Decoder) error {
	shards, pieces, local := int(d.U32()), int(d.U32()), int64(d.U64())
	h.version = d.U64()
	if d.Err == nil && (shards <= 0 || shards > maxShards || shards&(shards-1) != 0 || pieces <= 0 || pieces > maxPiece) {
		return fmt.Errorf("%d shards, and %d bytes in a piece", shards, pieces)
	}
	if pieces > h.pieces {
		return fmt.Errorf("it was made with a local budget of %d bytes, and its large values are in pieces of %d, which are too long for %d: give it more", local, pieces, h.core.Budget.Load())
	}
	h.shards, h.pieces = shards, pieces
	if err := h.core.Far.LoadSegments(ctx, d); err != nil {
		return err
	}
	n := int(d.U32())
	if n > h.most {
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
		id, o := int(d.U16()), orphan{big: entry.Large{Version: d.U64(), Size: int(d.U64()), Piece: int(d.U32())}, n: int(d.U32())}
		if d.Err != nil {
			break
		}
		if id >= len(maps) || o.big.Piece != pieces || o.n < 0 || o.n > o.big.Size {
			return fmt.Errorf("a large value of map %d in %d pieces", id, o.n)
		}
		o.m = maps[id]
		h.orphans = append(h.orphans, o)
	}
	if d.Err == nil && leaves {
		h.settler.keepSpare() // before anything else takes what room the store has
		return h.settler.ready()
	}
	return d.Err
}

// keptMap makes the map that has this id in a checkpoint. Ids ascend there.
func (h *Maps) keptMap(id uint16, name, types string) (*Map, error) {
	maps := *h.maps.Load()
	if int(id) < len(maps) {
		return nil, fmt.Errorf("map %d is there twice", id)
	}
	if int(id) >= h.most {
		return nil, fmt.Errorf("map %d", id)
	}
	for len(maps) < int(id) { // the maps in between were freed
		m := &Map{h: h, id: uint16(len(maps))}
		m.freed.Store(true)
		if h.none == nil {
			h.none = newShards(h.shards, true)
		}
		m.first.Store(&h.none[0])
		h.freed = append(h.freed, m.id)
		maps = append(maps, m)
	}
	m := &Map{h: h, id: id, name: name, types: types, kept: true}
	maps = append(maps, m)
	h.maps.Store(&maps)
	return m, nil
}

// decodeShard takes a shard from d.
func (h *Maps) decodeShard(d *record.Decoder, m *Map, sh *shard) error {
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
		h.sweeper.dated.Store(true) // as far as is known
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
		sh.entries, sh.lost = sh.cold.Count(), lost
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
		hs, b := entry.Hash(d.U64()), d.Bytes(int(d.U32()))
		if d.Err != nil {
			return d.Err
		}
		if err := h.decodeEntry(m, sh, hs, b); err != nil {
			return err
		}
	}
	return nil
}

// decodeEntry stores the entry whose bytes are b. It has no far copy.
func (h *Maps) decodeEntry(m *Map, sh *shard, hs entry.Hash, b []byte) error {
	if hs>>entry.HashBits != 0 || m.shard(hs) != sh {
		return fmt.Errorf("an entry with the hash %#x", uint64(hs))
	}
	kept, err := entry.NewOfKept(b)
	if err != nil {
		return err
	}
	r := newEntry{New: kept}
	if r.Flags&entry.Big != 0 {
		if err := h.checkBig(r.Value); err != nil {
			return err
		}
	}
	if r.Size() > h.core.Logs.SegSize {
		return fmt.Errorf("an entry of %d bytes is too long for the local budget", r.Size())
	}
	if err := m.insert(sh, hs, index.None, nil, &r); err != nil {
		return fmt.Errorf("no room for an entry that was not in far memory yet: %w", err)
	}
	return nil
}

// Changes counts the changes of contents of maps. It returns the same number twice only if nothing has changed.
func (h *Maps) Changes() (n uint64) {
	n = h.freedMuts.Load()
	h.eachShard(func(sh *shard) { n += sh.muts })
	return n
}
