package index

import "polder/internal/sizeclass"

// Word is the index's record of one entry: where it lies, how large it is,
// and how often it was used of late. The zero word is an empty place.
//
//	63..62  hot: CLOCK's counter, 0 to 3
//	61      settled: the leaf of the tag has what the word says of the far copy, and nothing else of
//	        the tag, so that the table may forget it
//	60..55  stamp of a far entry: when it was last fetched and not kept
//	54      big: the entry is the head of a large value
//	53      fresh: just fetched, and not yet used
//	52      far: the address is in the store, otherwise in the local logs
//	51      lost: the far segment is gone; only the name of it remains
//	50      piece: a part of a large value, invisible to users; or, with txn,
//	        hidden: the entry was replaced or removed by a transaction that has
//	        not ended, and comes back if that is rolled back
//	49      TTL: the entry has an expiry
//	48      txn: a transaction that has not ended has stored the entry, which
//	        goes if that is rolled back; or see piece
//	47..40  class: the size in far memory, rounded up to 5 bits of exponent and 3 of
//	        mantissa
//	39..0   address in units of 16 bytes
type Word uint64

// The bits of a word.
const (
	Txn   Word = 1 << 48
	TTL   Word = 1 << 49
	Piece Word = 1 << 50
	Lost  Word = 1 << 51
	Far   Word = 1 << 52
	Fresh Word = 1 << 53
	Big   Word = 1 << 54

	Settled Word = 1 << 61
	// Gone is the word in the place of an entry that was removed. The leaf of its tag may still have the entry.
	Gone = Far | Lost | Piece

	Hidden = Piece | Txn

	StampShift      = 55
	StampMask  Word = 63 << StampShift

	hotShift      = 62
	HotOne   Word = 1 << hotShift
	HotMask  Word = 3 << hotShift

	// whereMask selects what identifies the bytes of an entry.
	whereMask = addrMask | Far
)

func (w Word) Addr() uint64 { return uint64(w & addrMask) }
func (w Word) Far() bool    { return w&Far != 0 }
func (w Word) Size() int    { return sizeclass.Size(uint8(w >> classShift)) } // in far memory
func (w Word) Hot() int     { return int(w >> hotShift) }
func (w Word) IsLost() bool { return w&Lost != 0 }
func (w Word) Hidden() bool { return w&Hidden == Hidden }

// Flags are the flags of w that hold wherever the entry lies.
func (w Word) Flags() Word { return w & (TTL | Piece | Big | Txn) }

// Visible reports whether w is that of an entry that users see.
func (w Word) Visible() bool { return w.Is(Entries) }

func (w Word) where() Word { return w & whereMask }

// Committed reports whether w is that of an entry that users would see if all transactions were rolled back.
func (w Word) Committed() bool { return w != 0 && (w&Piece != 0) == (w&Txn != 0) }

// The kinds of entries among which a key can be looked up: entries that users see, and pieces.
const (
	Entries Word = 0
	Pieces  Word = Piece
)

// Is reports whether w is the word of an entry of a kind.
func (w Word) Is(kind Word) bool {
	if kind == Pieces {
		return w&(Hidden|Lost) == Piece
	}
	return w != 0 && w&Piece == 0
}

// OfEntry are the flags of w that belong to the entry itself, and do not say what has become of it.
func (w Word) OfEntry() Word {
	f := w & (TTL | Piece | Big)
	if w.Hidden() {
		f &^= Piece
	}
	return f
}

// Touched is w with its hot counter raised. The use for which an entry was fetched does not count: it says nothing of
// the next use.
func (w Word) Touched() Word {
	switch {
	case w&Fresh != 0:
		return w &^ Fresh
	case w&HotMask == HotMask:
		return w
	}
	return w + HotOne
}

// At is w moved to another address of the same kind.
func (w Word) At(addr uint64) Word { return w&^addrMask | Word(addr) }

// NewWord makes the word of an entry that is a far record of size bytes.
func NewWord(addr uint64, size int, flags Word) Word {
	return flags | Word(sizeclass.Of(size))<<classShift | Word(addr)
}

// Settles reports whether w is the word of an entry that can be settled.
func (w Word) Settles() bool { return w.Far() && w.Flags()&^TTL == 0 && w.Addr() != 0 }

// IsGone reports whether w says that its tag has no other entry.
func (w Word) IsGone() bool { return w&^(Settled|HotMask) == Gone }

// Tells reports whether w makes its tag known: then the table has all words of the tag, whatever its leaf has.
func (w Word) Tells() bool { return w != 0 && !w.Is(Pieces) }

// Unsure reports whether w says that its tag may have had an entry that was lost with its leaf.
func (w Word) Unsure() bool { return w&^(Settled|HotMask) == Far|Lost }

// Forgets reports whether the table may forget w, if no other word has its tag.
func (w Word) Forgets() bool { return w&Settled != 0 && (w.Settles() || w.IsGone() || w.Unsure()) }

// AsSettled is what a leaf has of w.
func (w Word) AsSettled() Word {
	return w & (addrMask | Far | Lost | TTL | 0xff<<classShift)
}
