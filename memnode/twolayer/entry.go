package twolayer

import "polder/verbs"

// Entry is a chunk's entry in the full log: the last operation known to have been committed on the block that begins
// with the chunk.
//
//	 0 [8]  timestamp: the temporary log's 7 bits, and 1 if that was a section's
//	 8 [3]  size, as in the temporary log
//	11 [14] user
//	25 [7]  0
//	32 [32] sequence number: counted up by every replacement
type Entry uint64

// Follow is the entry that replaces e when l, from a section's header or from a
// span's, is flushed.
func (e Entry) Follow(l Log, section bool) Entry {
	return Entry(uint64(e)>>32+1)<<32 | entryOf(l, section)
}

func entryOf(l Log, section bool) Entry {
	v := Entry(l.Time) | Entry(l.Size)<<8 | Entry(l.User)<<11
	if section {
		v |= 1 << 7
	}
	return v
}

// Is reports whether e is l, flushed.
func (e Entry) Is(l Log, section bool) bool { return e&(1<<32-1) == entryOf(l, section) }

// Owner returns who has the block that begins with the chunk, and its class; ok is false if the block is not
// allocated. In a run of sections each section has an entry of class SectionClass with run set.
func (e Entry) Owner() (user uint16, k int, run, ok bool) {
	if e&1 == 0 {
		return 0, 0, false, false
	}
	user, k = uint16(e>>11)&MaxUser, int(e>>8&7)
	if e>>7&1 == 1 {
		if k == SizeRun {
			return user, SectionClass, true, true
		}
		k += SpanClass
	}
	return user, k, false, true
}

// ToFlush reports whether a header's log must be flushed before it is replaced, unless it is known to have been
// flushed already.
func (l Log) ToFlush(section bool) bool {
	return l.InUse && l.User != 0 && !(section && l.Size == SizeOpen)
}

// Cap is an entry of the capability table: the main key, and the backup key in the upper half.
type Cap uint64

// MakeCap packs an entry.
func MakeCap(main, backup verbs.RKey) Cap { return Cap(main) | Cap(backup)<<32 }

// Main is the key that opens the memory if the entry is ready.
func (c Cap) Main() verbs.RKey { return verbs.RKey(c) }

// Backup is the key that will be main next, or 0.
func (c Cap) Backup() verbs.RKey { return verbs.RKey(c >> 32) }

// Swapped is the entry after a free.
func (c Cap) Swapped() Cap { return MakeCap(c.Backup(), 0) }

// IsSwapped reports whether the entry waits for the memory node.
func (c Cap) IsSwapped() bool { return c.Main() != 0 && c.Backup() == 0 }
