package chain

import (
	"encoding/binary"
	"fmt"

	"polder/verbs"
)

// A Table is the MWTable.
type Table struct {
	Addr    uint64 // of entry 0
	Windows int    // per chunk
	mem     []byte
}

// TableSize is how many bytes a table of n entries needs.
func TableSize(n int) int { return n * verbs.EntrySize }

// NewTable lays out a table in mem, which is registered at addr. It fails if addr does not allow handles of 3 bytes.
func NewTable(mem []byte, addr uint64, windows int) (*Table, error) {
	last := addr + uint64(len(mem)) - 1
	if addr%verbs.EntrySize != 0 || addr>>32 != last>>32 {
		return nil, fmt.Errorf("cannot lay out a table of windows from %#x to %#x", addr, last)
	}
	return &Table{Addr: addr, Windows: windows, mem: mem}, nil
}

func (t *Table) entry(i uint32) []byte {
	off := int(i) * verbs.EntrySize
	return t.mem[off : off+verbs.EntrySize : off+verbs.EntrySize]
}

// Entry is the address of chunk i's entry.
func (t *Table) Entry(i uint32) uint64 { return t.Addr + uint64(i)*verbs.EntrySize }

// Chunk returns the chunk whose entry is at addr, or false if there is no entry there.
func (t *Table) Chunk(addr uint64) (uint32, bool) {
	off := addr - t.Addr // huge if addr is below
	if off%verbs.EntrySize != 0 || off >= uint64(len(t.mem)) {
		return 0, false
	}
	return uint32(off / verbs.EntrySize), true
}

// Handle is how a request to free names the entry at addr.
func Handle(addr uint64) [HandleSize]byte {
	return [HandleSize]byte{byte(addr >> 8), byte(addr >> 16), byte(addr >> 24)}
}

// Describe fills in the entry of chunk i, which lies at addr in the region lkey.
func (t *Table) Describe(i uint32, addr uint64, lkey verbs.LKey) {
	le, b := binary.LittleEndian, t.entry(i)
	for j := range t.Windows {
		slot := b[verbs.EntrySlots+j*verbs.SlotSize:]
		le.PutUint64(slot, addr)
		le.PutUint32(slot[12:], uint32(lkey))
		le.PutUint64(b[verbs.EntryWords+8*j:], t.Entry(i)+uint64(verbs.EntrySlots+j*verbs.SlotSize+8))
	}
}

// Key is the key of window j of chunk i: the current key while the window is bound, and otherwise the key that it
// will be bound with.
//
// Preconditions of Key and SetKey: no NIC uses the entry meanwhile.
func (t *Table) Key(i uint32, j int) verbs.RKey {
	return verbs.RKey(binary.LittleEndian.Uint32(t.entry(i)[verbs.EntrySlots+j*verbs.SlotSize+8:]))
}

// SetKey sets what Key returns.
func (t *Table) SetKey(i uint32, j int, key verbs.RKey) {
	binary.LittleEndian.PutUint32(t.entry(i)[verbs.EntrySlots+j*verbs.SlotSize+8:], uint32(key))
}

// Owner is who has chunk i, 0 if nobody.
func (t *Table) Owner(i uint32) uint64 { return Load(t.entry(i)) }

// SetOwner sets who has chunk i.
func (t *Table) SetOwner(i uint32, owner uint64) { Store(t.entry(i), owner) }

// Owned lists the chunks that owner has.
func (t *Table) Owned(owner uint64) []uint32 {
	var list []uint32
	for i := range uint32(len(t.mem) / verbs.EntrySize) {
		if t.Owner(i) == owner {
			list = append(list, i)
		}
	}
	return list
}
