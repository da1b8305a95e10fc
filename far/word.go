package far

import (
	"polder/far/heap"
	"polder/far/index"
	"polder/internal/sizeclass"
)

// word is the index's record of one entry: where it lies, how large it is,
// and how often it was used of late. The zero word is an empty place.
//
//	63..62  hot: CLOCK's counter, 0 to 3
//	61      settled: the leaf of the tag has what the word says of the far copy, and nothing else of
//	        the tag: see leafIndex
//	60..55  stamp of a far entry: when it was last fetched and not kept, see
//	        shard.admits
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
type word uint64

const (
	wordTxn   word = 1 << 48
	wordTTL   word = 1 << 49
	wordPiece word = 1 << 50
	wordLost  word = index.Lost
	wordFar   word = 1 << 52
	wordFresh word = 1 << 53
	wordBig   word = 1 << 54

	wordSettled word = 1 << 61
	// wordGone is in the place of an entry that was removed, and may be in its leaf still: see leafIndex.
	wordGone = wordFar | wordLost | wordPiece

	wordHidden = wordPiece | wordTxn

	stampShift      = 55
	stampMask  word = 63 << stampShift

	hotShift      = 62
	hotOne   word = 1 << hotShift
	hotMask  word = 3 << hotShift

	// whereMask selects what identifies the bytes of an entry.
	whereMask = word(heap.AddrMask) | wordFar
)

func (w word) addr() uint64  { return uint64(w & heap.AddrMask) }
func (w word) far() bool     { return w&wordFar != 0 }
func (w word) size() int     { return sizeclass.Size(uint8(w >> heap.AddrBits)) }
func (w word) hot() int      { return int(w >> hotShift) }
func (w word) flags() word   { return w & (wordTTL | wordPiece | wordBig | wordTxn) }
func (w word) isLost() bool  { return w&wordLost != 0 }
func (w word) where() word   { return w & whereMask }
func (w word) hidden() bool  { return w&wordHidden == wordHidden }
func (w word) visible() bool { return w.is(kindEntry) }

// committed reports whether w is that of an entry that users see, or would if all
// transactions were rolled back.
func (w word) committed() bool { return w != 0 && (w&wordPiece != 0) == (w&wordTxn != 0) }

// What a key can be looked up among: the entries that users see, and pieces.
const (
	kindEntry word = 0
	kindPiece word = wordPiece
)

// is reports whether w is the word of an entry of a kind.
func (w word) is(kind word) bool {
	if kind == kindPiece {
		return w&(wordHidden|wordLost) == wordPiece
	}
	return w != 0 && w&wordPiece == 0
}

// ofEntry is those flags of w that an entry's wordFlags give.
func (w word) ofEntry() word {
	f := w & (wordTTL | wordPiece | wordBig)
	if w.hidden() {
		f &^= wordPiece
	}
	return f
}

// touched is w with its hot counter raised. The use that an entry was fetched
// for does not count: it says nothing of the next one.
func (w word) touched() word {
	switch {
	case w&wordFresh != 0:
		return w &^ wordFresh
	case w&hotMask == hotMask:
		return w
	}
	return w + hotOne
}

// at is w moved to another address of the same kind.
func (w word) at(addr uint64) word { return w&^heap.AddrMask | word(addr) }

// newWord makes the word of an entry that is a far record of size bytes.
func newWord(addr uint64, size int, flags word) word {
	return flags | word(sizeclass.Of(size))<<heap.AddrBits | word(addr)
}
