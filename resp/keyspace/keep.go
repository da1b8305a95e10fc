package keyspace

import (
	"encoding/binary"
	"fmt"
	"slices"

	"polder/far"
	"polder/far/record"
	"polder/resp/hashes"
)

// What leads to the blocks of large hashes lies in local memory. In a heap that is kept, each checkpoint has it, as
//
//	u8 version, u64 seed of the hash of fields, u64 last id of a hash
//	u32 keys, and for each: u32 length, the key, the hash
//	u32 hashes whose blocks are yet to be freed, copies that are being dumped among them, and for each: the hash
//	u64 name of the journal, 0 if there is none, u64 number of its last batch that the checkpoint has
//
// where a hash is what hashes.Large.Encode appends.
const stateVersion = 1

// keepState returns what a checkpoint of the heap keeps for the space. All stripes are locked for reading until Thaw.
func (sp *Space) keepState() far.State {
	for i := range sp.Stripes {
		sp.Stripes[i].Mu.RLock()
	}
	put32, put64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	b := put64(put64([]byte{stateVersion}, sp.fieldSeed), sp.nextHash.Load())
	at, n := len(b), uint32(0)
	b = put32(b, 0)
	for i := range sp.Stripes {
		for key, h := range sp.Stripes[i].large {
			n++
			b = append(put32(b, uint32(len(key))), key...)
			b = h.Encode(b)
		}
	}
	binary.LittleEndian.PutUint32(b[at:], n)
	w := &sp.sweeper
	w.mu.Lock()
	free := slices.Concat(w.queue, w.freeing, w.pinned)
	b = put32(b, uint32(len(free)))
	for _, h := range free {
		b = h.Encode(b)
	}
	w.mu.Unlock()
	name, batch, kept := sp.journal.freeze()
	return far.State{Bytes: put64(put64(b, name), batch), Kept: kept, Thaw: func() {
		for i := range sp.Stripes {
			sp.Stripes[i].Mu.RUnlock()
		}
	}}
}

// loadState restores what keepState has returned. There are no clients yet.
func (sp *Space) loadState(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	d := &record.Decoder{B: b}
	if v := d.Bytes(1); len(v) > 0 && v[0] != stateVersion {
		return fmt.Errorf("what the heap has kept are no keys of this version of polder, but perhaps volumes of polder block or polder pager: it begins with %d, want %d", v[0], stateVersion)
	}
	sp.fieldSeed = d.U64()
	sp.nextHash.Store(d.U64())
	for range d.U32() {
		key := string(d.Bytes(int(d.U32())))
		h := hashes.DecodeLarge(d)
		if d.Err != nil {
			break
		}
		sp.lead(&sp.Stripes[sp.stripeOf([]byte(key))], key, h)
	}
	for range d.U32() {
		h := hashes.DecodeLarge(d)
		if d.Err != nil {
			break
		}
		h.Leads = -1
		sp.sweeper.drop(h)
	}
	sp.keptJournal, sp.keptBatch = d.U64(), d.U64()
	if d.Err == nil && len(d.B) > 0 {
		d.Err = fmt.Errorf("%d bytes follow it", len(d.B))
	}
	if d.Err != nil {
		return fmt.Errorf("what leads to large hashes cannot be read: %w", d.Err)
	}
	return nil
}
